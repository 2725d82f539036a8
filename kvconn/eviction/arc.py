"""Adaptive replacement: recency and frequency share the capacity by what misses teach.

Source: Megiddo and Modha, *ARC: A Self-Tuning, Low Overhead Replacement Cache*, FAST 2003.
Differences: evictions happen when the index asks, in batches, and pinned entries are passed over.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import ClassVar

from kvconn.eviction.base import EvictionPolicy
from kvconn.eviction.recency import RecencyOrder
from kvconn.identity import Key
from kvconn.keytable import KeyTable

__all__ = ["ARC"]


class ARC(EvictionPolicy):
    """Entries used once (``T1``) and again (``T2``), with ghost keys of what each lost."""

    contract_version: ClassVar[int] = 1

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._once = RecencyOrder(capacity)
        self._again = RecencyOrder(capacity)
        self._in_again: dict[int, bool] = {}
        """Every entry held: whether it is in ``T2``.  A place in the other order is stale."""
        self._frequent = 0
        self._lost_once: OrderedDict[Key, None] = OrderedDict()
        self._lost_again: OrderedDict[Key, None] = OrderedDict()
        self._target = 0.0
        """The share of the capacity, in entries, that ``T1`` should have."""

    def insert(self, entries: Sequence[int], keys: Sequence[Key]) -> None:
        once: list[int] = []
        again: list[int] = []
        for entry, key in zip(entries, keys, strict=True):
            (again if self._learn(key) else once).append(entry)
        self._place(once, again=False)
        self._place(again, again=True)

    def _learn(self, key: Key) -> bool:
        """Whether ``key`` comes back from a ghost list; moves the target towards that list."""
        lost_once, lost_again = len(self._lost_once), len(self._lost_again)
        if key in self._lost_once:
            del self._lost_once[key]
            self._target = min(self.capacity, self._target + max(1.0, lost_again / lost_once))
        elif key in self._lost_again:
            del self._lost_again[key]
            self._target = max(0.0, self._target - max(1.0, lost_once / lost_again))
        else:
            return False
        return True

    def _place(self, entries: Sequence[int], *, again: bool) -> None:
        if entries:
            for entry in entries:
                self._frequent += again - self._in_again.get(entry, False)
                self._in_again[entry] = again
            (self._again if again else self._once).mention(entries)

    def touch(self, entries: Sequence[int]) -> None:
        self._place([entry for entry in entries if entry in self._in_again], again=True)

    def refresh(self, entries: Sequence[int]) -> None:
        self._place([e for e in entries if self._in_again.get(e) is False], again=False)
        self._place([e for e in entries if self._in_again.get(e)], again=True)

    def evict(self, count: int, pins: Sequence[int], keys: KeyTable) -> list[int]:
        victims: list[int] = []
        oldest = {False: self._once.pop_oldest(), True: self._again.pop_oldest()}
        exhausted: set[bool] = set()
        while len(victims) < count and len(exhausted) < len(oldest):
            again = self._choose(exhausted)
            victim = self._next_free(oldest[again], pins, again=again)
            if victim is None:
                exhausted.add(again)
                continue
            self._forget(victim)
            self._remember_lost(keys[victim], again=again)
            victims.append(victim)
        return victims

    def _choose(self, exhausted: set[bool]) -> bool:
        """Whether the next victim comes from ``T2``."""
        if exhausted:
            return False in exhausted
        recent = len(self._in_again) - self._frequent
        return not (recent and recent > self._target)

    def _next_free(self, oldest: object, pins: Sequence[int], *, again: bool) -> int | None:
        for entry in oldest:  # type: ignore[attr-defined]
            if self._in_again.get(entry) is again and not pins[entry]:
                return int(entry)
        return None

    def _remember_lost(self, key: Key, *, again: bool) -> None:
        ghosts = self._lost_again if again else self._lost_once
        ghosts[key] = None
        if len(self._lost_once) + len(self._lost_again) > self.capacity:
            longest = max(self._lost_once, self._lost_again, key=len)
            longest.popitem(last=False)

    def _forget(self, entry: int) -> None:
        self._frequent -= self._in_again.pop(entry, False)

    def unpinned(self, entries: Sequence[int]) -> None:
        for again in (False, True):
            order = self._again if again else self._once
            absent = [e for e in entries if self._in_again.get(e) is again and e not in order]
            if absent:
                order.mention(absent)

    def remove(self, entries: Sequence[int]) -> None:
        for entry in entries:
            self._forget(entry)
