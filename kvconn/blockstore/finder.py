"""Asks a store, off the scheduler's thread, what is there that the index does not know.

Two kinds of chunks are: those that others stored, and those that an earlier process stored and
that the scan has not come to.  A question is about a run of keys; until it is answered, or its
time has passed, its first key is neither a hit nor a miss.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvconn.blockstore.breaker import Breaker
from kvconn.guard import Guard
from kvconn.threads import Workers

if TYPE_CHECKING:
    from kvconn.identity import Key

__all__ = ["Finder"]

_PATIENCE_S = 1.0
"""After so long a question is answered with *not there*."""
_ABSENT_S = 1.0
"""For so long it is not asked again whether an absent key is there."""
_MOST_ABSENT = 1 << 16
_MOST_KEYS = 1 << 10
"""Of one question; the rest of a longer run is asked about once these are found."""
_BATCH = 64


@dataclass(slots=True, eq=False)
class _Question:
    keys: list[Key]
    asked: float
    found: int = 0
    """How many leading keys are there, once it is answered."""
    failed: bool = False
    deletions: int = 0
    """Calls of :meth:`Finder.gone` before it was asked."""


class Finder:
    """Scheduler thread, but for the asking itself."""

    def __init__(
        self,
        exist: Callable[[Sequence[Key]], list[bool]],
        guard: Guard,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``exist`` says of each key whether the whole chunk is there; it may do I/O and raise."""
        self._exist = exist
        self._guard = guard
        self._clock = clock
        self._breaker = Breaker(clock=clock)
        self._open: dict[Key, _Question] = {}
        """By the first key."""
        self._absent: dict[Key, float] = {}
        """Keys that are not there, and until when that is believed; oldest first."""
        self._deletions = 0
        self._gone: dict[Key, int] = {}
        """Keys that were to be deleted while questions were open, and when."""
        self._answered: queue.SimpleQueue[_Question] = queue.SimpleQueue()
        self._workers = Workers(1, "find")

    def must_ask_again(self, keys: Sequence[Key], at: int) -> bool:
        """Whether it is on its way to be known if ``keys[at]`` is there; asks when nobody has."""
        key, now = keys[at], self._clock()
        question = self._open.get(key)
        if question is None:
            if self._absent.get(key, 0.0) > now or not self._breaker.lets_through():
                return False
            question = _Question(list(keys[at : at + _MOST_KEYS]), now, deletions=self._deletions)
            self._open[key] = question
            self._workers.put(partial(self._answer, question))
        elif question.asked + _PATIENCE_S <= now:
            del self._open[key]
            self._breaker.failed()
            self._remember_absent(key, now)
            return False
        return True

    def take(self) -> list[Key]:
        """The keys that were found since the last call, in prefix order per question."""
        found: list[Key] = []
        with suppress(queue.Empty):
            while True:
                question = self._answered.get_nowait()
                if self._open.get(question.keys[0]) is question:
                    del self._open[question.keys[0]]
                    (self._breaker.failed if question.failed else self._breaker.succeeded)()
                self._leave_out_gone(question)
                found += question.keys[: question.found]
                if question.found < len(question.keys):
                    self._remember_absent(question.keys[question.found], self._clock())
        return found

    def gone(self, keys: Iterable[Key]) -> None:
        """``keys`` are to be deleted: that one was seen before says nothing any more."""
        if self._open:
            self._deletions += 1
            self._gone.update(dict.fromkeys(keys, self._deletions))
        else:
            self._gone.clear()

    def everything_gone(self) -> None:
        """The same of every key."""
        self.gone(key for question in self._open.values() for key in question.keys)

    def _leave_out_gone(self, question: _Question) -> None:
        gone = self._gone
        if not gone:
            return
        for i, key in enumerate(question.keys[: question.found]):
            if gone.get(key, 0) > question.deletions:
                question.found = i
                return

    def found_in_vain(self, keys: Iterable[Key]) -> None:
        """There is no place for ``keys`` now: for a while they are misses, and not asked about."""
        now = self._clock()
        for key in keys:
            self._remember_absent(key, now)

    @property
    def open_questions(self) -> int:
        """Questions without an answer."""
        return len(self._open)

    def close(self, deadline: float) -> bool:
        """Whether the thread ended within ``deadline`` seconds."""
        return self._workers.close(deadline)

    def _remember_absent(self, key: Key, now: float) -> None:
        self._absent.pop(key, None)
        self._absent[key] = now + _ABSENT_S
        while len(self._absent) > _MOST_ABSENT:
            del self._absent[next(iter(self._absent))]

    # -- the thread that asks --------------------------------------------------------------

    def _answer(self, question: _Question) -> None:
        keys = question.keys
        for start in range(0, len(keys), _BATCH):
            try:
                there = self._exist(keys[start : start + _BATCH])
            except BaseException as error:  # noqa: BLE001 - F2
                self._guard.failed("exists", error, "taken as not there")
                question.failed = True
                break
            if not all(there):
                question.found += there.index(False)
                break
            question.found += len(there)
        self._answered.put(question)
