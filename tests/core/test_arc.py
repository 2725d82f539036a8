"""ARC: what was used twice outlives a scan, and what misses teach moves the target."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvconn.eviction.arc import ARC
from kvconn.keytable import KeyTable


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Cache:
    """A cache of four that keeps which entry stands for which number."""

    def __init__(self, capacity: int = 4) -> None:
        self.arc = ARC(capacity)
        self.keys = KeyTable()
        self.keys.reach(capacity)
        self.entries: dict[int, int] = {}
        self.free = list(range(capacity))
        self.pins = [0] * capacity

    def use(self, *numbers: int) -> list[int]:
        """Hits are touched, misses stored; the numbers that had to go."""
        evicted = []
        for number in numbers:
            if number in self.entries:
                self.arc.touch([self.entries[number]])
                continue
            if not self.free:
                evicted += self.evict(1)
            self.entries[number] = entry = self.free.pop(0)
            self.keys.spans[0][entry] = key(number)
            self.arc.insert([entry], [key(number)])
        return evicted

    def evict(self, count: int) -> list[int]:
        victims = self.arc.evict(count, self.pins, self.keys)
        numbers = [number for number, entry in self.entries.items() if entry in victims]
        for number in numbers:
            self.free.append(self.entries.pop(number))
        return numbers


@pytest.fixture
def cache() -> Cache:
    return Cache()


def test_what_was_used_twice_outlives_a_scan(cache):
    cache.use(1, 2, 1, 2)
    cache.use(*range(10, 30))
    assert {1, 2} <= set(cache.entries)


def test_a_request_that_touches_its_own_prefix_again_does_not_count_as_another_use(cache):
    cache.use(1, 2)
    cache.arc.refresh([cache.entries[1], cache.entries[2]])
    cache.use(*range(10, 14))
    assert not {1, 2} & set(cache.entries)


def test_refreshing_puts_a_prefix_in_order_deepest_first(cache):
    cache.use(2, 1)
    cache.arc.refresh([cache.entries[1], cache.entries[2]])
    assert cache.evict(1) == [2]


def test_a_miss_that_recency_would_have_kept_raises_the_target(cache):
    cache.use(1, 2, 1, 2, 3, 4, 5)
    assert 3 not in cache.entries
    assert cache.arc._target == 0
    cache.use(3)
    assert cache.arc._target >= 1
    assert cache.arc._in_again[cache.entries[3]]


def test_a_miss_that_frequency_would_have_kept_lowers_it_again(cache):
    assert cache.use(1, 2, 3, 4, 1, 2, 3, 4, 5) == [1]
    cache.arc._target = 3.0
    cache.use(1)
    assert cache.arc._target == 2.0
    assert cache.arc._in_again[cache.entries[1]]


def test_ghosts_are_never_more_than_the_capacity(cache):
    for number in range(200):
        cache.use(number, number // 2, number % 7)
        ghosts = len(cache.arc._lost_once) + len(cache.arc._lost_again)
        assert ghosts <= 4


def test_a_pinned_entry_is_passed_over_and_found_again_when_it_is_unpinned(cache):
    cache.use(1, 2, 3, 4)
    pinned = cache.entries[1]
    cache.pins[pinned] = 1
    assert set(cache.evict(4)) == {2, 3, 4}
    assert cache.evict(4) == []
    cache.pins[pinned] = 0
    cache.arc.unpinned([pinned])
    assert cache.evict(4) == [1]


@pytest.mark.parametrize("again", [False, True])
def test_a_removed_entry_is_no_victim_and_its_number_can_be_used_again(cache, again):
    cache.use(1, 2, *([1] if again else []))
    gone = cache.entries.pop(1)
    cache.arc.remove([gone])
    cache.free.insert(0, gone)
    cache.use(3)
    assert cache.entries[3] == gone
    assert cache.evict(4) in ([2, 3], [3, 2])


def test_counts_agree_with_the_lists(cache):
    def frequent(entries: Sequence[int]) -> int:
        return sum(cache.arc._in_again[entry] for entry in entries)

    for number in (1, 2, 1, 3, 4, 2, 5, 1, 6, 3, 7, 5):
        cache.use(number)
        assert set(cache.arc._in_again) == set(cache.entries.values())
        assert cache.arc._frequent == frequent(cache.entries.values())
