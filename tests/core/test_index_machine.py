"""The index against a model in plain Python: any order of calls, several owners, exact LRU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from kvconn.eviction import recency
from kvconn.eviction.arc import ARC
from kvconn.eviction.lru import LRU
from kvconn.index import ChunkIndex

LEASE_SECONDS = 10.0

KEYS = [bytes([number]) * 16 for number in range(6)]
OWNERS = st.sampled_from(["a", "b", "c"])
ASKED = st.lists(st.sampled_from(KEYS), max_size=4)
PREFIX = st.integers(0, 6).map(lambda length: KEYS[:length])
VERDICTS = st.lists(st.booleans(), min_size=6, max_size=6)


@dataclass(eq=False)
class Chunk:
    """One stored copy of a key; another copy of the same key is another chunk."""

    key: bytes
    pins: int = 0
    gone: bool = False


@dataclass
class Lease:
    asked: list[bytes]
    chunks: list[Chunk]
    expires: float


@dataclass
class PlainIndex:
    """What :class:`ChunkIndex` promises, without any cleverness."""

    capacity: int
    ready: dict[bytes, Chunk] = field(default_factory=dict)
    writing: dict[bytes, Chunk] = field(default_factory=dict)
    abandoned: list[Chunk] = field(default_factory=list)
    dropped: list[Chunk] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    order: list[Chunk] = field(default_factory=list)
    """Least recently used first; a pinned chunk that was passed over has no place."""

    @property
    def used(self) -> int:
        return len(self.ready) + len(self.writing) + len(self.abandoned) + len(self.dropped)

    def leading(self, keys: list[bytes]) -> list[Chunk]:
        count = next((i for i, key in enumerate(keys) if key not in self.ready), len(keys))
        return [self.ready[key] for key in keys[:count]]

    def lookup(self, owner: str, keys: list[bytes], now: float) -> int:
        found = self.leading(keys)
        self.pin(found)
        self.release(owner)
        if found:
            self.leases[owner] = Lease(keys, found, now + LEASE_SECONDS)
        return len(found)

    def take(self, owner: str, keys: list[bytes], count: int) -> list[Chunk]:
        """``count`` chunks; how many is left open where more was stored since the lease."""
        lease, found = self.leases.get(owner), self.leading(keys)
        least = len(found)
        if lease is not None and lease.asked[: len(keys)] == keys:
            least = 0
            for leased, there in zip(lease.chunks, found, strict=False):
                if leased is not there:
                    break
                least += 1
        assert least <= count <= len(found)
        self.pin(found[:count])
        self.release(owner)
        return found[:count]

    def release(self, owner: str) -> None:
        lease = self.leases.pop(owner, None)
        if lease is not None:
            self.unpin(lease.chunks)

    def loaded(self, chunks: list[Chunk], verdicts: list[bool]) -> list[bytes]:
        failed = [chunk for chunk, good in zip(chunks, verdicts, strict=True) if not good]
        dropped = [chunk.key for chunk in failed if self.drop(chunk)]
        self.unpin(chunks)
        return dropped

    def touch(self, keys: list[bytes]) -> None:
        self.mention([self.ready[key] for key in keys if key in self.ready])

    def reserve(self, keys: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        wanted = list(dict.fromkeys(k for k in keys if k not in self.ready | self.writing))
        evicted = self.make_room(len(wanted) - (self.capacity - self.used))
        accepted = wanted[: self.capacity - self.used]
        self.writing |= {key: Chunk(key) for key in accepted}
        return accepted, evicted

    def make_room(self, missing: int) -> list[bytes]:
        idle = sum(not chunk.pins for chunk in self.ready.values())
        evicted: list[bytes] = []
        while len(evicted) < min(missing, idle):
            oldest = self.order.pop(0)
            if not oldest.gone and not oldest.pins:
                self.drop(oldest)
                evicted.append(oldest.key)
            idle = len(evicted) + sum(not chunk.pins for chunk in self.ready.values())
        return evicted

    def stored(self, chunks: list[Chunk], verdicts: list[bool]) -> tuple[list[bytes], list[bytes]]:
        kept, lost = [], []
        for chunk, good in zip(chunks, verdicts, strict=True):
            if self.writing.get(chunk.key) is chunk:
                del self.writing[chunk.key]
                if good:
                    self.ready[chunk.key] = chunk
                    kept.append(chunk)
                    continue
            else:
                self.abandoned.remove(chunk)
            if chunk.key not in self.writing and chunk.key not in self.ready:
                lost.append(chunk.key)
        self.mention(kept)
        return [chunk.key for chunk in kept], lost

    def clear(self) -> int:
        count = len(self.ready)
        for chunk in list(self.ready.values()):
            self.drop(chunk)
        self.abandoned += self.writing.values()
        self.writing = {}
        return count

    def forget(self, keys: list[bytes]) -> None:
        for key in keys:
            if key in self.ready:
                self.drop(self.ready[key])

    def expire(self, now: float) -> int:
        late = [owner for owner, lease in self.leases.items() if lease.expires <= now]
        for owner in late:
            self.release(owner)
        return len(late)

    def pin(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            chunk.pins += 1

    def unpin(self, chunks: list[Chunk]) -> None:
        idle = []
        for chunk in chunks:
            chunk.pins -= 1
            if not chunk.pins:
                idle.append(chunk)
                if chunk in self.dropped:
                    self.dropped.remove(chunk)
        self.mention([c for c in idle if not c.gone and c not in self.order])

    def drop(self, chunk: Chunk) -> bool:
        if self.ready.get(chunk.key) is not chunk:
            return False
        del self.ready[chunk.key]
        chunk.gone = True
        if chunk.pins:
            self.dropped.append(chunk)
        return True

    def mention(self, chunks: list[Chunk]) -> None:
        for chunk in reversed(chunks):  # of one batch the deepest goes first
            if chunk in self.order:
                self.order.remove(chunk)
            self.order.append(chunk)


@dataclass
class Move:
    """A load or a store that runs."""

    keys: list[bytes]
    entries: list[int]
    chunks: list[Chunk]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def spoil(keys: list[bytes]) -> None:
    """A caller may use its list again as soon as the call is over."""
    keys[:] = [b"spoilt" * 3]


class IndexMachine(RuleBasedStateMachine):
    eviction = LRU
    loads = Bundle("loads")
    stores = Bundle("stores")

    @initialize(capacity=st.integers(1, 6))
    def open(self, capacity: int) -> None:
        self.clock = Clock()
        policy = self.eviction(capacity)
        self.index = ChunkIndex(capacity, policy, lease_seconds=LEASE_SECONDS, clock=self.clock)
        self.plain = PlainIndex(capacity)
        self.running: list[Move] = []
        for order in vars(policy).values():
            if isinstance(order, recency.RecencyOrder):
                order._limit = 4  # tidy up all the time

    @rule(owner=OWNERS, keys=PREFIX | ASKED, asked_twice=st.booleans())
    def lookup(self, owner: str, keys: list[bytes], asked_twice: bool) -> None:
        for _ in range(1 + asked_twice):
            self._lookup(owner, keys)

    @rule(owner=OWNERS)
    def ask_again(self, owner: str) -> None:
        if owner in self.plain.leases:
            self._lookup(owner, self.plain.leases[owner].asked)

    def _lookup(self, owner: str, keys: list[bytes]) -> None:
        asked = list(keys)
        found = self.index.lookup(owner, asked)
        spoil(asked)
        assert found == self.plain.lookup(owner, keys, self.clock.now)

    @rule(owner=OWNERS)
    def release(self, owner: str) -> None:
        self.index.release(owner)
        self.plain.release(owner)

    @rule(target=loads, owner=OWNERS, keys=PREFIX | ASKED)
    def take(self, owner: str, keys: list[bytes]):
        move = self._take(owner, keys)
        return multiple() if move is None else move

    @rule(target=loads, owner=OWNERS, length=st.integers(0, 6))
    def take_what_is_leased(self, owner: str, length: int):
        lease = self.plain.leases.get(owner)
        move = self._take(owner, lease.asked[:length]) if lease else None
        return multiple() if move is None else move

    def _take(self, owner: str, keys: list[bytes]) -> Move | None:
        asked = list(keys)
        entries = self.index.take(owner, asked)
        spoil(asked)
        chunks = self.plain.take(owner, keys, len(entries))
        return self._runs(keys[: len(entries)], entries, chunks)

    def _runs(self, keys: list[bytes], entries: list[int], chunks: list[Chunk]) -> Move | None:
        if not entries:
            return None
        move = Move(keys, entries, chunks)
        self.running.append(move)
        return move

    @rule(load=consumes(loads), verdicts=VERDICTS)
    def loaded(self, load: Move, verdicts: list[bool]) -> None:
        verdicts = verdicts[: len(load.keys)]
        self.running.remove(load)
        dropped = self.index.loaded(load.keys, load.entries, verdicts)
        assert dropped == self.plain.loaded(load.chunks, verdicts)

    @rule(keys=PREFIX | ASKED, again=st.booleans())
    def touch(self, keys: list[bytes], again: bool) -> None:
        asked = list(keys)
        self.index.touch(asked, again=again)
        spoil(asked)
        self.plain.touch(keys)

    @rule(target=stores, keys=PREFIX | ASKED)
    def reserve(self, keys: list[bytes]):
        move = self._reserve(keys)
        return multiple() if move is None else move

    def _reserve(self, keys: list[bytes]) -> Move | None:
        asked = list(keys)
        accepted, entries, evicted = self.index.reserve(asked)
        spoil(asked)
        self.check_evicted(keys, accepted, evicted)
        return self._runs(accepted, entries, [self.plain.writing[key] for key in accepted])

    def check_evicted(
        self, keys: list[bytes], accepted: Sequence[bytes], evicted: list[bytes]
    ) -> None:
        assert (accepted, evicted) == self.plain.reserve(keys)

    @rule(store=consumes(stores), verdicts=VERDICTS)
    def stored(self, store: Move, verdicts: list[bool]) -> None:
        self._end_store(store, verdicts[: len(store.keys)])

    def _end_store(self, store: Move, verdicts: list[bool]) -> None:
        self.running.remove(store)
        kept, lost = self.index.stored(store.keys, store.entries, verdicts)
        assert (kept, lost) == self.plain.stored(store.chunks, verdicts)

    @rule(keys=PREFIX | ASKED)
    def store_whole(self, keys: list[bytes]) -> None:
        store = self._reserve(keys)
        if store is not None:
            self._end_store(store, [True] * len(store.keys))

    @rule(keys=ASKED)
    def forget(self, keys: list[bytes]) -> None:
        self.index.forget(keys)
        self.plain.forget(keys)

    @rule()
    def clear(self) -> None:
        assert self.index.clear() == self.plain.clear()

    @rule(seconds=st.sampled_from([1.0, LEASE_SECONDS / 2, LEASE_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        assert self.index.expire() == self.plain.expire(self.clock.now)

    @invariant()
    def it_counts_what_the_model_counts(self) -> None:
        plain, index = self.plain, self.index
        assert len(index) == len(plain.ready)
        assert index.leases == len(plain.leases)
        assert index.reservations == len(plain.writing) + len(plain.abandoned)
        assert index.used == plain.used <= index.capacity

    @invariant()
    def no_entry_is_used_twice(self) -> None:
        moving = {entry for move in self.running for entry in move.entries}
        assert moving.isdisjoint(self.index._free)
        owners: dict[int, Chunk] = {}
        for move in self.running:
            for entry, chunk in zip(move.entries, move.chunks, strict=True):
                assert owners.setdefault(entry, chunk) is chunk

    @invariant()
    def the_idle_are_counted_right(self) -> None:
        index = self.index
        ready = [entry for shard in index._ready for entry in shard.values()]
        assert index._idle == sum(not index._pins[entry] for entry in ready)

    def teardown(self) -> None:
        """At rest nothing is held (L2), and every key that is there can go."""
        if not hasattr(self, "index"):
            return
        for move in self.running:
            entries = move.entries
            loading = all(self.index._pins[entry] > 0 for entry in entries)
            end = self.index.loaded if loading else self.index.stored
            end(move.keys, entries, [True] * len(entries))
        for owner in list(self.index._leases):
            self.index.release(owner)
        assert (self.index.leases, self.index.reservations) == (0, 0)
        assert self.index.used == len(self.index) == self.index._idle
        assert not self.index._dropped
        free = [bytes([200 + number]) * 16 for number in range(self.index.capacity)]
        assert self.index.reserve(free)[0] == free


class AdaptiveIndexMachine(IndexMachine):
    """ARC orders differently; all but the order holds as for LRU."""

    eviction = ARC

    def check_evicted(
        self, keys: list[bytes], accepted: Sequence[bytes], evicted: list[bytes]
    ) -> None:
        pinned = {key for key, chunk in self.plain.ready.items() if chunk.pins}
        assert pinned.isdisjoint(evicted)
        victims = [self.plain.ready[key] for key in evicted]
        self.plain.order = victims + [c for c in self.plain.order if c not in victims]
        assert (accepted, evicted) == self.plain.reserve(keys)


@pytest.fixture(autouse=True, scope="module")
def small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recency, "_BATCH", 2)
        yield


TestIndexWithLRU = IndexMachine.TestCase
TestIndexWithARC = AdaptiveIndexMachine.TestCase
TestIndexWithLRU.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestIndexWithARC.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
