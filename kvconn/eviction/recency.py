"""An exact recency order over integers, cheap enough for the scheduler's thread.

A linked list costs eight list accesses a touch.  This order appends instead: every use of an
entry adds one *mention* at the young end and counts it; a mention taken out at the old end is the
entry's place only when it was its last one.  Each mention is written once and read once, so all
operations are amortised constant, and the order is exactly least recently used.

Mentions lie in tuples of some hundred integers: the garbage collector stops following such a
tuple after its first look, where a list of a million integers would cost it milliseconds each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

__all__ = ["RecencyOrder"]

_BATCH = 256


class RecencyOrder:
    """Entries below ``capacity`` from least to most recently mentioned."""

    def __init__(self, capacity: int) -> None:
        self._mentions: list[int] = []
        """How often each entry is mentioned below; 0 means that it has no place."""
        self._oldest: Iterator[int] = iter(())
        """What is left of the batch that is being taken out."""
        self._compacted = _Batches()
        """What the present pass of :meth:`_compact` has kept, every entry once."""
        self._unseen: deque[_Batches] = deque()
        """What that pass has still to look at; younger than what it has kept."""
        self._recent = _Batches()
        """What was mentioned since it began; younger still."""
        self._size = 0
        self._limit = 2 * capacity + 4 * _BATCH

    def mention(self, entries: Sequence[int]) -> None:
        """Make ``entries`` the youngest; the last of them goes before the first."""
        mentions = self._mentions
        try:
            for entry in entries:
                mentions[entry] += 1
        except IndexError:
            # Entries come in ascending order when they are new.  Those before the one that
            # failed are counted already.
            self._mentions.extend([0] * (max(entries) + 1 - len(mentions)))
            for late in entries[entries.index(entry) :]:
                mentions[late] += 1
        self._recent.extend(entries[::-1])
        self._size += len(entries)
        if self._size > self._limit:
            self._compact(len(entries))

    def mention_absent(self, entries: Sequence[int]) -> None:
        """Mention those of ``entries`` that have lost their place; each had one before."""
        mentions = self._mentions
        absent = [entry for entry in entries if not mentions[entry]]
        if absent:
            self.mention(absent)

    def __contains__(self, entry: int) -> bool:
        return entry < len(self._mentions) and self._mentions[entry] > 0

    def pop_oldest(self) -> Iterator[int]:
        """Take entries out from the oldest on, for as long as the caller asks."""
        mentions = self._mentions
        while True:
            for entry in self._oldest:
                left = mentions[entry] - 1
                mentions[entry] = left
                if not left:
                    yield entry
            batch = self._compacted.pop() or self._pop_unseen() or self._recent.pop()
            if not batch:
                return
            self._size -= len(batch)
            self._oldest = iter(batch)

    def _pop_unseen(self) -> Sequence[int]:
        while self._unseen:
            if batch := self._unseen[0].pop():
                return batch
            self._unseen.popleft()
        return ()

    def _compact(self, added: int) -> None:
        """Drop stale mentions at the old end, about twice as many steps as mentions came.

        The count tells whether a mention is the last one only while every other one is younger.
        An entry that this pass has kept and that is mentioned again has an older one; so the pass
        ends where the mentions begin that came after its start, and another one starts over.
        """
        # What an eviction took out and did not use is older than all else.
        leftover = list(self._oldest)
        self._oldest = iter(())
        self._size += len(leftover)
        self._compacted.put_first(self._last_mentions(leftover))
        steps = 0
        while steps < 2 * added:
            batch = self._pop_unseen()
            if not batch:
                self._unseen.extend((self._compacted, self._recent))
                self._compacted, self._recent = _Batches(), _Batches()
                batch = self._pop_unseen()
            steps += len(batch)
            self._compacted.extend(self._last_mentions(batch))

    def _last_mentions(self, batch: Sequence[int]) -> list[int]:
        """Those of ``batch`` that no younger mention follows; the others are taken off."""
        mentions, last = self._mentions, []
        for entry in batch:
            if mentions[entry] > 1:
                mentions[entry] -= 1
            else:
                last.append(entry)
        self._size -= len(batch) - len(last)
        return last


class _Batches:
    """A queue of integers in frozen batches, and an open one at the young end."""

    def __init__(self) -> None:
        self._frozen: deque[tuple[int, ...]] = deque()
        self._open: list[int] = []

    def extend(self, entries: Sequence[int]) -> None:
        self._open.extend(entries)
        if len(self._open) >= _BATCH:
            self._frozen.append(tuple(self._open))
            self._open.clear()

    def put_first(self, entries: Sequence[int]) -> None:
        if entries:
            self._frozen.appendleft(tuple(entries))

    def pop(self) -> tuple[int, ...]:
        """The oldest batch; empty when there is none."""
        if self._frozen:
            return self._frozen.popleft()
        batch = tuple(self._open)
        self._open.clear()
        return batch
