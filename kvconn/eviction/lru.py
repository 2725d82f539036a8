"""Least recently used, deepest first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import ClassVar

from kvconn.eviction.base import EvictionPolicy
from kvconn.eviction.recency import RecencyOrder
from kvconn.identity import Key
from kvconn.keytable import KeyTable

__all__ = ["LRU"]


class LRU(EvictionPolicy):
    """Evicts what was used longest ago; of one batch, the deepest block first."""

    contract_version: ClassVar[int] = 1

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._order = RecencyOrder(capacity)

    def insert(self, entries: Sequence[int], keys: Sequence[Key]) -> None:  # noqa: ARG002
        self._order.mention(entries)

    def touch(self, entries: Sequence[int]) -> None:
        self._order.mention(entries)

    def evict(self, count: int, pins: Sequence[int], keys: KeyTable) -> list[int]:  # noqa: ARG002
        free = (entry for entry in self._order.pop_oldest() if not pins[entry])
        return list(islice(free, count))

    def unpinned(self, entries: Sequence[int]) -> None:
        self._order.mention_absent(entries)

    def remove(self, entries: Sequence[int]) -> None:
        """Nothing to do: a removed entry's pin count is negative, and ``evict`` passes it over."""
