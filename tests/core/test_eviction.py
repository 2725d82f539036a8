"""What every eviction policy owes, and ARC against the same algorithm in plain lists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconn.eviction import recency
from kvconn.eviction.arc import ARC
from kvconn.eviction.lru import LRU
from kvconn.keytable import KeyTable

CAPACITY = 6


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture(autouse=True, scope="module")
def small_batches():
    """Recency orders tidy up all the time, and not once in a million."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recency, "_BATCH", 2)
        yield


class Filled:
    """A policy that holds entries 0 to 5, stored one by one."""

    def __init__(self, policy: type[LRU | ARC]) -> None:
        self.policy = policy(CAPACITY)
        self.pins = [0] * CAPACITY
        self.keys = KeyTable()
        self.keys.reach(CAPACITY)
        for entry in range(CAPACITY):
            self.keys.spans[0][entry] = key(entry)
            self.policy.insert([entry], [key(entry)])

    def evict(self, count: int) -> list[int]:
        victims = self.policy.evict(count, self.pins, self.keys)
        for entry in victims:
            self.pins[entry] = -1
        return victims

    def unpin(self, entry: int) -> None:
        self.pins[entry] = 0
        self.policy.unpinned([entry])


@pytest.fixture(params=[LRU, ARC])
def filled(request) -> Filled:
    return Filled(request.param)


def test_what_was_stored_first_goes_first(filled):
    assert filled.evict(4) == [0, 1, 2, 3]
    assert filled.evict(2) == [4, 5]


def test_the_deepest_of_a_batch_goes_first(filled):
    filled.policy.touch([2, 0, 1])
    filled.policy.touch([5, 3, 4])
    assert filled.evict(6) == [1, 0, 2, 4, 3, 5]


def test_a_refresh_puts_its_prefix_in_order(filled):
    filled.policy.refresh([2, 0, 1])
    assert filled.evict(6) == [3, 4, 5, 1, 0, 2]


@pytest.mark.parametrize(("count", "victims"), [(0, []), (1, [0]), (7, [0, 1, 2, 3, 4, 5])])
def test_as_many_go_as_are_asked_for_and_there_are(filled, count, victims):
    assert filled.evict(count) == victims


def test_nobody_goes_twice(filled):
    assert filled.evict(6) == [0, 1, 2, 3, 4, 5]
    assert filled.evict(6) == []


@pytest.mark.parametrize("use", ["touch", "refresh"])
def test_a_pinned_entry_is_passed_over_however_it_was_used(filled, use):
    getattr(filled.policy, use)([1])
    filled.pins[1] = filled.pins[2] = 1
    assert sorted(filled.evict(6)) == [0, 3, 4, 5]
    filled.unpin(2)
    assert filled.evict(6) == [2]
    filled.unpin(1)
    assert filled.evict(6) == [1]


def test_an_entry_that_was_never_passed_over_keeps_its_place_when_it_is_unpinned(filled):
    filled.pins[3] = 1
    assert filled.evict(1) == [0]
    filled.unpin(3)
    assert filled.evict(5) == [1, 2, 3, 4, 5]


def test_a_removed_entry_never_goes_and_comes_back_as_a_new_one(filled):
    filled.policy.touch([1])
    filled.policy.remove([0, 1])
    filled.pins[0] = filled.pins[1] = -1
    assert filled.evict(2) == [2, 3]
    filled.pins[0] = 0
    filled.policy.insert([0], [key(10)])
    assert filled.evict(6) == [4, 5, 0]


# -- ARC in plain lists ------------------------------------------------------------------------


