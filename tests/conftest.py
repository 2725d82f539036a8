"""What tests all over the tree share."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

from kvconn.registry import BACKENDS, available

_numbers = itertools.count()

Install = Callable[..., str]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(backend, ...): skipped where one of these backends is not installed"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    there = available(BACKENDS)
    for item in items:
        for marker in item.iter_markers("needs"):
            for name in marker.args:
                if name not in there:
                    reason = f"the backend {name} is not installed: pip install kvconn-{name}"
                    item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs small distributions as pip would leave them, for one test.

    ``install("kvconn-mem", source, backends={"mem": "MemBackend"})`` writes a module of its own
    with that source and metadata that offers its attributes, and answers the module's name.
    """
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delenv("KVCONN_FORBID", raising=False)
    modules: list[str] = []

    def write(
        distribution: str, source: str = "", *, version: str = "1.0", **groups: Mapping[str, str]
    ) -> str:
        module = f"planted_{next(_numbers)}"
        modules.append(module)
        (site / f"{module}.py").write_text(source)
        metadata = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        lines = []
        for group, offers in groups.items():
            lines += [f"[kvconn.{group}]"]
            lines += [f"{name} = {module}:{attribute}" for name, attribute in offers.items()]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
        importlib.invalidate_caches()
        return module

    yield write
    for module in modules:
        sys.modules.pop(module, None)
