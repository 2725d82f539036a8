"""What the framework does for every block store: finding, giving up, trying again, holding back."""

from __future__ import annotations

import dataclasses
import errno
import random
import threading
import time

import pytest

from kvconn.blockstore import breaker, finder, operations
from kvconn.blockstore.seal import object_bytes
from kvconn.errors import ConfigurationError, ObjectTooLarge, TryAgain
from kvconn.identity import content_key
from kvconn.types import Request

PLAIN, READER = Request("plain"), Request("reader")
PATIENCE_S = 20.0


@pytest.fixture
def shared(shelf):
    """Others put objects into the store, too."""
    shelf.capabilities = dataclasses.replace(shelf.capabilities, shared=True)
    return shelf


@pytest.fixture
def no_pause(monkeypatch):
    """A circuit that opened lets the next call probe at once."""
    monkeypatch.setattr(breaker, "_FIRST_PAUSE_S", 0.0)


def asked_until_known(rig, request, keys) -> int:
    """As an engine does: ask in every step until there is an answer."""
    ends = time.monotonic() + PATIENCE_S
    while (found := rig.scheduler.lookup(request, list(keys))) is None:
        rig.step()
        assert time.monotonic() < ends, "it never becomes known"
    return found


def until(rig, true) -> None:
    """Step until ``true()``."""
    ends = time.monotonic() + PATIENCE_S
    while not true():
        rig.step()
        assert time.monotonic() < ends, "it never comes true"


def raises(error: BaseException):
    def lie(_honest):
        raise error

    return lie


# -- F4: what is there is found off the scheduler's thread ---------------------------------------


def test_F4_opening_does_not_wait_for_a_long_scan(open_shelf, shelf, keys):
    open_shelf().store(PLAIN, keys)
    shelf.hold("scan")
    rig = open_shelf()
    assert rig.scheduler.collect_stats()["recovering"]
    assert rig.store(READER, [content_key("new")]).accepted


def test_F4_while_the_scan_runs_what_is_there_is_asked_for(open_shelf, shelf, keys):
    open_shelf().store(PLAIN, keys)
    shelf.hold("scan")
    rig = open_shelf()
    assert rig.scheduler.lookup(READER, keys) is None
    assert asked_until_known(rig, READER, keys) == 8
    assert rig.load(READER, keys) == [True] * 8


def test_F4_what_the_scan_found_is_adopted_step_by_step(open_shelf, shelf, keys):
    open_shelf().store(PLAIN, keys)
    shelf.hold("scan")
    rig = open_shelf()
    shelf.let_go()
    until(rig, lambda: not rig.scheduler.collect_stats()["recovering"])
    assert rig.hits(keys) == 8
    assert shelf.calls["exists"] == 0


def test_F4_a_reset_undoes_what_a_scan_is_about_to_find(open_shelf, shelf, keys):
    open_shelf().store(PLAIN, keys)
    shelf.hold("scan")
    rig = open_shelf()
    rig.scheduler.reset()
    shelf.let_go()
    until(rig, lambda: not rig.scheduler.has_pending_work())
    assert asked_until_known(rig, READER, keys) == 0
    assert shelf.objects == {}


def test_F4_the_scheduler_never_calls_the_store(open_shelf, shared, keys):
    threads = set()
    enter = shared.enter
    shared.enter = lambda method: (threads.add(threading.current_thread()), enter(method))
    rig = open_shelf(chunks=4)
    rig.fill(8)
    rig.store(PLAIN, keys[:2])
    asked_until_known(rig, READER, keys)
    rig.load(READER, keys[:2])
    rig.scheduler.reset()
    until(rig, lambda: not rig.scheduler.has_pending_work())
    assert threads
    assert threading.current_thread() not in threads


# -- what others stored ----------------------------------------------------------------------------


def test_F8_what_another_engine_stored_is_found_without_a_restart(open_shelf, shared, keys):
    one, other = open_shelf(), open_shelf()
    other.store(PLAIN, keys[:5])
    assert one.scheduler.lookup(READER, keys) is None
    assert asked_until_known(one, READER, keys) == 5
    assert one.load(READER, keys[:5]) == [True] * 5


def test_F8_a_chunk_counts_as_found_only_when_every_shard_is_there(open_shelf, shared, keys):
    one, other = open_shelf(ranks=2), open_shelf(ranks=2)
    other.store(PLAIN, keys[:3])
    shared.objects.pop(next(name for name in shared.objects if name.endswith(keys[1])))
    assert asked_until_known(one, READER, keys) == 1


