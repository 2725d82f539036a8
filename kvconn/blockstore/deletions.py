"""What goes from a store, off the scheduler's thread.

A key that is being deleted must not be stored meanwhile, or the deletion could overtake the store:
:meth:`Deletions.is_going` says which.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kvconn.threads import Workers

if TYPE_CHECKING:
    from kvconn.blockstore.operations import Operations
    from kvconn.guard import Guard
    from kvconn.identity import Key

__all__ = ["Deletions"]

_AGAIN_S = 5.0
"""Seconds between two attempts to delete from a store that refuses."""
_BATCH = 256


class Deletions:
    """Scheduler thread, but for the deleting itself, which one thread does in order."""

    def __init__(
        self, operations: Operations, ids_of: Callable[[Iterable[Key]], list[bytes]], guard: Guard
    ) -> None:
        """``ids_of`` answers the objects of some keys, every shard of them."""
        self._operations = operations
        self._ids_of = ids_of
        self._guard = guard
        self._unwanted: dict[Key, None] = {}
        """What some rank may hold an object of though nothing refers to it any more."""
        self._entries: dict[Key, int] = {}
        """Of withdrawn keys, the entries that their bytes still take up."""
        self._going: set[Key] = set()
        self._sweeping = 0
        self._swept: queue.SimpleQueue[tuple[list[Key], bool]] = queue.SimpleQueue()
        self._emptied: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._emptying = 0
        self._full = False
        self._freed: list[int] = []
        self._not_before = 0.0
        self._workers = Workers(1, "delete")

    def add(self, keys: Iterable[Key]) -> None:
        """These are not wanted, unless they are stored anew before it comes to them."""
        self._unwanted.update(dict.fromkeys(keys))

    def withdraw(self, keys: Sequence[Key], entries: Sequence[int]) -> None:
        """These go, and then their entries are free."""
        self.add(keys)
        self._entries.update(zip(keys, entries, strict=True))
        self._going.update(keys)

    def travels(self, keys: Iterable[Key]) -> None:
        """A transfer takes the deletion of these along; :meth:`arrived` ends it."""
        self._going.update(keys)

    def arrived(self, keys: Sequence[Key], *, surely: bool) -> None:
        """That transfer ended; if it may not have come to deleting, these are not wanted."""
        self._going.difference_update(keys)
        if not surely:
            self.add(keys)

    def take(self, holds: Callable[[Key], bool]) -> list[Key]:
        """All that is unwanted and not withdrawn, for a transfer to take along."""
        taken = [k for k in self._unwanted if k not in self._entries]
        for key in taken:
            del self._unwanted[key]
        return [key for key in taken if not holds(key)]

    def is_going(self, key: Key) -> bool:
        """Whether ``key`` is being deleted."""
        return key in self._going

    @property
    def must_be_emptied(self) -> bool:
        """Whether a reset has begun and the store is not known to be empty."""
        if self._emptying:
            self._hear()
        return self._full

    @property
    def any_going(self) -> bool:
        """Whether any key is."""
        return bool(self._going)

    @property
    def busy(self) -> bool:
        """Whether something is left to do, and now."""
        if self._sweeping or self._emptying:
            return True
        left = self._unwanted or self._full
        return bool(left) and time.monotonic() >= self._not_before

    @property
    def withdrawn(self) -> int:
        """Keys whose entries are not free yet."""
        return len(self._entries)

    def step(self, holds: Callable[[Key], bool]) -> list[int]:
        """Go on; answers the entries that are free from now on."""
        self._hear()
        if not (self._sweeping or self._emptying or time.monotonic() < self._not_before):
            if self._full:
                self._start_emptying()
            elif self._unwanted:
                self._start_sweep(holds)
        freed, self._freed = self._freed, []
        return freed

    def empty(self) -> None:
        """Delete everything; what cannot be deleted now is tried again (L5)."""
        self._full = True
        self._start_emptying()

    def close(self, deadline: float, unwanted: Iterable[Key], holds: Callable[[Key], bool]) -> bool:
        """What nobody wants does not outlive us; whether the store is not in use any more."""
        self.add(unwanted)
        self._hear()
        if self._full and not self._emptying:
            self._start_emptying()
        left = [key for key in self._unwanted if key in self._entries or not holds(key)]
        if left:
            self._workers.put(partial(self._sweep, left))
        return self._workers.close(deadline)

    # -- inside ----------------------------------------------------------------------------

    def _start_emptying(self) -> None:
        self._emptying += 1
        self._workers.put(self._empty)

    def _start_sweep(self, holds: Callable[[Key], bool]) -> None:
        batch = [key for key, _ in zip(self._unwanted, range(_BATCH), strict=False)]
        for key in batch:
            del self._unwanted[key]
        keys = [key for key in batch if key in self._entries or not holds(key)]
        if keys:
            self._going.update(keys)
            self._sweeping += 1
            self._workers.put(partial(self._sweep, keys))

    def _hear(self) -> None:
        """What the thread has done since the last time."""
        with suppress(queue.Empty):
            while True:
                keys, done = self._swept.get_nowait()
                self._sweeping -= 1
                if done:
                    self._forget(keys)
                else:
                    self._not_before = time.monotonic() + _AGAIN_S
                    self._going.difference_update(set(keys) - self._entries.keys())
                    self.add(keys)
        with suppress(queue.Empty):
            while True:
                emptied = self._emptied.get_nowait()
                self._emptying -= 1
                if emptied and not self._emptying:
                    self._full = False
                    self._forget(list(self._entries))
                elif not emptied:
                    self._not_before = time.monotonic() + _AGAIN_S

    def _forget(self, keys: Sequence[Key]) -> None:
        """These are gone."""
        self._going.difference_update(keys)
        for key in keys:
            self._unwanted.pop(key, None)
            if (entry := self._entries.pop(key, None)) is not None:
                self._freed.append(entry)

    # -- the thread that deletes -----------------------------------------------------------

    def _sweep(self, keys: list[Key]) -> None:
        self._swept.put((keys, self._deleted(lambda: self._ids_of(keys), "bytes are left")))

    def _empty(self) -> None:
        self._emptied.put(
            self._deleted(
                lambda: list(self._operations.scan()), "nothing is stored until it is emptied"
            )
        )

    def _deleted(self, names: Callable[[], list[bytes]], consequence: str) -> bool:
        try:
            doomed = names()
            if doomed:
                self._operations.delete(doomed)
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("delete", error, consequence)
            return False
        return True
