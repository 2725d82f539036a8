"""The index, one behaviour at a time; :mod:`test_index_machine` tries them in any order."""

from __future__ import annotations

import pytest

from kvconn.eviction.lru import LRU
from kvconn.index import ChunkIndex

A, B, C, D = (bytes([number]) * 16 for number in range(4))


class CountingLRU(LRU):
    """Counts how often it is asked for victims."""

    asked = 0

    def evict(self, count, pins, keys):
        self.asked += 1
        return super().evict(count, pins, keys)


@pytest.fixture
def eviction() -> CountingLRU:
    return CountingLRU(3)


@pytest.fixture
def index(eviction) -> ChunkIndex:
    return ChunkIndex(3, eviction)


def store(index: ChunkIndex, *keys: bytes) -> list[bytes]:
    """Stores them at once; the keys that had to go."""
    accepted, entries, evicted = index.reserve(list(keys))
    index.stored(accepted, entries, [True] * len(accepted))
    return evicted


def test_entries_are_handed_out_in_ascending_order(index):
    assert index.reserve([A, B, C])[1] == [0, 1, 2]


def test_the_deepest_of_one_store_goes_first(index):
    store(index, A, B, C)
    assert store(index, D) == [C]


def test_a_touched_prefix_is_spared(index):
    store(index, A)
    store(index, B)
    store(index, C)
    index.touch([A])
    assert store(index, D) == [B]


def test_touching_what_is_not_there_is_no_error(index):
    index.touch([A, B])
    assert len(index) == 0


def test_a_key_offered_twice_takes_one_entry(index):
    assert index.reserve([A, A, B, A])[0] == [A, B]
    assert index.reservations == 2


def test_what_is_there_or_on_its_way_is_not_wanted(index):
    store(index, A)
    index.reserve([B])
    assert index.reserve([A, B]) == ([], [], [])


def test_a_run_of_hits_ends_at_the_first_miss(index):
    store(index, A, C)
    assert index.lookup("a", [A, B, C]) == 1
    assert index.lookup("a", [B, A]) == 0
    assert index.leases == 0


def test_a_key_asked_for_twice_is_pinned_and_released_twice(index):
    store(index, A)
    assert index.lookup("a", [A, A]) == 2
    assert store(index, B, C, D) == []
    index.release("a")
    assert store(index, D) == [A]


def test_the_same_question_finds_what_was_stored_meanwhile(index):
    store(index, A)
    assert index.lookup("a", [A, B]) == 1
    store(index, B)
    assert index.lookup("a", [A, B]) == 2


def test_the_same_question_misses_what_was_forgotten_meanwhile(index):
    store(index, A, B)
    assert index.lookup("a", [A, B]) == 2
    index.forget([B])
    assert index.lookup("a", [A, B]) == 1


def test_the_same_question_is_not_looked_up_again(index):
    store(index, A, B)
    index.lookup("a", [A, B])
    index._ready = None  # a look at it would raise
    assert index.lookup("a", [A, B]) == 2


def test_a_callers_list_may_be_used_again(index):
    store(index, A, B)
    asked = [A, B]
    index.lookup("a", asked)
    asked[:] = [C]
    assert index.lookup("a", [A, B]) == 2
    assert index.take("a", [A, B]) == [0, 1]


def test_a_load_without_a_lease_takes_what_is_there(index):
    store(index, A)
    assert index.take("a", [A, B]) == [0]


def test_a_load_of_other_keys_than_were_leased_gives_the_lease_up(index):
    store(index, A, B, C)
    index.lookup("a", [A, B])
    entries = index.take("a", [C])
    assert entries == [2]
    assert store(index, D) == [B]
    index.loaded([C], entries, [True])


def test_a_loaded_chunk_can_go_when_its_load_has_ended(index):
    store(index, A, B, C)
    entries = index.take("a", [A, B, C])
    assert store(index, D) == []
    index.loaded([A, B, C], entries, [True] * 3)
    assert store(index, D) == [C]


def test_what_was_passed_over_while_it_was_pinned_can_go_afterwards(index):
    for key in (A, B, C):
        store(index, key)
    index.lookup("a", [A])
    assert store(index, D) == [B]
    index.release("a")
    assert store(index, B) == [C]
    assert store(index, C) == [D]
    assert store(index, D) == [A]


def test_a_failed_load_forgets_its_key_and_says_so(index):
    store(index, A, B)
    entries = index.take("a", [A, B])
    assert index.loaded([A, B], entries, [True, False]) == [B]
    assert index.lookup("a", [A, B]) == 1
    assert index.used == 1


def test_a_failed_load_leaves_a_newer_copy_alone(index):
    store(index, A)
    entries = index.take("a", [A])
    index.forget([A])
    store(index, A)
    assert index.loaded([A], entries, [False]) == []
    assert index.lookup("b", [A]) == 1
    assert index.used == 1


def test_a_dropped_chunk_keeps_its_entry_until_its_last_pin_goes(index):
    store(index, A)
    first, second = index.take("a", [A]), index.take("b", [A])
    index.forget([A])
    assert (len(index), index.used) == (0, 1)
    index.loaded([A], first, [True])
    assert index.used == 1
    index.loaded([A], second, [True])
    assert index.used == 0


def test_a_lease_on_a_dropped_chunk_loads_only_what_is_before_it(index):
    store(index, A, B, C)
    index.lookup("a", [A, B, C])
    index.forget([B])
    assert index.take("a", [A, B, C]) == [0]


def test_a_lease_on_a_chunk_that_was_stored_anew_does_not_load_the_old_copy(index):
    store(index, A, B)
    index.lookup("a", [A, B])
    index.forget([B])
    store(index, B)
    assert index.take("a", [A, B]) == [0]


def test_a_store_that_clear_overtook_comes_to_nothing(index):
    accepted, entries, _ = index.reserve([A, B])
    assert index.clear() == 0
    assert index.reservations == 2
    assert index.abandoned_keys == [A, B]
    assert index.stored(accepted, entries, [True, True]) == ([], [A, B])
    assert (len(index), index.used, index.reservations) == (0, 0, 0)


def test_what_was_stored_anew_after_clear_is_not_lost_with_the_older_store(index):
    accepted, entries, _ = index.reserve([A])
    index.clear()
    store(index, A)
    assert index.stored(accepted, entries, [True]) == ([], [])
    assert index.lookup("a", [A]) == 1


def test_nothing_is_asked_of_the_eviction_policy_when_nothing_can_go(index, eviction):
    store(index, A, B, C)
    index.lookup("a", [A, B, C])
    for _ in range(5):
        assert index.reserve([D]) == ([], [], [])
    index.release("a")
    assert eviction.asked == 0
    index.reserve([D])
    assert eviction.asked == 1


def test_a_lease_that_is_never_in_the_way_of_an_eviction_pins_nothing(index):
    store(index, A, B)
    index.lookup("a", [A, B])
    assert index._pins == [0, 0]
    index.release("a")
    assert index._pins == [0, 0]


def test_leases_run_out_in_the_order_in_which_they_were_renewed(eviction):
    now = [0.0]
    index = ChunkIndex(3, eviction, lease_seconds=10, clock=lambda: now[0])
    store(index, A)
    for owner in "abc":
        index.lookup(owner, [A])
        now[0] += 1
    index.lookup("a", [A])
    now[0] = 12.5
    assert index.expire() == 2
    assert index.leases == 1
    now[0] = 13.0
    assert index.expire() == 1


def test_holds_says_what_is_there_or_being_written(index):
    store(index, A)
    index.reserve([B])
    assert [index.holds(key) for key in (A, B, C)] == [True, True, False]