def test_F4_an_absent_key_is_asked_about_once_and_not_in_every_step(open_shelf, shared, keys):
    rig = open_shelf()
    assert asked_until_known(rig, READER, keys) == 0
    for number in range(100):
        assert rig.scheduler.lookup(Request(str(number)), keys) == 0
    assert shared.calls["exists"] == 1


def test_F4_requests_that_wait_for_the_same_answer_ask_once(open_shelf, shared, keys):
    rig = open_shelf()
    shared.hold("exists")
    for number in range(8):
        assert rig.scheduler.lookup(Request(str(number)), keys) is None
    shared.await_call("exists")
    shared.let_go()
    assert asked_until_known(rig, READER, keys) == 0
    assert shared.calls["exists"] == 1


def test_F3_a_store_that_does_not_answer_is_a_miss_after_a_while(
    open_shelf, shared, keys, monkeypatch
):
    rig = open_shelf()
    shared.hold("exists")
    assert rig.scheduler.lookup(READER, keys) is None
    monkeypatch.setattr(finder, "_PATIENCE_S", 0.0)
    assert rig.scheduler.lookup(READER, keys) == 0


def test_F3_a_store_that_never_answers_is_asked_no_more(open_shelf, shared, keys, monkeypatch):
    rig = open_shelf()
    shared.hold("exists")
    monkeypatch.setattr(finder, "_PATIENCE_S", 0.0)
    for number in range(3):
        assert rig.scheduler.lookup(Request(f"{number}"), [content_key(number)]) is None
        assert rig.scheduler.lookup(Request(f"{number}"), [content_key(number)]) == 0
    assert rig.scheduler.lookup(READER, keys) == 0


def test_F1_what_was_found_is_asked_about_again_when_it_is_old(
    open_shelf, shared, keys, monkeypatch
):
    one, other = open_shelf(), open_shelf()
    monkeypatch.setattr("kvconn.blockstore.backend._FOUND_S", 0.0)
    other.store(PLAIN, keys)
    assert asked_until_known(one, READER, keys) == 8
    one.scheduler.request_finished(READER)
    shared.objects.clear()
    one.scheduler.step()
    assert asked_until_known(one, Request("later"), keys) == 0


def test_F1_what_was_found_and_cannot_be_loaded_is_a_miss_to_everyone(open_shelf, shared, keys):
    one, other = open_shelf(), open_shelf()
    other.store(PLAIN, keys)
    assert asked_until_known(one, READER, keys) == 8
    shared.objects.clear()
    assert one.load(READER, keys) == [False] * 8
    assert asked_until_known(one, Request("later"), keys) == 0


# -- F3: the circuit breaker -----------------------------------------------------------------------


def test_F3_after_failures_in_a_row_no_load_is_begun(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    shelf.lies["get"] = raises(OSError(errno.EIO, "broken"))
    for number in range(3):
        request = Request(f"{number}")
        rig.scheduler.lookup(request, keys[number : number + 1])
        assert rig.load(request, keys[number : number + 1]) == [False]
    shelf.lies.clear()
    calls = shelf.calls["get"]
    assert rig.hits(keys[4:]) == 0
    assert shelf.calls["get"] == calls


def test_F3_the_circuit_closes_again_when_a_probe_succeeds(open_shelf, shelf, keys, no_pause):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    shelf.lies["get"] = raises(OSError(errno.EIO, "broken"))
    for key in keys[:4]:
        request = Request(key.hex())
        if rig.scheduler.lookup(request, [key]):
            rig.load(request, [key])
    shelf.lies.clear()
    assert rig.scheduler.lookup(READER, keys[4:6]) == 2
    assert rig.load(READER, keys[4:6]) == [True, True]
    assert rig.scheduler.collect_stats()["reads"] == 0


def test_F3_what_was_taken_for_lost_while_a_store_failed_is_found_again(
    open_shelf, shelf, keys, no_pause
):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    shelf.lies["get"] = raises(OSError(errno.EIO, "broken"))
    for key in keys[:4]:
        request = Request(key.hex())
        rig.scheduler.lookup(request, [key])
        rig.load(request, [key])
    assert rig.hits(keys) == 0
    shelf.lies.clear()
    rig.scheduler.lookup(READER, keys[4:5])
    rig.load(READER, keys[4:5])
    assert asked_until_known(rig, Request("later"), keys) == 8


def test_F3_while_it_probes_one_load_goes_and_no_other(open_shelf, shelf, keys, no_pause):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    shelf.lies["get"] = raises(OSError(errno.EIO, "broken"))
    for key in keys[:3]:
        rig.scheduler.lookup(Request(key.hex()), [key])
        rig.load(Request(key.hex()), [key])
    for request in (READER, PLAIN):
        assert rig.scheduler.lookup(request, keys[4:]) == 4
    assert rig.scheduler.prepare_load(READER, keys[4:]) is not None
    assert rig.scheduler.prepare_load(PLAIN, keys[4:]) is None


def test_F6_a_store_that_takes_nothing_is_offered_nothing_and_loads_go_on(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys[:2])
    shelf.lies["put"] = raises(OSError(errno.ENOSPC, "full"))
    for key in keys[2:5]:
        assert rig.store(PLAIN, [key]).accepted == (key,)
    calls = shelf.calls["put"]
    assert rig.store(PLAIN, keys[5:]).accepted == ()
    assert shelf.calls["put"] == calls
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys[:2]) == [True, True]


