"""L1 to L8: leases, transfers and capacity, over a request's life and after it."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconn.backend import Settings
from kvconn.errors import MisuseError, TransferAlreadyCompleted, UnknownTransfer
from kvconn.geometry import Geometry
from kvconn.identity import content_key
from kvconn.types import ABSENT, EventKind, Request

PLAIN = Request("plain")
READER = Request("reader")


def files_of(rig) -> list[str]:
    """Every file of a disk store that could be taken for an object, or is half of one."""
    path = getattr(rig.backend.config, "path", None)
    return [] if path is None else [p.name for p in path.rglob("*") if p.suffix in (".kv", ".tmp")]


def nothing_is_stored(rig, shelf) -> bool:
    return not shelf.objects and not files_of(rig)


def sweep(rig) -> None:
    """Let an idle engine step for as long as the backend has something to do."""
    ends = time.monotonic() + 20
    while rig.scheduler.has_pending_work():
        rig.scheduler.step()
        assert time.monotonic() < ends, "the backend never comes to rest"


def await_deletion(rig) -> None:
    """Return when the thread that deletes has done all that it was told so far."""
    done = threading.Event()
    rig.backend._deletions._workers.put(done.set)
    assert done.wait(20)


# -- L1: leases --------------------------------------------------------------------------------


def test_L1_a_hit_survives_that_the_cache_is_filled_in_between(open_rig, case, keys):
    rig = open_rig(chunks=8)
    rig.store(PLAIN, keys[:4])
    assert rig.scheduler.lookup(READER, keys) == 4
    rig.fill(20)
    verdicts = rig.load(READER, keys[:4])
    assert len(verdicts) == 4
    if case.pinned:
        assert verdicts == [True] * 4


def test_L1_on_an_advisory_backend_the_loss_of_a_leased_block_is_a_failed_key(
    open_shelf, shelf, keys
):
    rig = open_shelf()
    rig.store(PLAIN, keys[:4])
    assert rig.scheduler.lookup(READER, keys) == 4
    shelf.objects.pop(next(name for name in shelf.objects if name.endswith(keys[1])))
    assert rig.load(READER, keys[:4]) == [True, False, True, True]
    rig.scheduler.request_finished(READER)
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


def test_L1_what_is_not_leased_may_go(open_rig, keys):
    rig = open_rig(chunks=4)
    rig.store(PLAIN, keys[:4])
    rig.scheduler.lookup(READER, keys[:2])
    rig.fill(6)
    assert rig.hits(keys) == 2


def test_L1_the_next_lookup_replaces_the_lease(open_rig, keys):
    rig = open_rig(chunks=4)
    rig.store(PLAIN, keys[:4])
    assert rig.scheduler.lookup(READER, keys[:4]) == 4
    rig.fill(1)  # in vain: all is leased
    assert rig.scheduler.lookup(READER, keys[2:4]) == 2
    assert rig.held()["leases"] == 1
    rig.fill(2)
    assert rig.hits(keys[2:4]) == 2
    assert rig.hits(keys[:2]) == 0


def test_L1_a_miss_replaces_it_too(open_rig, keys):
    rig = open_rig(chunks=4)
    rig.store(PLAIN, keys[:4])
    rig.scheduler.lookup(READER, keys)
    assert rig.scheduler.lookup(READER, keys[4:]) == 0
    assert "leases" not in rig.held()
    rig.fill(4)
    assert rig.hits(keys) == 0


def test_L1_asking_again_in_every_step_holds_one_lease(open_rig, keys):
    rig = open_rig()
    rig.store(PLAIN, keys)
    for _ in range(5):
        assert rig.scheduler.lookup(READER, keys) == 8
        rig.scheduler.step()
    assert rig.held()["leases"] == 1
    rig.scheduler.request_finished(READER)
    assert "leases" not in rig.held()


@pytest.mark.parametrize("end", ["release", "request_finished"])
def test_L1_a_lease_ends_with_its_request_or_when_it_is_given_up(open_rig, keys, end):
    rig = open_rig(chunks=4)
    rig.store(PLAIN, keys[:4])
    rig.scheduler.lookup(READER, keys)
    getattr(rig.scheduler, end)(READER)
    assert "leases" not in rig.held()
    rig.fill(4)
    assert rig.hits(keys) == 0


@pytest.mark.parametrize("named", [0, 1, 3, 4])
def test_L1_a_load_releases_what_it_does_not_name(open_memory, keys, named):
    rig = open_memory(chunks=4)
    rig.store(PLAIN, keys[:4])
    rig.scheduler.lookup(READER, keys)
    transfer = rig.scheduler.prepare_load(READER, keys[:named])
    rig.scheduler.release(READER)
    assert "leases" not in rig.held()
    rig.fill(4)
    assert rig.hits(keys) == named
    if transfer is not None:
        assert rig.run(transfer, rig.rows(named)) == [True] * named


def test_L1_a_lease_runs_out_at_its_deadline_and_not_before(open_memory, keys):
    rig = open_memory(chunks=4, settings=Settings(lease_seconds=10.0))
    now = [1000.0]
    rig.backend._index._clock = lambda: now[0]
    rig.store(PLAIN, keys[:4])
    rig.scheduler.lookup(READER, keys)
    now[0] += 9.9
    rig.scheduler.step()
    assert rig.held()["leases"] == 1
    now[0] += 0.2
    rig.scheduler.step()
    assert "leases" not in rig.held()
    rig.fill(4)
    assert rig.hits(keys) == 0
    assert rig.scheduler.prepare_load(READER, keys) is None


def test_L1_asking_again_renews_the_lease(open_memory, keys):
    rig = open_memory(settings=Settings(lease_seconds=10.0))
    now = [1000.0]
    rig.backend._index._clock = lambda: now[0]
    rig.store(PLAIN, keys)
    other = Request("other")
    rig.scheduler.lookup(READER, keys)
    now[0] += 5
    rig.scheduler.lookup(other, keys)
    rig.scheduler.lookup(READER, keys)
    now[0] += 7
    rig.scheduler.step()
    assert rig.held()["leases"] == 2
    now[0] += 4
    rig.scheduler.step()
    assert "leases" not in rig.held()


def test_L1_an_accepted_part_of_a_hit_is_leased_until_the_load(open_rig, keys):
    rig = open_rig()
    rig.store(PLAIN, keys)
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys[:3]) == [True] * 3
    rig.scheduler.request_finished(READER)
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


# -- L2: at rest -------------------------------------------------------------------------------


def test_L2_at_rest_nothing_is_held(open_any, keys):
    rig = open_any()
    for number in range(3):
        request = Request(str(number))
        found = rig.scheduler.lookup(request, keys)
        if found:
            assert rig.load(request, keys[:found]) == [True] * found
        rig.store(request, keys[found:])
        rig.scheduler.request_finished(request)
    assert rig.held() == {}
    assert not rig.scheduler.has_pending_work()


def test_L2_a_second_completion_is_an_error_in_tests(open_any, keys):
    rig = open_any(strict=True)
    transfer = rig.store(PLAIN, keys).transfer
    with pytest.raises(TransferAlreadyCompleted, match=rf"transfer {transfer.id} .* once"):
        rig.scheduler.complete_transfer(transfer, [True] * 8)


def test_L2_a_second_completion_is_counted_in_production_and_the_first_stands(open_rig, keys):
    rig = open_rig(strict=False)
    transfer = rig.store(PLAIN, keys).transfer
    rig.scheduler.complete_transfer(transfer, [False] * 8)
    stats = rig.scheduler.stats
    assert (stats.misuse, stats.stored, stats.failed_stores) == (1, 8, 0)
    assert rig.hits(keys) == 8


def test_L2_a_load_completed_twice_unpins_once(open_memory, keys):
    rig = open_memory(chunks=4, strict=False)
    rig.store(PLAIN, keys[:4])
    first = rig.begin_load(PLAIN, keys[:4])
    second = rig.begin_load(READER, keys[:4])
    for _ in range(2):
        rig.scheduler.complete_transfer(first, [True] * 4)
    rig.fill(4)
    assert rig.hits(keys) == 4
    rig.collect(second)


def test_L2_a_transfer_of_somebody_else_is_unknown(open_any, keys):
    rig, other = open_any(strict=True), open_any(strict=True)
    transfer = other.scheduler.prepare_store(PLAIN, keys).transfer
    with pytest.raises(UnknownTransfer):
        rig.scheduler.complete_transfer(transfer, [True] * 8)


def test_L2_releasing_twice_or_unknown_requests_is_harmless(open_any, keys):
    rig = open_any()
    rig.store(PLAIN, keys)
    rig.scheduler.lookup(READER, keys)
    for _ in range(2):
        rig.scheduler.release(READER)
        rig.scheduler.request_finished(READER)
    rig.scheduler.release(Request("never seen"))
    rig.scheduler.request_finished(Request("never seen"))
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


def test_L2_what_comes_back_over_the_wire_cannot_change_what_was_prepared(open_memory, keys):
    rig = open_memory(chunks=4, strict=False)
    transfer = rig.begin_store(PLAIN, keys[:2]).transfer
    forged = type(transfer)(
        id=transfer.id, kind=transfer.kind, request_id="x", keys=tuple(keys), locations=(0,) * 8
    )
    rig.scheduler.complete_transfer(forged, [True] * 8)
    assert rig.hits(keys) == 2
    assert rig.scheduler.stats.stored == 2


# -- L3: invisible until complete --------------------------------------------------------------


def test_L3_a_store_cannot_be_found_before_it_is_complete(open_rig, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    (worker,) = rig.workers
    worker.wait([plan.transfer.id], 20)
    assert rig.hits(keys) == 0
    assert rig.scheduler.prepare_load(READER, keys) is None
    rig.collect(plan.transfer)
    assert rig.hits(keys) == 8


def test_L3_a_key_that_is_being_stored_is_not_stored_twice(open_rig, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    assert rig.scheduler.prepare_store(READER, keys).accepted == ()
    rig.collect(plan.transfer)


def test_L3_a_failed_store_leaves_no_entry_and_no_room_taken(open_rig, keys):
    rig = open_rig(chunks=8)
    transfer = rig.scheduler.prepare_store(PLAIN, keys).transfer
    rig.scheduler.complete_transfer(transfer, [])
    figures = rig.scheduler.collect_stats()
    assert (figures["entries"], figures["used"], figures["reservations"]) == (0, 0, 0)
    assert rig.store(PLAIN, keys).accepted == tuple(keys)
    assert rig.hits(keys) == 8


def test_L3_a_failed_store_leaves_no_object(open_rig, shelf, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    (worker,) = rig.workers
    worker.wait([plan.transfer.id], 20)
    worker.poll()
    rig.scheduler.complete_transfer(plan.transfer, [])  # another rank failed
    sweep(rig)
    assert nothing_is_stored(rig, shelf)


def test_L3_half_a_failed_store_leaves_the_good_half(open_rig, shelf, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    (worker,) = rig.workers
    worker.wait([plan.transfer.id], 20)
    worker.poll()
    rig.scheduler.complete_transfer(plan.transfer, [i % 2 == 0 for i in range(8)])
    sweep(rig)
    assert len(shelf.objects) + len(files_of(rig)) in (4, 0)
    for i, key in enumerate(keys):
        assert rig.hits([key]) == (i % 2 == 0)


def test_L3_an_abandoned_store_leaves_no_object_after_close(open_rig, shelf, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    (worker,) = rig.workers
    worker.wait([plan.transfer.id], 20)
    worker.poll()
    rig.scheduler.complete_transfer(plan.transfer, [])
    rig.close()
    assert nothing_is_stored(rig, shelf)
    assert open_rig().hits(keys) == 0


def test_L3_what_a_worker_had_to_delete_goes_even_if_its_store_failed(open_shelf, shelf, keys):
    rig = open_shelf(chunks=4)
    rig.store(PLAIN, keys[:4])
    plan = rig.scheduler.prepare_store(PLAIN, keys[4:])
    assert set(plan.evicted) == set(keys[:4])
    rig.run(plan.transfer, [])  # fails before it comes to deleting
    sweep(rig)
    assert not shelf.objects


def test_L3_a_store_that_has_no_room_on_its_way_is_declined_and_leaves_nothing(
    open_shelf, shelf, keys
):
    rig = open_shelf()
    (worker,) = rig.workers
    taken = worker.pool.acquire(worker.pool.free - 3)
    plan = rig.begin_store(PLAIN, keys)
    assert rig.collect(plan.transfer) == [True] * 3 + [False] * 5
    worker.pool.release(taken)
    assert rig.hits(keys) == 3
    assert len(shelf.objects) == 3


def test_L3_events_say_only_what_can_be_found(open_rig, keys):
    rig = open_rig(settings=Settings(events=True))
    failed = rig.scheduler.prepare_store(PLAIN, keys[:2]).transfer
    dropped = rig.scheduler.prepare_store(PLAIN, keys[2:4]).transfer
    rig.scheduler.complete_transfer(failed, [True, False])
    rig.scheduler.reset()
    rig.scheduler.complete_transfer(dropped, [True, True])
    told = [(event.kind, event.keys) for event in rig.scheduler.take_events()]
    assert told == [(EventKind.STORED, (keys[0],)), (EventKind.CLEARED, ())]
    assert rig.scheduler.take_events() == []


# -- L4: preempted, aborted, back again --------------------------------------------------------


def test_L4_a_request_may_end_while_its_store_runs(open_rig, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    rig.scheduler.request_finished(PLAIN)
    assert rig.scheduler.has_pending_work()
    rig.collect(plan.transfer)
    assert rig.hits(keys) == 8
    assert rig.held() == {}


def test_L4_a_request_may_end_while_its_load_runs(open_rig, keys):
    rig = open_rig()
    rig.store(PLAIN, keys)
    rig.scheduler.request_finished(PLAIN)
    rig.scheduler.lookup(READER, keys)
    transfer = rig.begin_load(READER, keys)
    rig.scheduler.request_finished(READER)
    assert rig.collect(transfer) == [True] * 8
    assert rig.held() == {}


def test_L4_it_may_come_back_and_load_again_while_its_load_runs(open_rig, keys):
    rig = open_rig()
    rig.store(PLAIN, keys)
    rig.scheduler.lookup(READER, keys)
    first = rig.begin_load(READER, keys[:4])
    rig.scheduler.request_finished(READER)
    assert rig.scheduler.lookup(READER, keys) == 8
    second = rig.scheduler.prepare_load(READER, keys)
    rig.submit(second, rig.rows(8, at=8))
    for worker in rig.workers:
        worker.wait([first.id, second.id], 20)
    ended = dict(rig.workers[0].poll())
    assert ended == {first.id: [True] * 4, second.id: [True] * 8}
    for transfer in (second, first):
        rig.scheduler.complete_transfer(transfer, ended[transfer.id])
    assert rig.holds(keys[:4], rig.rows(4))
    assert rig.holds(keys, rig.rows(8, at=8))
    rig.scheduler.request_finished(READER)
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


def test_L4_it_may_be_preempted_between_lookup_and_load_and_store_again(open_rig, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    assert rig.scheduler.lookup(PLAIN, keys) == 0
    assert rig.scheduler.prepare_store(PLAIN, keys).accepted == ()
    rig.scheduler.release(PLAIN)
    rig.collect(plan.transfer)
    assert rig.scheduler.lookup(PLAIN, keys) == 8
    rig.scheduler.release(PLAIN)
    assert rig.scheduler.lookup(PLAIN, keys) == 8
    assert rig.load(PLAIN, keys) == [True] * 8


def test_L4_no_slot_under_a_running_load_is_used_for_another_store(open_rig, case, keys):
    rig = open_rig(chunks=4)
    rig.store(PLAIN, keys[:4])
    rig.scheduler.lookup(READER, keys)
    transfer = rig.scheduler.prepare_load(READER, keys[:4])
    rig.scheduler.request_finished(READER)
    assert rig.scheduler.reset() == {rig.backend.tier: 4}
    other = [content_key("other", i) for i in range(4)]
    assert rig.scheduler.prepare_store(PLAIN, other).accepted == ()
    verdicts = rig.run(transfer, rig.rows(4))
    if case.pinned:
        assert verdicts == [True] * 4
        assert rig.holds(keys[:4], rig.rows(4))
    sweep(rig)
    assert rig.store(PLAIN, other).accepted == tuple(other)


def test_L4_no_slot_under_a_running_store_is_used_for_another(open_rig, keys):
    rig = open_rig(chunks=4)
    plan = rig.scheduler.prepare_store(PLAIN, keys[:4])
    rig.scheduler.request_finished(PLAIN)
    assert rig.scheduler.prepare_store(READER, keys[4:]).accepted == ()
    rig.scheduler.reset()
    assert rig.scheduler.prepare_store(READER, keys[4:]).accepted == ()
    rig.scheduler.complete_transfer(plan.transfer, [True] * 4)
    assert rig.hits(keys) == 0


def test_L4_transfers_may_end_in_any_order(open_rig, keys):
    rig = open_rig()
    transfers = [rig.scheduler.prepare_store(PLAIN, [key]).transfer for key in keys]
    rig.scheduler.request_finished(PLAIN)
    for transfer in transfers[::-2] + transfers[::2]:
        rig.scheduler.complete_transfer(transfer, [True])
    assert rig.hits(keys) == 8
    assert rig.held() == {}


# -- L5: reset ---------------------------------------------------------------------------------


def test_L5_reset_empties_and_says_per_tier_what_it_did(open_any, any_case, keys):
    rig = open_any()
    rig.store(PLAIN, keys)
    assert rig.scheduler.reset() == {any_case.name: 8 if any_case.keeps else 0}
    assert rig.hits(keys) == 0
    assert rig.scheduler.reset() == {any_case.name: 0}


def test_L5_a_leased_block_is_a_miss_after_reset_and_its_room_comes_back(open_rig, case, keys):
    rig = open_rig(chunks=8)
    rig.store(PLAIN, keys)
    rig.scheduler.lookup(READER, keys)
    rig.scheduler.reset()
    assert rig.scheduler.prepare_load(READER, keys) is None
    assert rig.scheduler.lookup(READER, keys) == 0
    sweep(rig)
    assert rig.store(PLAIN, keys).accepted == tuple(keys)


def test_L5_a_store_in_flight_during_reset_comes_to_nothing(open_rig, shelf, keys):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    rig.scheduler.reset()
    rig.collect(plan.transfer)
    assert rig.hits(keys) == 0
    sweep(rig)
    assert nothing_is_stored(rig, shelf)
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


def test_L5_what_is_stored_after_reset_stays_though_an_older_store_ends_later(open_rig, keys):
    rig = open_rig(chunks=16)
    old = rig.begin_store(PLAIN, keys)
    rig.scheduler.reset()
    sweep_only_the_reset(rig)
    new = rig.begin_store(READER, keys)
    assert new.accepted == tuple(keys)
    for worker in rig.workers:
        worker.wait([old.transfer.id, new.transfer.id], 20)
    ended = dict(rig.workers[0].poll())
    for plan in (new, old):
        rig.scheduler.complete_transfer(plan.transfer, ended[plan.transfer.id])
    rig.wipe()
    rig.fill(2)
    sweep(rig)
    assert rig.scheduler.lookup(READER, keys) == 8
    assert rig.load(READER, keys) == [True] * 8


def sweep_only_the_reset(rig) -> None:
    ends = time.monotonic() + 20
    while rig.backend.has_pending_work():
        rig.scheduler.step()
        assert time.monotonic() < ends, "the reset never ends"


@pytest.mark.parametrize("in_flight", [False, True])
def test_L5_a_reset_store_does_not_come_back_when_it_is_opened_again(
    open_rig, shelf, keys, in_flight
):
    rig = open_rig()
    plan = rig.begin_store(PLAIN, keys)
    if not in_flight:
        rig.collect(plan.transfer)
    rig.scheduler.reset()
    if in_flight:
        for worker in rig.workers:
            worker.wait([plan.transfer.id], 20)
    rig.close()
    assert nothing_is_stored(rig, shelf)
    assert open_rig().hits(keys) == 0


def test_L5_two_resets_in_a_row_do_not_let_a_store_be_overtaken(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys[:4])
    shelf.hold("delete")
    rig.scheduler.reset()
    shelf.await_call("delete")
    held = shelf._held["delete"]
    del shelf._held["delete"]  # only the first one hangs
    rig.scheduler.reset()
    assert rig.scheduler.prepare_store(PLAIN, keys[4:]).accepted == ()
    held.set()
    sweep(rig)
    rig.store(PLAIN, keys[4:])
    assert rig.load(PLAIN, keys[4:]) == [True] * 4


def test_L5_without_a_reset_what_was_complete_is_there_again(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    rig.close()
    again = open_shelf()
    assert again.scheduler.lookup(READER, keys) == 8
    assert again.load(READER, keys) == [True] * 8


# -- L6: capacity ------------------------------------------------------------------------------


STEPS = st.lists(
    st.tuples(st.sampled_from(["offer", "good", "bad", "read", "end", "reset"]),
              st.integers(0, 11), st.integers(1, 6)),
    max_size=40,
)  # fmt: skip


@given(steps=STEPS, chunks=st.integers(1, 6))
@settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # a rig of its own per example
)  # fmt: skip
def test_L6_capacity_is_never_exceeded_with_stores_in_flight(open_memory, steps, chunks):
    rig = open_memory(chunks=chunks)
    keys = [content_key(number) for number in range(12)]
    running: list = []
    for number, (step, start, count) in enumerate(steps):
        asked = keys[start : start + count]
        request = Request(str(number))
        if step == "offer":
            plan = rig.scheduler.prepare_store(request, asked)
            running += [plan.transfer] if plan.transfer else []
        elif step in ("good", "bad") and running:
            transfer = running.pop(start % len(running))
            rig.scheduler.complete_transfer(transfer, [step == "good"] * len(transfer.keys))
        elif step == "read" and rig.scheduler.lookup(request, asked):
            transfer = rig.scheduler.prepare_load(request, asked)
            running += [transfer] if transfer else []
        elif step == "reset":
            rig.scheduler.reset()
        rig.scheduler.request_finished(request)
        figures = rig.scheduler.collect_stats()
        assert figures["used"] <= figures["capacity"] == chunks
        assert figures["entries"] + figures["reservations"] <= chunks
        slots = [slot for transfer in running for slot in transfer.locations]
        assert all(0 <= slot < chunks for slot in slots)
    for transfer in running:
        rig.scheduler.complete_transfer(transfer, [True] * len(transfer.keys))
    assert rig.held() == {}
    rig.close()


def test_L6_the_store_never_holds_more_objects_than_fit(open_shelf, shelf, keys):
    rig = open_shelf(chunks=4, ranks=2)
    most = 0

    def note(answer):
        nonlocal most
        most = max(most, len(shelf.objects))
        return answer

    shelf.lies["delete"] = note
    rig.fill(10, "first")
    rig.store(PLAIN, keys)
    rig.fill(3, "second")
    assert len(shelf.objects) == 8
    assert most <= 8


@pytest.mark.parametrize("held_by", ["stores", "loads", "leases"])
def test_L6_a_store_is_declined_without_a_look_at_what_is_held(open_rig, keys, held_by):
    rig = open_rig(chunks=8)
    if held_by == "stores":
        rig.scheduler.prepare_store(PLAIN, keys)
    else:
        rig.store(PLAIN, keys)
        rig.scheduler.lookup(READER, keys)
    if held_by == "loads":
        rig.scheduler.prepare_load(READER, keys)
    asked = []
    eviction = rig.backend._index._eviction
    eviction.evict = lambda *arguments: asked.append(arguments) or []
    other = [content_key("other", i) for i in range(4)]
    assert rig.scheduler.prepare_store(PLAIN, other).accepted == ()
    assert asked == []


def test_L6_what_does_not_fit_is_declined_and_the_leading_keys_are_taken(open_rig, keys):
    rig = open_rig(chunks=4)
    assert rig.store(PLAIN, keys).accepted == tuple(keys[:4])
    assert rig.hits(keys) == 4


def test_L6_only_as_much_is_evicted_as_is_needed(open_rig, keys):
    rig = open_rig(chunks=8)
    rig.store(PLAIN, keys[:6])
    other = [content_key("other", i) for i in range(4)]
    plan = rig.store(READER, other)
    assert list(plan.evicted) == [keys[5], keys[4]]
    assert rig.hits(keys) == 4
    assert rig.scheduler.stats.evicted == 2


def test_L6_a_store_that_is_opened_smaller_than_it_was_shrinks_to_its_capacity(
    open_rig, case, shelf, keys
):
    rig = open_rig(chunks=8)
    rig.store(PLAIN, keys)
    rig.close()
    smaller = open_rig(chunks=3)
    sweep(smaller)
    assert smaller.scheduler.collect_stats()["entries"] <= 3
    assert len(shelf.objects) + len(files_of(smaller)) <= 3


# -- L7: whole chunks of final tokens ----------------------------------------------------------


@given(st.integers(1, 64), st.integers(1, 8), st.integers(0, 10_000))
def test_L7_only_whole_chunks_are_counted(block_tokens, blocks_per_chunk, tokens):
    geometry = Geometry(block_tokens, 1, blocks_per_chunk)
    whole = geometry.whole_chunks(tokens)
    assert whole * geometry.chunk_tokens <= tokens < (whole + 1) * geometry.chunk_tokens


def test_L7_a_store_with_an_absent_block_is_refused(open_rig, keys):
    rig = open_rig()
    plan = rig.scheduler.prepare_store(PLAIN, keys[:2])
    rows = rig.compute(plan.accepted)
    rows[1][0] = ABSENT
    assert rig.run(plan.transfer, rows) == [False, False]
    assert rig.hits(keys) == 0


def test_L7_a_load_leaves_the_blocks_alone_that_the_engine_has(open_rig, keys):
    rig = open_rig()
    rig.store(PLAIN, keys)
    rig.scheduler.lookup(READER, keys)
    transfer = rig.scheduler.prepare_load(READER, keys)
    rows = rig.geometry.rows(range(rig.blocks), range(8), computed_blocks=1)
    assert rows[0] == [ABSENT, 1]
    assert rig.run(transfer, rows) == [True] * 8
    assert not any(layer[0].any() for pages in rig.pages for layer in pages.values())
    assert rig.holds(keys[1:], rows[1:])


# -- L8: no call touches engine memory after its time ------------------------------------------


def test_L8_a_get_that_returns_late_changes_no_page_and_its_slots_wait_for_it(
    open_shelf, shelf, store_clock, keys
):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    (worker,) = rig.workers
    free = worker.pool.free
    shelf.hold("get")
    rig.scheduler.lookup(READER, keys)
    transfer = rig.begin_load(READER, keys)
    shelf.await_call("get")
    store_clock.advance(transfer.timeout_s)
    assert rig.collect(transfer) == [False] * 8
    assert worker.pool.quarantined == 8
    assert worker.pool.free == free - 8
    assert rig.hits(keys) == 0

    shelf.let_go()
    await_free(worker, free)
    assert worker.pool.quarantined == 0
    assert rig.is_wiped()


def await_free(worker, free: int) -> None:
    """Poll until the late calls have given their slots back."""
    ends = time.monotonic() + 20
    while worker.pool.free < free:
        worker.poll()
        assert time.monotonic() < ends, "slots are still taken"


def test_L8_a_put_that_returns_late_leaves_no_object(open_shelf, shelf, store_clock, keys):
    rig = open_shelf()
    (worker,) = rig.workers
    free = worker.pool.free
    shelf.hold("put")
    plan = rig.begin_store(PLAIN, keys)
    shelf.await_call("put")
    store_clock.advance(plan.transfer.timeout_s)
    assert rig.collect(plan.transfer) == [False] * 8
    rig.compute([content_key("other", i) for i in range(8)])  # the pages are the engine's again
    shelf.let_go()
    await_free(worker, free)
    assert not shelf.objects
    assert rig.hits(keys) == 0


def test_L8_a_late_put_does_not_take_the_next_store_of_its_key_away(
    open_shelf, shelf, store_clock, keys
):
    rig = open_shelf(chunks=16)
    (worker,) = rig.workers
    shelf.hold("put")
    late = rig.begin_store(PLAIN, keys)
    shelf.await_call("put")
    held = shelf._held.pop("put")  # only this one hangs
    store_clock.advance(late.transfer.timeout_s)
    rig.collect(late.transfer)
    again = rig.begin_store(READER, keys)
    assert again.accepted == tuple(keys)
    threading.Event().wait(0.1)  # it would come first, if nothing kept it
    held.set()
    assert rig.collect(again.transfer) == [True] * 8
    rig.wipe()
    worker._side._threads.close(20)
    assert len(shelf.objects) == 8


def test_L8_what_expires_before_its_turn_moves_nothing(open_shelf, shelf, store_clock, keys):
    rig = open_shelf()
    (worker,) = rig.workers
    free = worker.pool.free
    shelf.hold("put")
    first = rig.begin_store(PLAIN, keys[:1])
    shelf.await_call("put")
    second = rig.begin_store(PLAIN, keys[1:])
    store_clock.advance(second.transfer.timeout_s)
    for worker in rig.workers:
        worker.poll()
    for plan in (first, second):
        rig.scheduler.complete_transfer(plan.transfer, [])
    shelf.let_go()
    await_free(worker, free)
    assert shelf.calls["put"] == 1
    assert not shelf.objects


def test_L8_loads_that_wait_for_a_slot_expire_and_leave_the_queue(
    open_shelf, shelf, store_clock, keys
):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    (worker,) = rig.workers
    taken = worker.pool.acquire(worker.pool.free)
    rig.scheduler.lookup(READER, keys)
    transfer = rig.begin_load(READER, keys)
    store_clock.advance(transfer.timeout_s)
    assert rig.collect(transfer) == [False] * 8
    worker.pool.release(taken)
    worker.poll()
    assert shelf.calls["get"] == 0
    assert rig.is_wiped()


def test_L8_more_keys_than_slots_are_loaded_all_the_same(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    (worker,) = rig.workers
    taken = worker.pool.acquire(worker.pool.free - 2)
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys) == [True] * 8
    worker.pool.release(taken)


def test_L8_a_transfer_lasts_no_longer_than_its_request_may(open_any, keys):
    rig = open_any(settings=Settings(transfer_timeout_s=30.0))
    hasty = Request("hasty", deadline=0.0)
    plan = rig.scheduler.prepare_store(hasty, keys[:4])
    assert plan.transfer.timeout_s == 0.0
    assert rig.scheduler.prepare_store(PLAIN, [content_key("x")]).transfer.timeout_s == 30.0


def test_L8_the_contract_is_misused_and_nothing_else_when_a_slot_is_given_back_twice(open_shelf):
    (worker,) = open_shelf().workers
    slots = worker.pool.acquire(2)
    worker.pool.release(slots)
    with pytest.raises(MisuseError):
        worker.pool.release(slots)


def test_L5_a_store_that_refuses_to_be_emptied_is_emptied_later(
    open_shelf, shelf, keys, monkeypatch
):
    monkeypatch.setattr("kvconn.blockstore.deletions._AGAIN_S", 0.0)
    rig = open_shelf()
    rig.store(PLAIN, keys)

    def refuse(honest):
        raise OSError

    shelf.lies["delete"] = refuse
    rig.scheduler.reset()
    await_deletion(rig)
    assert not rig.store(PLAIN, keys).accepted  # the deletion to come would take it along
    del shelf.lies["delete"]
    rig.scheduler.step()
    await_deletion(rig)
    assert nothing_is_stored(rig, shelf)
    assert rig.store(PLAIN, keys).accepted == tuple(keys)


def test_L5_what_could_not_be_emptied_does_not_come_back(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)

    def refuse(honest):
        raise OSError

    shelf.lies["delete"] = refuse
    rig.scheduler.reset()
    await_deletion(rig)
    del shelf.lies["delete"]
    rig.close()
    assert open_shelf().hits(keys) == 0
