"""L6 to L8: room, whole chunks, and whose memory is touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvconn.backend import Settings
from kvconn.identity import content_key
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import ABSENT, Request

if TYPE_CHECKING:
    from kvconn.identity import Key

__all__ = ["CapacityRules"]

PLAIN, READER = Request("plain"), Request("reader")


class CapacityRules(Kit):
    """A capacity is kept at every moment, and only what is meant to move moves."""

    @needs("keeps", "one_tier")
    def test_L6_stores_in_flight_count_against_the_capacity(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=6)
        first = rig.begin_store(PLAIN, keys[:4])
        second = rig.begin_store(READER, keys[4:], at=4)
        figures = rig.figures()
        assert len(first.accepted) + len(second.accepted) == 6
        assert figures["entries"] + figures["reservations"] <= figures["capacity"] == 6
        for plan in (first, second):
            rig.collect(plan.transfer)
        assert rig.figures()["entries"] <= 6

    @needs("keeps", "one_tier")
    def test_L6_more_than_fits_is_never_found(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(chunks=4)
        fillers = [content_key("filler", number) for number in range(12)]
        rig.fill(12)
        rig.store(PLAIN, keys)
        rig.sweep()
        assert sum(rig.hits([key]) for key in [*fillers, *keys]) <= 4
        assert rig.figures()["entries"] <= 4

    @needs("keeps", "one_tier", "block_store", "seen")
    def test_L6_a_store_holds_no_more_objects_than_fit(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        for number in range(8):
            rig.fill(1, f"filler {number}")
            assert len(self.stored_objects()) <= 4
        rig.store(PLAIN, keys)
        assert len(self.stored_objects()) <= 4

    @needs("keeps", "one_tier")
    @pytest.mark.parametrize("held_by", ["stores", "loads", "leases"])
    def test_L6_a_store_is_declined_while_everything_is_held(
        self, open_rig: Open, keys: list[Key], held_by: str
    ) -> None:
        rig = open_rig(chunks=8)
        if held_by == "stores":
            rig.scheduler.prepare_store(PLAIN, keys)
        else:
            rig.store(PLAIN, keys)
            rig.lookup(READER, keys)
        if held_by == "loads":
            rig.scheduler.prepare_load(READER, keys)
        other = [content_key("other", i) for i in range(4)]
        plan = rig.scheduler.prepare_store(PLAIN, other)
        assert (plan.accepted, plan.transfer, list(plan.evicted)) == ((), None, [])

    @needs("keeps", "one_tier")
    def test_L6_what_does_not_fit_is_declined_and_the_leading_keys_are_taken(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        assert rig.store(PLAIN, keys).accepted == tuple(keys[:4])
        assert rig.hits(keys) == 4

    @needs("keeps", "one_tier")
    def test_L6_only_as_much_is_evicted_as_is_needed_and_it_is_said(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        rig.store(PLAIN, keys[:6])
        other = [content_key("other", i) for i in range(4)]
        plan = rig.store(READER, other)
        assert plan.accepted == tuple(other)
        assert set(plan.evicted) == {key for key in keys[:6] if not rig.hits([key])}
        assert len(plan.evicted) == 2

    @needs("keeps", "one_tier")
    def test_L6_what_was_evicted_can_be_stored_again(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(chunks=4)
        for turn in range(4):
            half = keys[:4] if turn % 2 == 0 else keys[4:]
            assert rig.store(Request(f"{turn}"), half).accepted == tuple(half)
            assert rig.lookup(READER, half) == 4
            assert rig.load(READER, half) == [True] * 4
            rig.scheduler.request_finished(READER)
            rig.sweep()

    @needs("keeps", "persistent", "index", "one_tier")
    def test_L6_a_store_that_is_opened_smaller_than_it_was_shrinks_to_its_capacity(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        rig.store(PLAIN, keys)
        rig.close()
        smaller = open_rig(chunks=3)
        smaller.sweep()
        assert smaller.figures()["entries"] <= 3
        assert len(self.stored_objects()) <= 3

    # -- L7: whole chunks of final tokens ----------------------------------------------------

    @needs("keeps")
    def test_L7_a_store_with_an_absent_block_is_refused(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.scheduler.prepare_store(PLAIN, keys[:2])
        rows = rig.compute(plan.accepted)
        rows[1][0] = ABSENT
        assert rig.run(plan.transfer, rows) == [False, False]
        assert rig.hits(keys) == 0

    @needs("keeps")
    def test_L7_a_load_leaves_the_blocks_alone_that_the_engine_has(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        transfer = rig.scheduler.prepare_load(READER, keys)
        rows = rig.geometry.rows(range(rig.blocks), range(8), computed_blocks=1)
        assert rows[0] == [ABSENT, 1]
        assert rig.run(transfer, rows) == [True] * 8
        assert not any(layer[0].any() for pages in rig.pages for layer in pages.values())
        assert rig.holds(keys[1:], rows[1:])

    # -- L8: whose memory --------------------------------------------------------------------

    @needs("keeps")
    def test_L8_a_load_writes_the_pages_it_was_given_and_no_others(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        transfer = rig.begin_load(READER, keys[:3], at=10)
        assert rig.collect(transfer) == [True] * 3
        assert rig.holds(keys[:3], rig.rows(3, at=10))
        for pages in rig.pages:
            for layer in pages.values():
                layer[20:26] = 0
        assert rig.is_wiped()

    @needs("keeps")
    def test_L8_pages_that_lie_in_any_order_are_found_again(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.scheduler.prepare_store(PLAIN, keys[:4])
        straight = rig.compute(keys[:4])
        ids = [block for row in straight for block in row]
        away = [3 * i % 41 + 7 for i in range(8)]
        for pages in rig.pages:
            for layer in pages.values():
                held = layer[ids].clone()
                layer.zero_()
                layer[away] = held
        rows = [away[i : i + 2] for i in range(0, 8, 2)]
        assert rig.run(plan.transfer, rows) == [True] * 4
        rig.wipe()
        rig.lookup(READER, keys)
        assert rig.load(READER, keys[:4]) == [True] * 4

    def test_L8_a_store_changes_no_page(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.collect(plan.transfer)
        assert rig.holds(plan.accepted, rig.rows(len(plan.accepted)))

    @needs("keeps")
    def test_L8_what_is_stored_is_a_copy_and_not_the_engines_pages(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:4])
        rig.compute([content_key("something else", i) for i in range(8)])
        rig.lookup(READER, keys)
        assert rig.load(READER, keys[:4]) == [True] * 4
        rig.lookup(PLAIN, keys)
        assert rig.load(PLAIN, keys[:4]) == [True] * 4

    def test_L8_a_transfer_lasts_no_longer_than_its_request_may(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(settings=Settings(transfer_timeout_s=30.0))
        hasty = Request("hasty", deadline=0.0)
        plan = rig.scheduler.prepare_store(hasty, keys[:4])
        assert plan.transfer is None or plan.transfer.timeout_s == 0.0
        plan = rig.scheduler.prepare_store(PLAIN, [content_key("x")])
        assert plan.transfer.timeout_s == 30.0