def test_F6_stores_go_on_when_there_is_room_again(open_shelf, shelf, keys, no_pause):
    rig = open_shelf()
    shelf.lies["put"] = raises(OSError(errno.ENOSPC, "full"))
    for key in keys[:4]:
        rig.store(PLAIN, [key])
    shelf.lies.clear()
    rig.store(PLAIN, keys)
    assert rig.hits(keys) == 8


# -- retries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [TryAgain("in a moment"), ConnectionResetError(), OSError(errno.EAGAIN, "busy")]
)
def test_F2_what_may_work_in_a_moment_is_tried_again(open_shelf, shelf, keys, error, monkeypatch):
    monkeypatch.setattr(operations, "_FIRST_PAUSE_S", 0.0)
    rig = open_shelf()
    rig.store(PLAIN, keys)
    failures = iter([error, error])

    def twice(honest):
        for failure in failures:
            raise failure
        return honest

    shelf.lies["get"] = twice
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys) == [True] * 8
    assert rig.workers[0].figures()["get_retries"] == 2


def test_F2_what_will_not_work_in_a_moment_is_not_tried_again(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    shelf.lies["get"] = raises(OSError(errno.EIO, "broken"))
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys) == [False] * 8
    assert shelf.calls["get"] == 1
    assert rig.workers[0].figures()["get_errors"] == 1


# -- one load for many -----------------------------------------------------------------------------


def test_F4_many_who_wait_for_one_block_make_one_load(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys[:2])
    shelf.hold("get")
    requests = [Request(f"{number}") for number in range(5)]
    transfers = []
    for number, request in enumerate(requests):
        assert rig.scheduler.lookup(request, keys[:2]) == 2
        transfers.append(rig.begin_load(request, keys[:2], at=2 * number))
    shelf.await_call("get")
    shelf.let_go()
    for number, transfer in enumerate(transfers):
        assert rig.collect(transfer) == [True, True]
        assert rig.holds(keys[:2], rig.rows(2, 2 * number))
    assert shelf.calls["get"] == 1
    for request in requests:
        rig.scheduler.request_finished(request)
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


def test_F1_who_waits_for_a_load_that_fails_has_failed_too(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys[:1])
    shelf.hold("get")
    shelf.lies["get"] = lambda honest: [False] * len(honest)
    transfers = []
    for number in range(3):
        request = Request(f"{number}")
        rig.scheduler.lookup(request, keys[:1])
        transfers.append(rig.begin_load(request, keys[:1], at=number))
    shelf.let_go()
    assert [rig.collect(transfer) for transfer in transfers] == [[False]] * 3
    assert rig.is_wiped()


def test_F3_who_follows_a_load_does_not_end_with_its_deadline(open_shelf, shelf, store_clock, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys[:1])
    shelf.hold("get")
    hasty, patient = Request("hasty", deadline=time.monotonic() + 5), Request("patient")
    transfers = []
    for number, request in enumerate((hasty, patient)):
        rig.scheduler.lookup(request, keys[:1])
        transfers.append(rig.begin_load(request, keys[:1], at=number))
    shelf.await_call("get")
    store_clock.advance(10)
    assert rig.collect(transfers[0]) == [False]
    shelf.let_go()
    assert rig.collect(transfers[1]) == [True]
    assert rig.holds(keys[:1], rig.rows(1, 1))
    assert not rig.holds(keys[:1], rig.rows(1, 0))


