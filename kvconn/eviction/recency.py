"""An exact recency order over integers, cheap enough for the scheduler's thread.

A linked list costs eight list accesses a touch.  This order appends instead: every use of an
entry adds one *mention* at the young end and counts it; a mention popped at the old end is the
entry's place only when it was its last one.  Each mention is written once and read once, so all
operations are amortised constant, and the order is exactly least recently used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

__all__ = ["RecencyOrder"]


class RecencyOrder:
    """Entries below ``capacity`` from least to most recently mentioned."""

    def __init__(self, capacity: int) -> None:
        self._mentions: list[int] = []
        self._old: deque[int] = deque()
        """Already compacted; older than everything in ``_young``."""
        self._young: deque[int] = deque()
        self._limit = 2 * capacity + 1024

    def _grow(self, entry: int) -> None:
        missing = entry + 1 - len(self._mentions)
        self._mentions.extend([0] * missing)

    def mention(self, entries: Sequence[int]) -> None:
        """Make ``entries`` the youngest; the last of them goes before the first."""
        mentions = self._mentions
        try:
            for entry in entries:
                mentions[entry] += 1
        except IndexError:
            # Entries are handed out in ascending order: growing is rare, counting twice is not
            # possible because the failing entry and those after it were not counted yet.
            done = entries.index(entry)
            self._grow(max(entries))
            for entry in entries[done:]:
                mentions[entry] += 1
        self._young.extend(reversed(entries))
        if len(self._young) + len(self._old) > self._limit:
            self._compact(2 * len(entries) + 16)

    def mention_absent(self, entries: Sequence[int]) -> None:
        """Mention those of ``entries`` that the order does not hold at all."""
        mentions = self._mentions
        absent = [entry for entry in entries if not mentions[entry]]
        if absent:
            self.mention(absent)

    def __contains__(self, entry: int) -> bool:
        return entry < len(self._mentions) and self._mentions[entry] > 0

    def pop_oldest(self) -> Iterator[int]:
        """Take entries out from the oldest on, for as long as the caller asks."""
        mentions = self._mentions
        for queue in (self._old, self._young):
            while queue:
                entry = queue.popleft()
                left = mentions[entry] - 1
                mentions[entry] = left
                if not left:
                    yield entry

    def _compact(self, steps: int) -> None:
        """Drop stale mentions at the old end, a bounded number of steps at a time.

        Live entries found there move to ``_old``, which keeps their order.  When ``_young`` is
        used up, ``_old`` takes its place and the walk begins anew.
        """
        mentions, young, old = self._mentions, self._young, self._old
        for _ in range(min(steps, len(young))):
            entry = young.popleft()
            if mentions[entry] > 1:
                mentions[entry] -= 1
            else:
                old.append(entry)
        if not young:
            self._old, self._young = young, old
