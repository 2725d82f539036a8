"""The recency order is exactly least recently used, however often it tidies up."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconn.eviction import recency
from kvconn.eviction.recency import RecencyOrder

ENTRIES = st.integers(0, 5)
MENTION = st.tuples(st.just("mention"), st.lists(ENTRIES, max_size=4))
ABSENT = st.tuples(st.just("mention_absent"), st.lists(ENTRIES, max_size=4, unique=True))
POP = st.tuples(st.just("pop"), st.integers(0, 3))


class PlainOrder:
    """The same in a list, oldest first."""

    def __init__(self) -> None:
        self.entries: list[int] = []

    def mention(self, entries: list[int]) -> None:
        for entry in reversed(entries):
            if entry in self.entries:
                self.entries.remove(entry)
            self.entries.append(entry)

    def mention_absent(self, entries: list[int]) -> None:
        self.mention([entry for entry in entries if entry not in self.entries])

    def pop(self, count: int) -> list[int]:
        popped, self.entries = self.entries[:count], self.entries[count:]
        return popped


@pytest.fixture(autouse=True, scope="module")
def small_batches():
    """Batches of two, and tidying up from the third mention on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recency, "_BATCH", 2)
        yield


def tidy_order(limit: int = 3) -> RecencyOrder:
    order = RecencyOrder(6)
    order._limit = limit
    return order


@given(steps=st.lists(MENTION | ABSENT | POP, max_size=60), limit=st.integers(1, 20))
def test_it_is_the_order_that_a_plain_list_keeps(steps, limit):
    order, plain = tidy_order(limit), PlainOrder()
    order.mention(list(range(6)))
    plain.mention(list(range(6)))
    for step, argument in steps:
        if step == "pop":
            assert list(islice(order.pop_oldest(), argument)) == plain.pop(argument)
        else:
            getattr(order, step)(argument)
            getattr(plain, step)(argument)
        assert [entry for entry in range(6) if entry in order] == sorted(plain.entries)
    assert list(order.pop_oldest()) == plain.entries


def test_an_entry_used_again_while_the_order_is_tidied_is_young():
    order = tidy_order()
    for entries in ([0], [1], [2], [3], [0], [0], [0], [4]):
        order.mention(entries)
    assert list(order.pop_oldest()) == [1, 2, 3, 0, 4]


def test_the_last_of_a_batch_is_older_than_the_first():
    order = tidy_order()
    order.mention([0, 1, 2])
    assert list(order.pop_oldest()) == [2, 1, 0]


def test_a_pop_that_stops_early_leaves_the_rest_in_place():
    order = tidy_order()
    order.mention([0, 1, 2, 3])
    assert list(islice(order.pop_oldest(), 2)) == [3, 2]
    order.mention([1])
    assert list(order.pop_oldest()) == [0, 1]


def test_one_entry_mentioned_for_ever_takes_bounded_memory():
    order = tidy_order(limit=12)
    for _ in range(1_000):
        order.mention([0, 1])
        assert order._size <= 2 * 12
    assert list(order.pop_oldest()) == [1, 0]