# -- back-pressure and room ------------------------------------------------------------------------


def test_L6_what_the_workers_have_no_slot_for_is_declined_and_evicts_nothing(
    open_shelf, shelf, keys
):
    shelf.options = {"staging": 4 * object_bytes(1024)}
    rig = open_shelf(chunks=8)
    rig.store(PLAIN, keys[:3])
    rig.store(PLAIN, keys[3:6])
    shelf.hold("put")
    first = rig.begin_store(PLAIN, [content_key("a", i) for i in range(5)])
    assert len(first.accepted) == 3
    assert rig.begin_store(PLAIN, [content_key("b")]).accepted == ()
    assert rig.scheduler.collect_stats()["declined"] == 1
    shelf.let_go()
    rig.collect(first.transfer)
    assert rig.begin_store(PLAIN, [content_key("b")]).accepted


def test_L6_loads_find_slots_while_stores_take_all_they_may(open_shelf, shelf, keys):
    shelf.options = {"staging": 4 * object_bytes(1024)}
    rig = open_shelf(chunks=12)
    rig.store(PLAIN, keys[:2])
    shelf.hold("put")
    stored = rig.begin_store(PLAIN, [content_key("a", i) for i in range(9)])
    rig.scheduler.lookup(READER, keys[:2])
    transfer = rig.scheduler.prepare_load(READER, keys[:2])
    rig.submit(transfer, rig.rows(2, at=12))
    assert rig.collect(transfer) == [True, True]
    shelf.let_go()
    rig.collect(stored.transfer)


def test_L6_room_is_made_ahead_by_deleting_off_the_schedulers_thread(open_shelf, shelf, keys):
    shelf.options = {"high_watermark": 0.75, "low_watermark": 0.5}
    rig = open_shelf(chunks=8)
    rig.store(PLAIN, keys[:7])
    until(rig, lambda: len(shelf.objects) == 4)
    rig.step()
    figures = rig.scheduler.collect_stats()
    assert (figures["entries"], figures["used"]) == (4, 4)
    assert rig.hits(keys) == 4


def test_L6_room_made_ahead_is_room_only_once_the_bytes_are_gone(open_shelf, shelf, keys):
    shelf.options = {"high_watermark": 0.5, "low_watermark": 0.25}
    rig = open_shelf(chunks=8)
    shelf.hold("delete")
    rig.store(PLAIN, keys[:6])
    rig.step()
    shelf.await_call("delete")
    figures = rig.scheduler.collect_stats()
    assert (figures["entries"], figures["used"]) == (2, 6)
    assert rig.hits(keys) == 2
    shelf.let_go()
    until(rig, lambda: rig.scheduler.collect_stats()["used"] == 2)


def test_L6_a_key_whose_deletion_is_on_its_way_is_not_stored(open_shelf, shelf, keys):
    shelf.options = {"high_watermark": 0.5, "low_watermark": 0.25}
    rig = open_shelf(chunks=8)
    shelf.hold("delete")
    rig.store(PLAIN, keys[:6])
    rig.step()
    shelf.await_call("delete")
    assert rig.begin_store(READER, keys[2:6]).accepted == ()
    shelf.let_go()
    until(rig, lambda: rig.scheduler.collect_stats()["used"] == 2)
    assert rig.store(READER, keys[2:4]).accepted == tuple(keys[2:4])
    assert rig.load(READER, keys[2:4]) == [True, True]


# -- what a store declares -------------------------------------------------------------------------


def test_C1_chunks_larger_than_a_store_takes_are_refused(open_shelf, shelf):
    shelf.capabilities = dataclasses.replace(shelf.capabilities, max_object_bytes=4095)
    with pytest.raises(ObjectTooLarge, match=r"^shelf takes objects of at most 4095 B .*: lower"):
        open_shelf()


def test_C1_a_shared_store_that_the_scheduler_cannot_see_is_refused(open_shelf, shared):
    shared.capabilities = dataclasses.replace(shared.capabilities, scheduler_visible=False)
    with pytest.raises(ConfigurationError, match="nobody can tell what is there"):
        open_shelf()


