"""What an eviction policy must answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from kvconn.identity import Key
from kvconn.keytable import KeyTable

__all__ = ["EvictionPolicy"]


class EvictionPolicy(ABC):
    """Orders the entries of one index; constant amortised time per entry and call.

    Entries are integers below ``capacity``.  Batches come in prefix order, shallow first; within
    a batch the deepest entry must go first, since a prefix without its head is of no use.
    Called from the scheduler's thread only.
    """

    contract_version: ClassVar[int]

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    @abstractmethod
    def insert(self, entries: Sequence[int], keys: Sequence[Key]) -> None:
        """``entries`` became visible under ``keys``."""

    @abstractmethod
    def touch(self, entries: Sequence[int]) -> None:
        """``entries`` were used by another request."""

    def refresh(self, entries: Sequence[int]) -> None:
        """``entries`` make up one prefix, used by the request that used or stored them before.

        Puts them in order, deepest first, without counting as another use.
        """
        self.touch(entries)

    @abstractmethod
    def evict(self, count: int, pins: Sequence[int], keys: KeyTable) -> list[int]:
        """Choose and forget up to ``count`` entries whose pin count is zero.

        ``pins[e]`` is positive for an entry that a lease or a transfer holds and negative for one
        that is free or still being written; ``keys[e]`` is its key.  An entry passed over because
        it is pinned need not be looked at again until :meth:`unpinned` names it.
        """

    @abstractmethod
    def unpinned(self, entries: Sequence[int]) -> None:
        """The last pin of each of ``entries`` was given up; they may have been passed over."""

    @abstractmethod
    def remove(self, entries: Sequence[int]) -> None:
        """``entries`` are gone without having been chosen here (failed, or reset)."""
