"""F4: what the scheduler's thread may do, in counts and not in seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kvconn.identity import content_key
from kvconn.testing.counting import CountingBackend
from kvconn.testing.faults import Faults, FaultyStore
from kvconn.testing.rig import Rig
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvconn.backend import Backend
    from kvconn.identity import Key

__all__ = ["CountRules"]

PLAIN, READER = Request("plain"), Request("reader")
_SLOW = (
    "open", "os.", "shutil.", "socket.", "sqlite3.", "subprocess.", "urllib.",
    "http.", "ftplib.", "smtplib.", "tempfile.", "mmap.", "fcntl.", "pathlib.", "glob.", "import",
)  # fmt: skip
"""Events of Python's audit hooks that tell of I/O or of sleeping."""


class _Watch:
    """Notes what the watched thread does; one hook for the whole process, since none can go."""

    def __init__(self) -> None:
        self.thread = 0
        self.seen: list[str] = []
        self.installed = False

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.thread and threading.get_ident() == self.thread and event.startswith(_SLOW):
            self.seen.append(f"{event}{arguments!r:.80}")


_WATCH = _Watch()


@contextmanager
def watched() -> Iterator[list[str]]:
    """What this thread does in the meantime that takes time: I/O, sleeping, imports."""
    if not _WATCH.installed:
        sys.addaudithook(_WATCH.hook)
        _WATCH.installed = True
    _WATCH.seen = []
    _WATCH.thread = threading.get_ident()
    sleep = time.sleep

    def noted(seconds: Any) -> None:  # noqa: ANN401 - whatever sleep takes
        if threading.get_ident() == _WATCH.thread:
            _WATCH.seen.append(f"time.sleep({seconds})")
        sleep(seconds)

    time.sleep = noted  # no audit event tells of it
    try:
        yield _WATCH.seen
    finally:
        time.sleep = sleep
        _WATCH.thread = 0


class _Door(FaultyStore):
    """Notes which thread calls which method, and with how many objects."""

    def __init__(self, inner: Any, calls: list[tuple[str, int, int]]) -> None:  # noqa: ANN401
        super().__init__(inner, Faults())
        self.calls = calls

    def _call(self, work: Callable[..., list[bool]], *lists: Sequence[Any]) -> list[bool]:
        self.calls.append((work.__name__, threading.get_ident(), len(lists[0])))
        return super()._call(work, *lists)


def live(rig: Rig, keys: list[Key], number: int, *, moves: bool = True) -> None:
    """The scheduler's calls of one request; its transfers are completed without having moved."""
    request = Request(f"{number}")
    scheduler = rig.scheduler
    scheduler.request_started(request)
    found = scheduler.lookup(request, keys) or 0
    for _ in range(2):
        scheduler.lookup(request, keys)
    if found:
        load = scheduler.prepare_load(request, keys[:found])
        if load is not None:
            scheduler.complete_transfer(load, [moves] * len(load.keys))
    scheduler.touch(request, keys)
    new = [content_key(number, i) for i in range(4)]
    plan = scheduler.prepare_store(request, new)
    if plan.transfer is not None:
        scheduler.complete_transfer(plan.transfer, [moves] * len(plan.accepted))
    scheduler.request_finished(request)
    scheduler.step()
    scheduler.has_pending_work()
    scheduler.collect_stats()
    scheduler.take_events()


class CountRules(Kit):
    """Floors of performance that hold on any machine."""

    def test_F4_scheduler_side_calls_do_no_io_and_do_not_sleep(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        rig.store(PLAIN, keys[:4])
        live(rig, keys[:4], -1)  # what is imported or made at the first use
        with watched() as seen:
            for number in range(6):
                live(rig, keys[:4], number, moves=number % 2 == 0)
            rig.scheduler.reset()
            rig.scheduler.step()
        assert not seen, f"on the scheduler's thread: {Counter(seen).most_common(3)}"

    @needs("keeps", "block_store")
    def test_F4_the_scheduler_never_calls_the_store_itself(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        calls: list[tuple[str, int, int]] = []
        rig = self._open_watched(open_rig, calls, chunks=8)
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        rig.load(READER, keys)
        rig.scheduler.request_finished(READER)
        rig.fill(4)
        rig.scheduler.reset()
        rig.sweep()
        ours = [name for name, thread, _ in calls if thread == threading.get_ident()]
        assert calls, "the store was never called"
        assert not ours, f"called on the engine's thread: {Counter(ours)}"

    @needs("keeps", "block_store")
    def test_F4_one_object_is_put_once_and_got_once_in_batches(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        calls: list[tuple[str, int, int]] = []
        rig = self._open_watched(open_rig, calls, chunks=16)
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        rig.load(READER, keys)
        for method in ("put", "get"):
            batches = [count for name, _, count in calls if name == method]
            assert sum(batches) == 8, f"{method} moved {sum(batches)} objects for 8 chunks"
            assert len(batches) <= 8

    def test_F4_one_request_costs_one_call_of_each_hook(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(wrap=CountingBackend)
        request = Request("one")
        rig.scheduler.request_started(request)
        found = rig.scheduler.lookup(request, keys)
        rig.scheduler.touch(request, keys)
        rig.store(request, keys[found or 0 :])
        rig.scheduler.request_finished(request)
        calls = rig.backend.plain
        counts = (calls.started, calls.lookups, calls.touches, calls.offers, calls.finished)
        assert counts == (1, 1, 1, 1, 1)

    def test_F4_asking_again_in_every_step_makes_nothing_grow(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:4])
        figures = []
        for _ in range(3):
            for _ in range(50):
                rig.lookup(READER, keys)
                rig.step()
            held = rig.figures()
            figures.append({name: held.get(name) for name in ("leases", "entries", "questions")})
        assert figures[0] == figures[1] == figures[2]

    @needs("keeps")
    def test_F4_a_worker_copies_each_page_once(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(chunks=16)
        with copied() as counted:
            rig.store(PLAIN, keys)
            rig.lookup(READER, keys)
            rig.load(READER, keys)
        if not counted["gather"]:
            return  # it makes its copies in a way of its own, which nobody can count
        if "one_tier" in self.capabilities():
            assert counted == {"gather": 8, "scatter": 8}

    def _open_watched(
        self,
        open_rig: Open,
        calls: list[tuple[str, int, int]],
        **how: Any,  # noqa: ANN401
    ) -> Rig:
        honest = self.make_backend

        def make(capacity: int) -> Backend:
            backend: Any = honest(capacity)
            backend.Store = partial(_door, backend.Store, calls)
            return backend  # type: ignore[no-any-return] # it is one

        self.make_backend = make  # type: ignore[method-assign] # for this test's instance
        return open_rig(**how)


def _door(inner: Any, calls: list[tuple[str, int, int]], config: Any) -> _Door:  # noqa: ANN401
    return _Door(inner(config), calls)


@contextmanager
def copied() -> Iterator[Counter[str]]:
    """How many chunks are copied between pages and slots in the meantime, by direction."""
    from kvconn.memory import Copier  # noqa: PLC0415 - patched here

    counted: Counter[str] = Counter()
    honest = {name: getattr(Copier, name) for name in ("gather", "scatter")}

    def counting(name: str) -> Callable[..., Any]:
        def copy(copier: Copier, blocks: Sequence[Any], slots: Sequence[int]) -> Any:  # noqa: ANN401
            counted[name] += len(slots)
            return honest[name](copier, blocks, slots)

        return copy

    try:
        for name in honest:
            setattr(Copier, name, counting(name))
        yield counted
    finally:
        for name, method in honest.items():
            setattr(Copier, name, method)