@pytest.fixture
def private(shelf):
    """Only the workers see it."""
    shelf.capabilities = dataclasses.replace(shelf.capabilities, scheduler_visible=False)
    return shelf


def test_K2_what_only_workers_see_is_known_from_completions(open_shelf, private, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    assert rig.hits(keys) == 8
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys) == [True] * 8
    assert private.calls["scan"] == private.calls["exists"] == 0


def test_L6_what_only_workers_see_is_deleted_by_them_before_the_next_store(
    open_shelf, private, keys
):
    rig = open_shelf(chunks=4)
    for key in keys:
        rig.store(PLAIN, [key])
        assert len(private.objects) <= 4


def test_L5_a_reset_of_what_only_workers_see_goes_with_the_next_store(open_shelf, private, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    assert rig.scheduler.reset() == {"shelf": 8}
    assert rig.hits(keys) == 0
    rig.store(PLAIN, [content_key("new")])
    assert [name[-16:] for name in private.objects] == [content_key("new")]


# -- everything at once ----------------------------------------------------------------------------


class _Odd(BaseException):
    """What the runtime of another language raises through Python."""


def awkward(draw: random.Random):
    """Now and then an odd answer, or an odd exception."""

    def lie(honest):
        mood = draw.random()
        if mood < 0.03:
            raise draw.choice([OSError(errno.EIO, "?"), _Odd(), MemoryError(), KeyError("k")])
        if mood < 0.06 and isinstance(honest, list):
            return draw.choice([[], [*honest, True], honest[:-1], [1] * len(honest)])
        return honest

    return lie


@pytest.mark.parametrize("seed", range(6))
def test_F2_over_an_awkward_store_no_byte_is_wrong_and_nothing_is_left(
    open_shelf, shelf, seed, no_pause, monkeypatch
):
    monkeypatch.setattr(operations, "_FIRST_PAUSE_S", 0.0)
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    shelf.capabilities = dataclasses.replace(
        shelf.capabilities, shared=seed % 2 == 1, parallel=seed % 3 == 0
    )
    shelf.lies = {method: awkward(draw) for method in ("get", "put", "delete", "exists")}
    rig = open_shelf(chunks=6)
    prompts = [[content_key(number, i) for i in range(4)] for number in range(4)]
    loaded = 0
    for turn in range(150):
        request = Request(f"{turn}")
        keys = draw.choice(prompts)
        if draw.random() < 0.05 and shelf.objects:  # a byte flips, or another process deletes
            name = draw.choice(list(shelf.objects))
            whole = bytearray(shelf.objects.pop(name))
            whole[draw.randrange(len(whole))] ^= 1
            if draw.random() < 0.5:
                shelf.objects[name] = bytes(whole)
        if asked_until_known(rig, request, keys):
            transfer = rig.scheduler.prepare_load(request, keys)
            if transfer is not None:
                loaded += sum(rig.run_checked(transfer))
        rig.store(request, keys)
        rig.scheduler.request_finished(request)
        rig.step()
    shelf.lies.clear()
    until(rig, lambda: not rig.scheduler.has_pending_work())
    assert loaded
    assert rig.held() == {}


# -- answers that are older than what happened since -------------------------------------------


@pytest.fixture
def asked(open_shelf, shared, keys):
    """An engine whose question was answered with yes, and has not heard of it yet."""
    rig = open_shelf()
    other = open_shelf()
    rig.hits(keys)  # known to be absent: nothing is asked again for a while
    rig.backend._finder._absent.clear()
    other.store(PLAIN, keys)
    assert rig.scheduler.lookup(READER, keys) is None
    ends = time.monotonic() + PATIENCE_S
    while rig.backend._finder._answered.empty():
        assert time.monotonic() < ends
    return rig


def test_L5_an_answer_from_before_a_reset_finds_nothing(asked, shared, keys):
    asked.scheduler.reset()
    asked.sweep()
    assert not shared.objects
    assert asked_until_known(asked, READER, keys) == 0


def test_L1_an_answer_from_before_a_deletion_finds_nothing(asked, shared, keys):
    asked.backend._wasted(keys[2:])
    asked.sweep()
    assert len(shared.objects) == 2
    assert asked_until_known(asked, READER, keys) == 2