class PlainARC:
    """Oldest first in every list; ``placeless`` were passed over while they were pinned."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[bool, list[int]] = {False: [], True: []}
        self.placeless: dict[bool, list[int]] = {False: [], True: []}
        self.ghosts: dict[bool, list[bytes]] = {False: [], True: []}
        self.target = 0.0

    def where(self, entry: int) -> bool | None:
        for again in (False, True):
            if entry in self.held[again] + self.placeless[again]:
                return again
        return None

    def remove(self, entries: Sequence[int]) -> None:
        for entry in entries:
            for places in (*self.held.values(), *self.placeless.values()):
                if entry in places:
                    places.remove(entry)

    def place(self, entries: Sequence[int], *, again: bool) -> None:
        self.remove(entries)
        self.held[again] += reversed(entries)

    def insert(self, entries: Sequence[int], keys: Sequence[bytes]) -> None:
        known = [self.learn(key_) for key_ in keys]
        for again in (False, True):
            chosen = [e for e, is_known in zip(entries, known, strict=True) if is_known is again]
            self.place(chosen, again=again)

    def learn(self, key_: bytes) -> bool:
        once, again = self.ghosts[False], self.ghosts[True]
        if key_ in once:
            self.target += max(1.0, len(again) / len(once))
            once.remove(key_)
        elif key_ in again:
            self.target -= max(1.0, len(once) / len(again))
            again.remove(key_)
        else:
            return False
        self.target = min(max(self.target, 0.0), self.capacity)
        return True

    def touch(self, entries: Sequence[int]) -> None:
        self.place(entries, again=True)

    def refresh(self, entries: Sequence[int]) -> None:
        for again in (False, True):
            self.place([e for e in entries if self.where(e) is again], again=again)

    def unpinned(self, entries: Sequence[int]) -> None:
        for again in (False, True):
            absent = [entry for entry in entries if entry in self.placeless[again]]
            self.place(absent, again=again)

    def oldest_free(self, pins: Sequence[int], *, again: bool) -> int | None:
        places = self.held[again]
        while places:
            entry = places.pop(0)
            if not pins[entry]:
                return entry
            self.placeless[again].append(entry)
        return None

    def evict(self, count: int, pins: Sequence[int], keys: KeyTable) -> list[int]:
        victims: list[int] = []
        while len(victims) < count:
            recent = len(self.held[False]) + len(self.placeless[False])
            first = not (recent and recent > self.target)
            for again in (first, not first):
                if (victim := self.oldest_free(pins, again=again)) is not None:
                    break
            else:
                break
            victims.append(victim)
            self.ghosts[again].append(keys[victim])
            if len(self.ghosts[False]) + len(self.ghosts[True]) > self.capacity:
                longest = len(self.ghosts[True]) > len(self.ghosts[False])
                del self.ghosts[longest][0]
        return victims


# A few numbers often, so that they come back; more than a cache and its ghosts hold in all.
NUMBERS = st.lists(st.integers(0, 9) | st.integers(0, 19), min_size=1, max_size=4, unique=True)
WHAT = st.sampled_from(["use"] * 6 + ["refresh", "pin", "unpin", "drop"])
STEPS = st.lists(st.tuples(WHAT, NUMBERS), min_size=20, max_size=60)


class Compared:
    """A cache over both at once; they must agree on every victim."""

    def __init__(self, limit: int) -> None:
        self.arc, self.plain = ARC(CAPACITY), PlainARC(CAPACITY)
        for order in (self.arc._once, self.arc._again):
            order._limit = limit
        self.pins = [-1] * CAPACITY
        self.keys = KeyTable()
        self.keys.reach(CAPACITY)
        self.entries: dict[int, int] = {}

    def tell(self, what: str, *arguments: object) -> None:
        getattr(self.arc, what)(*arguments)
        getattr(self.plain, what)(*arguments)

    def found(self, numbers: Sequence[int]) -> list[int]:
        return [self.entries[number] for number in numbers if number in self.entries]

    def use(self, numbers: Sequence[int]) -> None:
        if found := self.found(numbers):
            self.tell("touch", found)
        wanted = [number for number in numbers if number not in self.entries]
        self.make_room(len(wanted))
        free = [entry for entry in range(CAPACITY) if entry not in self.entries.values()]
        stored = dict(zip(wanted, free, strict=False))
        for number, entry in stored.items():
            self.keys.spans[0][entry] = key(number)
            self.pins[entry] = 0
        if stored:
            self.tell("insert", list(stored.values()), [key(number) for number in stored])
        self.entries |= stored

    def make_room(self, count: int) -> None:
        missing = count - (CAPACITY - len(self.entries))
        if missing > 0:
            victims = self.arc.evict(missing, self.pins, self.keys)
            assert victims == self.plain.evict(missing, self.pins, self.keys)
            free = [entry for entry in self.entries.values() if self.pins[entry] == 0]
            assert len(victims) == min(missing, len(free))
            self.entries = {n: e for n, e in self.entries.items() if e not in victims}
            for entry in victims:
                self.pins[entry] = -1

    def refresh(self, numbers: Sequence[int]) -> None:
        if found := self.found(numbers):
            self.tell("refresh", found)

    def pin(self, numbers: Sequence[int]) -> None:
        for entry in self.found(numbers):
            self.pins[entry] = 1

    def unpin(self, numbers: Sequence[int]) -> None:
        freed = [entry for entry in self.found(numbers) if self.pins[entry]]
        for entry in freed:
            self.pins[entry] = 0
        if freed:
            self.tell("unpinned", freed)

    def drop(self, numbers: Sequence[int]) -> None:
        for number in numbers[:1]:
            if number in self.entries:
                entry = self.entries.pop(number)
                self.tell("remove", [entry])
                self.pins[entry] = -1


@given(steps=STEPS, limit=st.integers(1, 12))
def test_arc_chooses_what_the_same_algorithm_in_plain_lists_does(steps, limit):
    cache = Compared(limit)
    for step, numbers in steps:
        getattr(cache, step)(numbers)
        arc, plain = cache.arc, cache.plain
        assert arc._target == plain.target
        assert list(arc._lost_once) == plain.ghosts[False]
        assert list(arc._lost_again) == plain.ghosts[True]
        assert len(arc._lost_once) + len(arc._lost_again) <= CAPACITY
        assert arc._in_again == {e: plain.where(e) for e in cache.entries.values()}
        assert arc._frequent == sum(arc._in_again.values())
