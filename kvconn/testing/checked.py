"""The kit over what ``--kvconn-backend`` names; ``kvconn check`` collects this module."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest
from pydantic import ByteSize

from kvconn.config import PluginChoice
from kvconn.config.choice import choose
from kvconn.registry import BACKENDS, load_backend_class
from kvconn.testing import BackendTests
from kvconn.tiers import compose

if TYPE_CHECKING:
    from kvconn.backend import Backend, PluginConfig
    from kvconn.types import WriteMode

__all__ = ["TestBackend", "choices"]


def choices(urls: list[str]) -> list[PluginChoice]:
    """What the URLs name, with a small capacity where none is given; raises if one is wrong."""
    return [choose(BACKENDS, _with_capacity(url)) for url in urls]


def _with_capacity(url: str) -> str:
    """The kit sets a capacity of its own for each test: an operator need not invent one."""
    if "capacity=" in url or "://" not in url:
        return url
    name = url.partition("://")[0]
    if "capacity" not in load_backend_class(name).Config.model_fields:
        return url
    return f"{url}{'&' if '?' in url else '?'}capacity=1GiB"


class TestBackend(BackendTests):
    """Each test in a place of its own, so that what an operator has there is left alone."""

    backends: ClassVar[list[PluginChoice]] = []
    kinds: ClassVar[dict[str, type[Backend]]] = {}
    write: ClassVar[WriteMode] = "write_through"

    def make_backend(self, capacity: int) -> Backend:
        """The backends of the command line, small and apart."""
        made = [
            (choice.name, self.kinds[choice.name](self._apart(choice.options, capacity)))
            for choice in self.backends
        ]
        return compose(made, self.write)

    def _apart(self, options: PluginConfig, capacity: int) -> PluginConfig:
        changes: dict[str, object] = {}
        if "capacity" in type(options).model_fields:
            changes["capacity"] = ByteSize(capacity)
        path = getattr(options, "path", None)
        if isinstance(path, Path):
            # On the same file system: its limits are what is being checked.
            home = path if path.is_dir() else path.parent
            place = home / f".kvconn-check-{self.run}" / self.place.parent.name / self.place.name
            place.mkdir(parents=True, exist_ok=True)
            changes["path"] = place / path.name
        return options.model_copy(update=changes)

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _what_is_checked(cls, request: pytest.FixtureRequest) -> Iterator[None]:
        cls.backends = choices(request.config.getoption("kvconn_backend"))
        cls.kinds = {choice.name: load_backend_class(choice.name) for choice in cls.backends}
        cls.write = request.config.getoption("kvconn_write")
        cls.run = uuid.uuid4().hex[:8]
        if not cls.backends:
            pytest.skip("name a backend with --kvconn-backend")
        yield
        for choice in cls.backends:
            path = getattr(choice.options, "path", None)
            if isinstance(path, Path):
                home = path if path.is_dir() else path.parent
                shutil.rmtree(home / f".kvconn-check-{cls.run}", ignore_errors=True)

    run: ClassVar[str] = ""
    """Names the places of this run."""
