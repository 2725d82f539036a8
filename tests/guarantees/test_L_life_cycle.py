"""L1 to L8: leases, transfers and capacity, over a request's life and after it."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconn.backend import Settings
from kvconn.errors import MisuseError
from kvconn.geometry import Geometry
from kvconn.identity import content_key
from kvconn.types import Request

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
        rig.step()
        assert time.monotonic() < ends, "the backend never comes to rest"


def await_deletion(rig) -> None:
    """Return when the thread that deletes has done all that it was told so far."""
    done = threading.Event()
    rig.backend._deletions._workers.put(done.set)
    assert done.wait(20)


# -- L1: leases --------------------------------------------------------------------------------


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
    rig.step()
    assert rig.held()["leases"] == 1
    now[0] += 0.2
    rig.step()
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
    rig.step()
    assert rig.held()["leases"] == 2
    now[0] += 4
    rig.step()
    assert "leases" not in rig.held()


# -- L2: at rest -------------------------------------------------------------------------------


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


# -- L4: preempted, aborted, back again --------------------------------------------------------


# -- L5: reset ---------------------------------------------------------------------------------


def sweep_only_the_reset(rig) -> None:
    ends = time.monotonic() + 20
    while rig.backend.has_pending_work():
        rig.step()
        assert time.monotonic() < ends, "the reset never ends"


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
def test_L6_a_store_is_declined_without_a_look_at_what_is_held(open_memory, keys, held_by):
    rig = open_memory(chunks=8)
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


# -- L7: whole chunks of final tokens ----------------------------------------------------------


@given(st.integers(1, 64), st.integers(1, 8), st.integers(0, 10_000))
def test_L7_only_whole_chunks_are_counted(block_tokens, blocks_per_chunk, tokens):
    geometry = Geometry(block_tokens, 1, blocks_per_chunk)
    whole = geometry.whole_chunks(tokens)
    assert whole * geometry.chunk_tokens <= tokens < (whole + 1) * geometry.chunk_tokens


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
    rig.step()
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
