"""Which chunks a backend holds, who leases them, and what goes to make room.

The scheduler-side half of every backend with a capacity of its own.  All operations are batched
and amortised constant per key; the structure is chosen for what CPython does cheaply:

* a chunk is an *entry*, an integer below the capacity that is re-used; parallel lists hold its
  key and its pins, so that no object per chunk burdens the garbage collector;
* the keys lie in 256 small dicts, since growing one dict of a million keys stops the scheduler
  for tens of milliseconds, and deleting from a dict makes it grow again and again;
* a chunk that is still being written is not in those dicts: it cannot be found by mistake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from kvconn.eviction import EvictionPolicy
from kvconn.identity import Key
from kvconn.keytable import SPAN_BITS, KeyTable
from kvconn.leases import Lease

__all__ = ["ChunkIndex"]

_FREE = -1
"""Pin count of an entry that is free or being written."""


class ChunkIndex:
    """An index of at most ``capacity`` chunks.  One thread: the scheduler's."""

    def __init__(
        self,
        capacity: int,
        eviction: EvictionPolicy,
        *,
        lease_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity = capacity
        self._eviction = eviction
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._ready: list[dict[Key, int]] = [{} for _ in range(256)]
        self._writing: dict[Key, int] = {}
        self._abandoned: set[int] = set()
        """Entries still being written for a key that nobody wants any more (after a reset)."""
        self._key_of = KeyTable()
        self._pins: list[int] = []
        self._free: list[int] = []
        self._idle = 0
        """Entries that can be found and that nobody pins: what can be evicted."""
        self._dropped: set[int] = set()
        """Entries that can no longer be found but are still pinned."""
        self._leases: dict[str, Lease] = {}
        self._unpinned_leases: dict[str, Lease] = {}
        self._version = 0
        self.places: list[int] = []
        """The entries of the keys that the last :meth:`reserve` evicted."""
        self.evicted = 0
        """Entries evicted since the index was made."""

    # -- reading ---------------------------------------------------------------------------

    def lookup(self, owner: str, keys: Sequence[Key]) -> int:
        """Length of the leading run of ``keys`` that can be loaded; ``owner`` leases it.

        Replaces what ``owner`` leased before.  Asking the same again costs one comparison.
        """
        old = self._leases.pop(owner, None)
        if old is not None and old.version == self._version and old.asked == keys:
            old.expires = self._clock() + self._lease_seconds
            self._leases[owner] = old
            return old.count
        ready = self._ready
        for key in keys:
            if key not in ready[key[-1]]:
                count = keys.index(key)
                break
        else:
            count = len(keys)
        if old is not None:
            self._end_lease(owner, old)
        if count:
            expires = self._clock() + self._lease_seconds
            lease = Lease(list(keys), count, self._version, expires)
            self._leases[owner] = self._unpinned_leases[owner] = lease
        return count

    def release(self, owner: str) -> None:
        """Give up what ``owner`` leases; nothing if it leases nothing."""
        lease = self._leases.pop(owner, None)
        if lease is not None:
            self._end_lease(owner, lease)

    def take(self, owner: str, keys: Sequence[Key]) -> list[int]:
        """Turn ``owner``'s lease into pins on the leading run of ``keys`` that is still there.

        The caller now owns one pin per returned entry and gives it up with :meth:`loaded`.  What
        was leased beyond that is released.  Without a lease, the keys are looked up anew.
        """
        lease = self._leases.pop(owner, None)
        if lease is not None and lease.pinned and lease.asked[: len(keys)] == keys:
            entries = lease.entries[: len(keys)]
            if self._dropped:
                gone = (i for i, entry in enumerate(entries) if entry in self._dropped)
                entries = entries[: next(gone, len(entries))]
        else:
            entries = self._find_leading(keys)
        self._pin(entries)
        if lease is not None:
            self._end_lease(owner, lease)
        return entries

    def _find_leading(self, keys: Sequence[Key]) -> list[int]:
        ready = self._ready
        entries: list[int] = []
        for key in keys:
            entry = ready[key[-1]].get(key)
            if entry is None:
                break
            entries.append(entry)
        return entries

    def _pin(self, entries: Sequence[int]) -> None:
        pins = self._pins
        newly_pinned = 0
        for entry in entries:
            count = pins[entry]
            pins[entry] = count + 1
            if not count:
                newly_pinned += 1
        self._idle -= newly_pinned

    def _pin_leases(self) -> None:
        """Pin what is leased, before anything is removed.

        Most leases are used or given up before that, so that :meth:`lookup` leaves it to here.
        """
        for lease in self._unpinned_leases.values():
            # Nothing was removed since the lookup, so the same keys are found again.
            lease.entries = self._find_leading(lease.asked[: lease.count])
            lease.pinned = True
            self._pin(lease.entries)
        self._unpinned_leases.clear()

    def _end_lease(self, owner: str, lease: Lease) -> None:
        if lease.pinned:
            self._unpin(lease.entries)
        else:
            del self._unpinned_leases[owner]

    def loaded(
        self, keys: Sequence[Key], entries: Sequence[int], verdicts: Sequence[bool]
    ) -> list[Key]:
        """Give up the pins that :meth:`take` gave; a key that failed is forgotten.

        Answers the keys that are a miss from here on: not one that was stored anew meanwhile.
        """
        dropped: list[Key] = []
        if not all(verdicts):
            dropped = [
                key
                for key, entry, good in zip(keys, entries, verdicts, strict=True)
                if not good and self._drop(key, entry)
            ]
        self._unpin(entries)
        return dropped

    def touch(self, keys: Sequence[Key], *, again: bool = False) -> None:
        """Those of ``keys`` that are here were used; ``again``: by the same request as before."""
        ready = self._ready
        try:
            found = [ready[key[-1]][key] for key in keys]  # as a rule all are here
        except KeyError:
            found = [entry for key in keys if (entry := ready[key[-1]].get(key)) is not None]
        if found:
            (self._eviction.refresh if again else self._eviction.touch)(found)

    # -- writing ---------------------------------------------------------------------------

    def reserve(
        self, keys: Sequence[Key], at_most: int | None = None
    ) -> tuple[list[Key], list[int], list[Key]]:
        """Make room for those of ``keys`` that are neither here nor being written.

        Answers ``(accepted keys, their entries, evicted keys)``.  When room is short, or only
        ``at_most`` are wanted, the leading keys get it.  When nothing can be evicted the answer is
        given in constant time.
        """
        ready, writing = self._ready, self._writing
        wanted = [key for key in keys if key not in ready[key[-1]] and key not in writing]
        if not wanted:
            return [], [], []
        if len(set(wanted)) < len(wanted):
            wanted = list(dict.fromkeys(wanted))
        if at_most is not None:
            wanted = wanted[:at_most]
        evicted = self.make_room(len(wanted))
        entries = self._allocate(len(wanted))
        accepted = wanted if len(entries) == len(wanted) else wanted[: len(entries)]
        spans = self._key_of.spans
        for key, entry in zip(accepted, entries, strict=True):
            spans[entry >> SPAN_BITS][entry] = key
            writing[key] = entry
        return accepted, entries, evicted

    @property
    def room(self) -> int:
        """Entries that nothing uses."""
        return len(self._free) + self.capacity - len(self._pins)

    def make_room(self, count: int) -> list[Key]:
        """Evict until ``count`` entries are free, or nothing more can be evicted."""
        missing = count - self.room
        self.places = []
        if missing <= 0:
            return []
        self._pin_leases()
        missing = min(missing, self._idle)
        if not missing:
            return []
        self.places, evicted = self._evict(missing)
        self._free += self.places
        return evicted

    def _evict(self, count: int) -> tuple[list[int], list[Key]]:
        """Up to ``count`` idle entries that can no longer be found, not free yet; their keys."""
        ready, pins, spans = self._ready, self._pins, self._key_of.spans
        victims = self._eviction.evict(count, pins, self._key_of)
        evicted: list[Key] = []
        for entry in victims:
            key = spans[entry >> SPAN_BITS][entry]
            del ready[key[-1]][key]
            pins[entry] = _FREE
            evicted.append(key)
        self._idle -= len(victims)
        self.evicted += len(victims)
        self._version += 1
        return victims, evicted

    def withdraw(self, count: int) -> tuple[list[Key], list[int]]:
        """Evict up to ``count`` keys whose bytes go only later; their entries stay taken.

        Answers ``(evicted keys, their entries)``; :meth:`free` ends it.
        """
        self._pin_leases()
        count = min(count, self._idle)
        if not count:
            return [], []
        entries, evicted = self._evict(count)
        return evicted, entries

    def free(self, entries: Sequence[int]) -> None:
        """The bytes of these withdrawn entries are gone: others may have their place."""
        self._free += entries

    def _allocate(self, count: int) -> list[int]:
        """Up to ``count`` free entries; fresh ones are consecutive, which copies like."""
        free, first = self._free, len(self._pins)
        fresh = min(count, self.capacity - first)
        entries = list(range(first, first + fresh))
        self._pins += [_FREE] * fresh
        self._key_of.reach(first + fresh)
        if fresh < count and free:
            entries += free[: -(count - fresh) - 1 : -1]
            del free[-(count - fresh) :]
        return entries

    def stored(
        self, keys: Sequence[Key], entries: Sequence[int], verdicts: Sequence[bool]
    ) -> tuple[list[Key], list[Key]]:
        """End what :meth:`reserve` began: good keys can be found from now on.

        Answers ``(keys that can be found now, lost keys)``.  Lost is what came to nothing, failed
        or dropped meanwhile, and what nobody has stored or reserved anew: whatever bytes it left
        behind are waste.
        """
        ready, writing, pins = self._ready, self._writing, self._pins
        kept_keys: list[Key] = []
        kept: list[int] = []
        lost: list[Key] = []
        for key, entry, good in zip(keys, entries, verdicts, strict=True):
            if writing.get(key) == entry:
                del writing[key]
                if good:
                    ready[key[-1]][key] = entry
                    pins[entry] = 0
                    kept_keys.append(key)
                    kept.append(entry)
                    continue
            self._abandoned.discard(entry)
            self._release_entry(entry)
            if key not in writing and key not in ready[key[-1]]:
                lost.append(key)
        if kept:
            self._idle += len(kept)
            self._version += 1
            self._eviction.insert(kept, kept_keys)
        return kept_keys, lost

    def adopt(self, keys: Sequence[Key]) -> list[Key]:
        """Take over chunks that are stored already, the youngest first, as long as there is room.

        Nothing is evicted for them.  Answers those that were taken over.
        """
        ready = self._ready
        new = [key for key in dict.fromkeys(keys) if not self.holds(key)]
        entries = self._allocate(len(new))
        adopted = new[: len(entries)]
        spans = self._key_of.spans
        for key, entry in zip(adopted, entries, strict=True):
            spans[entry >> SPAN_BITS][entry] = key
            ready[key[-1]][key] = entry
            self._pins[entry] = 0
        if adopted:
            self._idle += len(adopted)
            self._version += 1
            self._eviction.insert(entries, adopted)
        return adopted

    # -- the whole -------------------------------------------------------------------------

    def expire(self) -> int:
        """Release the leases that ran out; how many."""
        now, late = self._clock(), 0
        # A lease is put at the end whenever it is renewed: the first is the first to run out.
        while self._leases:
            owner, lease = next(iter(self._leases.items()))
            if lease.expires > now:
                break
            self.release(owner)
            late += 1
        return late

    def forget(self, keys: Sequence[Key]) -> None:
        """Drop those of ``keys`` that are here; a pinned one goes when its last pin does."""
        for key in keys:
            entry = self._ready[key[-1]].get(key)
            if entry is not None:
                self._drop(key, entry)

    def forget_idle(self, keys: Sequence[Key]) -> list[Key]:
        """Drop those of ``keys`` that nobody pins or leases; answers the others that are here."""
        self._pin_leases()
        kept: list[Key] = []
        for key in keys:
            entry = self._ready[key[-1]].get(key)
            if entry is not None:
                if self._pins[entry]:
                    kept.append(key)
                else:
                    self._drop(key, entry)
        return kept

    def clear(self) -> int:
        """Drop everything; how many could be found before.  Stores in flight come to nothing."""
        count = len(self)
        self.forget(list(self))
        self._abandoned.update(self._writing.values())
        self._writing.clear()
        return count

    def holds(self, key: Key) -> bool:
        """Whether ``key`` can be found, or is being written to be found."""
        return key in self._ready[key[-1]] or key in self._writing

    def has(self, key: Key) -> bool:
        """Whether ``key`` can be found."""
        return key in self._ready[key[-1]]

    @property
    def abandoned_keys(self) -> list[Key]:
        """Keys that are being written though nobody wants them any more."""
        return [self._key_of[entry] for entry in self._abandoned]

    def __iter__(self) -> Iterator[Key]:
        """The keys that can be found."""
        return (key for shard in self._ready for key in shard)

    def __len__(self) -> int:
        """Entries that can be found."""
        return sum(map(len, self._ready))

    @property
    def leases(self) -> int:
        """Requests that hold a lease."""
        return len(self._leases)

    @property
    def reservations(self) -> int:
        """Entries set aside for stores in flight."""
        return len(self._writing) + len(self._abandoned)

    @property
    def used(self) -> int:
        """Entries that are not free, stores in flight included; never above ``capacity``."""
        return len(self._pins) - len(self._free)

    # -- entries ---------------------------------------------------------------------------

    def _unpin(self, entries: Sequence[int]) -> None:
        pins = self._pins
        idle: list[int] = []
        for entry in entries:
            count = pins[entry] - 1
            pins[entry] = count
            if not count:
                idle.append(entry)
        if self._dropped:
            gone = [entry for entry in idle if entry in self._dropped]
            self._dropped.difference_update(gone)
            for entry in gone:
                self._release_entry(entry)
            idle = [entry for entry in idle if pins[entry] == 0]
        if idle:
            self._idle += len(idle)
            self._eviction.unpinned(idle)

    def _drop(self, key: Key, entry: int) -> bool:
        """Make ``key`` a miss from here on, if ``entry`` still is what it names."""
        shard = self._ready[key[-1]]
        if shard.get(key) != entry:
            return False
        self._pin_leases()
        del shard[key]
        self._version += 1
        self._eviction.remove([entry])
        if self._pins[entry]:
            self._dropped.add(entry)
        else:
            self._idle -= 1
            self._release_entry(entry)
        return True

    def _release_entry(self, entry: int) -> None:
        self._pins[entry] = _FREE
        self._free.append(entry)
