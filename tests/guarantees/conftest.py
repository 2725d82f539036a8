"""Engines driven by hand over two backends that are always there, and over compositions of them.

What every backend must do is in the conformance kit (``kvconn.testing``).  Here is what needs a
backend that can be looked into: the framework's own promises, and stores that misbehave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from healthy import MemoryBackend, MemoryConfig, Shelf, ShelfBackend, ShelfConfig

from kvconn.backend import Backend, Settings
from kvconn.blockstore import worker as store_worker
from kvconn.blockstore.seal import object_bytes
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.testing.rig import Rig, geometry_of
from kvconn.tiers import compose

NAMESPACE = Namespace("model", revision="1", dtype="uint8")
BACKENDS = ["memory", "shelf", "write_through", "write_back"]


def make_backend(name: str, chunks: int, geometry: Geometry, shelf: Shelf) -> Backend:
    """One more instance; those that share a shelf see each other's objects."""
    memory = MemoryConfig(capacity=chunks * geometry.workers * geometry.slot_bytes)
    objects = chunks * geometry.ranks * object_bytes(geometry.chunk_bytes)
    store = ShelfConfig(capacity=objects, shelf=shelf, **shelf.options)
    if name == "memory":
        return MemoryBackend(memory)
    if name == "shelf":
        return ShelfBackend(store)
    return compose([("memory", MemoryBackend(memory)), ("shelf", ShelfBackend(store))], name)


@dataclass
class Opener:
    """Opens rigs over one backend and one shelf."""

    name: str
    shelf: Shelf
    stack: ExitStack

    def __call__(
        self,
        chunks: int = 8,
        *,
        ranks: int = 1,
        replicas: int = 1,
        namespace: Namespace = NAMESPACE,
        policies: Sequence[tuple[str, Any]] = (),
        settings: Settings | None = None,
        strict: bool = True,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> Rig:
        geometry = geometry_of(ranks, replicas)
        rig = Rig(
            lambda: make_backend(self.name, chunks, geometry, self.shelf), geometry, namespace,
            policies=policies, settings=settings, strict=strict, wrap=wrap,
        )  # fmt: skip
        self.stack.callback(rig.close)
        return rig


@pytest.fixture(autouse=True)
def one_call_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store that works in parallel is asked for in one call is not spread over several."""
    monkeypatch.setattr(store_worker, "_OVERLAP", 1)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """Where the backend ``shelf`` keeps its objects."""
    shelf = Shelf()
    yield shelf
    shelf.let_go()


@pytest.fixture
def stack(shelf: Shelf) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
        shelf.let_go()  # before the rigs close


@pytest.fixture(params=BACKENDS)
def open_rig(request: pytest.FixtureRequest, shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over each of them."""
    return Opener(request.param, shelf, stack)


@pytest.fixture
def open_shelf(shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over the store that can misbehave."""
    return Opener("shelf", shelf, stack)


@pytest.fixture
def open_memory(shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over the pinned backend that is always there."""
    return Opener("memory", shelf, stack)


class Clock:
    """Stands still until told otherwise."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def store_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every block store's worker."""
    clock = Clock(store_worker.time.monotonic())
    monkeypatch.setattr(store_worker, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def keys() -> list[bytes]:
    """Eight keys in prefix order."""
    return [content_key("prompt", number) for number in range(8)]


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What kvconn logged so far, one line each."""
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("kvconn")]
