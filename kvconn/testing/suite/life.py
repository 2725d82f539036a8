"""L3 to L5: stores in flight, requests that end before their transfers, and reset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvconn.backend import Settings
from kvconn.identity import content_key
from kvconn.testing.rig import PATIENCE_S
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import EventKind, Request

if TYPE_CHECKING:
    from kvconn.identity import Key

__all__ = ["LifeRules"]

PLAIN, READER = Request("plain"), Request("reader")


class LifeRules(Kit):
    """What happens to blocks while requests come and go."""

    # -- L3: invisible until complete --------------------------------------------------------

    @needs("keeps")
    def test_L3_a_store_cannot_be_found_before_it_is_complete(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        (worker,) = rig.workers
        worker.wait([plan.transfer.id], PATIENCE_S)
        assert rig.hits(keys) == 0
        assert rig.scheduler.prepare_load(READER, keys) is None
        rig.collect(plan.transfer)
        assert rig.hits(keys) == 8

    @needs("keeps")
    def test_L3_a_key_that_is_being_stored_is_not_stored_twice(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16)
        plan = rig.begin_store(PLAIN, keys)
        assert rig.scheduler.prepare_store(READER, keys).accepted == ()
        rig.collect(plan.transfer)

    @needs("keeps")
    def test_L3_a_key_that_is_there_is_not_stored_again(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16)
        rig.store(PLAIN, keys[:4])
        assert rig.store(READER, keys).accepted == tuple(keys[4:])

    @needs("keeps")
    def test_L3_every_chunk_of_a_store_can_be_loaded_the_last_one_too(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        for count in (1, 2, 5):
            request = Request(f"{count}")
            chunks = [content_key("chunks", count, i) for i in range(count)]
            assert rig.store(request, chunks).accepted == tuple(chunks)
            assert rig.lookup(request, [*chunks, *keys]) == count
            assert rig.load(request, chunks) == [True] * count
            rig.scheduler.request_finished(request)

    @needs("keeps", "one_tier")
    def test_L3_a_failed_store_leaves_no_entry_and_no_room_taken(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        transfer = rig.scheduler.prepare_store(PLAIN, keys).transfer
        rig.scheduler.complete_transfer(transfer, [])
        rig.sweep()
        figures = rig.figures()
        assert (figures["entries"], figures["reservations"]) == (0, 0)
        assert rig.store(PLAIN, keys).accepted == tuple(keys)
        assert rig.hits(keys) == 8

    @needs("keeps")
    def test_L3_a_store_that_failed_on_another_rank_is_found_on_no_tier(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.step()  # what a tier copies by itself may end before
        assert [rig.hits([key]) for key in keys] == [0] * 8
        rig.moved(plan.transfer)
        rig.scheduler.complete_transfer(plan.transfer, [])
        rig.step()
        rig.sweep()
        assert [rig.hits([key]) for key in keys] == [0] * 8

    @needs("keeps", "block_store", "seen")
    def test_L3_a_failed_store_leaves_no_object(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.moved(plan.transfer)
        rig.scheduler.complete_transfer(plan.transfer, [])  # another rank failed
        rig.sweep()
        assert not self.stored_objects()

    @needs("keeps", "one_tier")
    def test_L3_half_a_failed_store_leaves_the_good_half(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.moved(plan.transfer)
        rig.scheduler.complete_transfer(plan.transfer, [i % 2 == 0 for i in range(8)])
        rig.sweep()
        assert [rig.hits([key]) for key in keys] == [1, 0] * 4
        for key in keys[::2]:
            request = Request(key.hex())
            rig.lookup(request, [key])
            assert rig.load(request, [key]) == [True]

    @needs("keeps", "persistent")
    def test_L3_an_abandoned_store_is_not_found_by_the_next_process(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.moved(plan.transfer)
        rig.scheduler.complete_transfer(plan.transfer, [])
        rig.close()
        assert open_rig().hits(keys) == 0

    @needs("keeps", "index", "one_tier")
    def test_L3_events_say_only_what_can_be_found(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(settings=Settings(events=True))
        failed = rig.scheduler.prepare_store(PLAIN, keys[:2]).transfer
        dropped = rig.scheduler.prepare_store(PLAIN, keys[2:4]).transfer
        rig.scheduler.complete_transfer(failed, [True, False])
        rig.scheduler.reset()
        rig.scheduler.complete_transfer(dropped, [True, True])
        told = [(event.kind, tuple(event.keys)) for event in rig.scheduler.take_events()]
        assert told == [(EventKind.STORED, (keys[0],)), (EventKind.CLEARED, ())]
        assert list(rig.scheduler.take_events()) == []

    # -- L4: preempted, aborted, back again --------------------------------------------------

    @needs("keeps")
    def test_L4_a_request_may_end_while_its_store_runs(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.scheduler.request_finished(PLAIN)
        rig.collect(plan.transfer)
        assert rig.hits(keys) == 8
        assert rig.held() == {}

    @needs("keeps")
    def test_L4_a_request_may_end_while_its_load_runs(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.scheduler.request_finished(PLAIN)
        rig.lookup(READER, keys)
        transfer = rig.begin_load(READER, keys)
        rig.scheduler.request_finished(READER)
        assert rig.collect(transfer) == [True] * 8
        assert rig.holds(keys, rig.rows(8))
        assert rig.held() == {}

    @needs("keeps", "pinned", "one_tier")
    def test_L4_blocks_under_a_running_load_are_not_evicted(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        transfer = rig.scheduler.prepare_load(READER, keys[:4])
        rig.scheduler.request_finished(READER)
        rig.fill(6)
        assert rig.run(transfer, rig.rows(4)) == [True] * 4
        assert rig.holds(keys[:4], rig.rows(4))

    @needs("keeps")
    def test_L4_it_may_come_back_and_load_again_while_its_load_runs(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        first = rig.begin_load(READER, keys[:4])
        rig.scheduler.request_finished(READER)
        assert rig.lookup(READER, keys) == 8
        second = rig.scheduler.prepare_load(READER, keys)
        rig.submit(second, rig.rows(8, at=8))
        (worker,) = rig.workers
        worker.wait([first.id, second.id], PATIENCE_S)
        ended = dict(worker.poll())
        assert ended == {first.id: [True] * 4, second.id: [True] * 8}
        for transfer in (second, first):
            rig.scheduler.complete_transfer(transfer, ended[transfer.id])
        assert rig.holds(keys[:4], rig.rows(4))
        assert rig.holds(keys, rig.rows(8, at=8))
        rig.scheduler.request_finished(READER)
        rig.scheduler.request_finished(PLAIN)
        assert rig.held() == {}

    @needs("keeps", "one_tier")
    def test_L4_it_may_be_preempted_between_lookup_and_load_and_store_again(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        assert rig.lookup(PLAIN, keys) == 0
        assert rig.scheduler.prepare_store(PLAIN, keys).accepted == ()
        rig.scheduler.release(PLAIN)
        rig.collect(plan.transfer)
        assert rig.lookup(PLAIN, keys) == 8
        rig.scheduler.release(PLAIN)
        assert rig.lookup(PLAIN, keys) == 8
        assert rig.load(PLAIN, keys) == [True] * 8

    @needs("keeps", "one_tier")
    def test_L4_no_room_under_a_running_store_is_given_to_another(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        plan = rig.scheduler.prepare_store(PLAIN, keys[:4])
        rig.scheduler.request_finished(PLAIN)
        assert rig.scheduler.prepare_store(READER, keys[4:]).accepted == ()
        rig.scheduler.reset()
        assert rig.scheduler.prepare_store(READER, keys[4:]).accepted == ()
        rig.scheduler.complete_transfer(plan.transfer, [True] * 4)
        assert rig.hits(keys) == 0

    @needs("keeps", "one_tier")
    def test_L4_no_room_under_a_running_load_is_given_to_a_store(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        transfer = rig.scheduler.prepare_load(READER, keys[:4])
        rig.scheduler.request_finished(READER)
        rig.scheduler.reset()
        other = [content_key("other", i) for i in range(4)]
        assert rig.scheduler.prepare_store(PLAIN, other).accepted == ()
        rig.run_checked(transfer)
        rig.sweep()
        assert rig.store(PLAIN, other).accepted == tuple(other)

    @needs("keeps")
    def test_L4_transfers_may_end_in_any_order(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        plans = [rig.begin_store(PLAIN, [key], at=i) for i, key in enumerate(keys)]
        rig.scheduler.request_finished(PLAIN)
        transfers = [plan.transfer for plan in plans if plan.transfer is not None]
        for transfer in transfers[::-2] + transfers[::2]:
            assert rig.collect(transfer) == [True]
        rig.wipe()
        assert rig.lookup(READER, keys) == 8
        assert rig.load(READER, keys) == [True] * 8
        rig.scheduler.request_finished(READER)
        assert rig.held() == {}

    def test_L4_pages_may_be_used_again_once_a_store_is_flushed(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        (worker,) = rig.workers
        worker.flush([plan.transfer.id], PATIENCE_S)
        rig.wipe()  # as the engine may, from now on
        stored = rig.collect(plan.transfer)
        found = rig.lookup(READER, keys)
        if found:
            assert rig.load(READER, keys[:found]) == [True] * found
        assert stored == [True] * 8

    # -- L5: reset ---------------------------------------------------------------------------

    def test_L5_reset_empties_and_says_what_it_did(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.sweep()
        dropped = rig.scheduler.reset()
        assert rig.hits(keys) == 0
        assert set(dropped.values()) <= {0, 8}
        assert (8 in dropped.values()) == rig.backend.keeps
        assert rig.scheduler.reset() == dict.fromkeys(dropped, 0)

    @needs("keeps")
    def test_L5_a_leased_block_is_a_miss_after_reset_and_its_room_comes_back(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        rig.scheduler.reset()
        assert rig.scheduler.prepare_load(READER, keys) is None
        assert rig.lookup(READER, keys) == 0
        rig.sweep()
        assert rig.store(PLAIN, keys).accepted == tuple(keys)

    @needs("keeps")
    def test_L5_a_store_in_flight_during_reset_comes_to_nothing(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.scheduler.reset()
        rig.collect(plan.transfer)
        assert rig.hits(keys) == 0
        rig.sweep()
        if "block_store" in self.capabilities():
            assert not self.stored_objects()
        rig.scheduler.request_finished(PLAIN)
        assert rig.held() == {}

    @needs("keeps", "one_tier")
    def test_L5_what_is_stored_after_reset_stays_though_an_older_store_ends_later(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16)
        old = rig.begin_store(PLAIN, keys)
        rig.scheduler.reset()
        rig.sweep()
        new = rig.begin_store(READER, keys)
        assert new.accepted == tuple(keys)
        (worker,) = rig.workers
        worker.wait([old.transfer.id, new.transfer.id], PATIENCE_S)
        ended = dict(worker.poll())
        for plan in (new, old):
            rig.scheduler.complete_transfer(plan.transfer, ended[plan.transfer.id])
        rig.wipe()
        rig.fill(2)
        rig.sweep()
        assert rig.lookup(READER, keys) == 8
        assert rig.load(READER, keys) == [True] * 8

    @needs("keeps")
    def test_L5_nothing_stale_is_loaded_when_keys_are_stored_anew_after_a_reset(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:4])
        rig.scheduler.reset()
        rig.sweep()
        assert [rig.hits([key]) for key in keys] == [0] * 8
        rig.store(PLAIN, keys[2:])
        assert rig.lookup(READER, keys[2:]) == 6
        assert rig.load(READER, keys[2:]) == [True] * 6

    @needs("keeps", "persistent")
    @pytest.mark.parametrize("in_flight", [False, True])
    def test_L5_what_was_reset_does_not_come_back_when_it_is_opened_again(
        self, open_rig: Open, keys: list[Key], in_flight: bool
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        if not in_flight:
            rig.collect(plan.transfer)
        rig.scheduler.reset()
        if in_flight:
            rig.moved(plan.transfer)
        rig.close()
        assert open_rig().hits(keys) == 0
