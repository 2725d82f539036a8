"""Every installed backend, each with room for everything a test does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

URLS = {
    "cpu": "cpu://?capacity=1MiB",
    "disk": "disk://{path}?capacity=4MiB",
    "null": "null://",
}
KEEPS = {"cpu": True, "disk": True, "null": False}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.needs(name)) for name in sorted(URLS)])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def url(backend: str, tmp_path: Path) -> str:
    return URLS[backend].format(path=tmp_path)


@pytest.fixture
def keeps(backend: str) -> bool:
    """Whether what was stored can be found again; ``null`` stores nothing."""
    return KEEPS[backend]


@pytest.fixture(params=[False, True], ids=["synchronous", "asynchronous"])
def asynchronous(request: pytest.FixtureRequest) -> bool:
    return request.param
