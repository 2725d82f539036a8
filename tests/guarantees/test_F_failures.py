"""F1, F2, F9: a cache never takes the engine down, and never lies."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconn.backend import Backend
from kvconn.identity import content_key
from kvconn.ranks import RankVerdicts
from kvconn.types import Request, StorePlan, Transfer, TransferKind, new_transfer_id

PLAIN = Request("plain")
SCHEDULER_HOOKS = (
    "request_started", "lookup", "release", "prepare_load", "touch", "prepare_store",
    "complete_transfer", "request_finished", "step", "has_pending_work", "reset", "take_events",
    "collect_stats", "close",
)  # fmt: skip
WORKER_CALLS = ("submit", "poll", "flush", "wait", "close")


class Wordless(Exception):
    """Cannot even say what is wrong."""

    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


ERRORS = [RuntimeError("broken"), KeyError("key"), AssertionError(), StopIteration(),
          MemoryError(), UnicodeDecodeError("utf-8", b"", 0, 1, "no"), Wordless()]  # fmt: skip


class Faults(dict[str, Callable[..., Any]]):
    """By hook, what happens instead; called with the honest hook and its arguments."""

    def plant(self, plugin: Any, hooks: tuple[str, ...]) -> Any:
        for hook in hooks:
            self._plant(plugin, hook)
        return plugin

    def _plant(self, plugin: Any, hook: str) -> None:
        honest = getattr(plugin, hook)

        @functools.wraps(honest)
        def planted(*arguments: Any) -> Any:
            if hook in self:
                return self[hook](honest, *arguments)
            return honest(*arguments)

        setattr(plugin, hook, planted)

    def raise_from(self, hook: str, error: Exception) -> None:
        def raising(honest, *arguments):
            raise error

        self[hook] = raising

    def answer(self, hook: str, make: Callable[[Any], Any]) -> None:
        """``make`` turns the honest answer into what is given instead."""
        self[hook] = lambda honest, *arguments: make(honest(*arguments))


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def at_the_scheduler(faults) -> Callable[[Backend], Backend]:
    return lambda backend: faults.plant(backend, SCHEDULER_HOOKS)


def live(rig, known: list[bytes], new: list[bytes]) -> None:
    """Everything an engine does in a request's life, and beside it."""
    request = Request(f"lives {new[0].hex()}")
    scheduler = rig.scheduler
    scheduler.request_started(request)
    if scheduler.lookup(request, known):
        transfer = scheduler.prepare_load(request, known)
        if transfer is not None:
            rig.run(transfer, rig.rows(len(transfer.keys)))
    scheduler.release(request)
    scheduler.touch(request, known)
    rig.store(request, new)
    for worker in rig.workers:
        worker.flush([])
    scheduler.step()
    assert scheduler.has_pending_work() is False
    assert isinstance(scheduler.collect_stats(), dict)
    list(scheduler.take_events())
    scheduler.request_finished(request)
    dict(scheduler.reset())


def works(rig, keys: list[bytes]) -> bool:
    """Whether a store, a hit and a load, bit for bit, go well."""
    request = Request("works")
    stored = rig.store(request, keys).accepted == tuple(keys)
    found = rig.scheduler.lookup(request, keys) == len(keys)
    loaded = found and rig.load(request, keys) == [True] * len(keys)
    rig.scheduler.request_finished(request)
    return stored and found and loaded


# -- F1: completion is per key -----------------------------------------------------------------


def test_F1_a_key_without_a_verdict_has_failed(open_rig, keys):
    rig = open_rig()
    transfer = rig.scheduler.prepare_store(PLAIN, keys).transfer
    rig.scheduler.complete_transfer(transfer, [True, True, False])
    assert rig.hits(keys) == 2
    assert rig.scheduler.stats.stored == 2
    assert rig.scheduler.stats.failed_stores == 6


def test_F1_verdicts_beyond_the_keys_mean_nothing(open_rig, keys):
    rig = open_rig()
    transfer = rig.scheduler.prepare_store(PLAIN, keys[:2]).transfer
    rig.scheduler.complete_transfer(transfer, [False, True, True, True])
    assert rig.hits(keys[1:2]) == 1
    assert rig.hits(keys) == 0


def test_F1_a_key_that_failed_on_one_rank_failed(open_shelf, shelf, keys):
    rig = open_shelf(ranks=2)
    rig.store(PLAIN, keys)
    broken = next(name for name in shelf.objects if keys[3] in name)
    del shelf.objects[broken]
    request = Request("reads")
    assert rig.scheduler.lookup(request, keys) == 8
    assert rig.load(request, keys) == [i != 3 for i in range(8)]
    assert rig.hits(keys) == 3


@pytest.mark.parametrize("rank", [0, 1])
def test_F1_a_store_that_one_rank_could_not_make_is_a_miss(open_shelf, shelf, keys, rank):
    rig = open_shelf(ranks=2)

    def lie(worker):
        def put(ids, buffers, honest=worker._side._operations.store.put):
            return [good and keys[1] not in name for good, name in
                    zip(honest(ids, buffers), ids, strict=True)]  # fmt: skip

        worker._side._operations.store.put = put

    lie(rig.workers[rank])
    rig.store(PLAIN, keys)
    assert rig.hits(keys) == 1
    assert rig.hits(keys[2:]) == 6


def reports():
    """A transfer's verdicts from each of up to four ranks, some short, in some order."""
    verdicts = st.lists(st.booleans(), max_size=4)
    return st.lists(verdicts, min_size=1, max_size=4).flatmap(
        lambda ranks: st.permutations(list(enumerate(ranks)))
    )


@given(reports=reports(), repeats=st.booleans())
def test_F1_ranks_are_anded_in_any_order_and_the_last_one_completes(reports, repeats):
    transfer = Transfer(new_transfer_id(), TransferKind.LOAD, "r", (b"a", b"b", b"c", b"d"))
    ranks = RankVerdicts(len(reports))
    ranks.expect(transfer)
    answers = [ranks.report(rank, transfer.id, verdicts) for rank, verdicts in reports for _ in
               range(1 + repeats)]  # fmt: skip
    whole = [all(len(v) > i and v[i] for _, v in reports) for i in range(4)]
    assert [answer for answer in answers if answer is not None] == [(transfer, whole)]
    assert answers[-1 - repeats] == (transfer, whole)
    assert ranks.waiting == 0


def test_F1_a_rank_that_does_not_exist_completes_nothing():
    ranks = RankVerdicts(2)
    transfer = Transfer(new_transfer_id(), TransferKind.LOAD, "r", (b"a",))
    ranks.expect(transfer)
    assert ranks.report(0, transfer.id, [True]) is None
    assert ranks.report(2, transfer.id, [True]) is None
    assert ranks.report(-1, transfer.id, [True]) is None
    assert ranks.report(1, transfer.id, [True]) == (transfer, [True])


def test_F1_a_rank_that_reports_nothing_at_all_failed_every_key():
    ranks = RankVerdicts(1)
    transfer = Transfer(new_transfer_id(), TransferKind.LOAD, "r", (b"a", b"b"))
    ranks.expect(transfer)
    assert ranks.report(0, transfer.id, None) == (transfer, [False, False])


def fail_load(rig, request, keys, bad: int) -> None:
    transfer = rig.scheduler.prepare_load(request, keys)
    rig.scheduler.complete_transfer(transfer, [i != bad for i in range(len(transfer.keys))])


def test_F1_a_new_request_of_the_same_name_starts_afresh(open_rig, keys):
    rig = open_rig()
    rig.store(PLAIN, keys)
    rig.scheduler.lookup(Request("reader"), keys)
    fail_load(rig, Request("reader"), keys, bad=0)
    rig.scheduler.request_finished(Request("reader"))
    rig.store(PLAIN, keys[:1])
    assert rig.scheduler.lookup(Request("reader"), keys) == 8


# -- F2: whatever a backend raises -------------------------------------------------------------


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("hook", SCHEDULER_HOOKS)
def test_F2_what_a_scheduler_side_hook_raises_costs_blocks_and_no_more(
    open_memory, keys, faults, at_the_scheduler, log_lines, hook, error
):
    rig = open_memory(chunks=32, wrap=at_the_scheduler)
    rig.store(PLAIN, keys[:4])
    faults.raise_from(hook, error)
    if hook == "close":
        rig.close()
    else:
        live(rig, keys[:4], keys[4:])
        live(rig, keys[:4], keys[4:])
    raised = rig.scheduler._guard.errors
    assert raised >= 1
    assert len([line for line in log_lines() if f".{hook} raised" in line]) == 1
    others = [line for line in log_lines() if f".{hook} raised" not in line]
    # The base class releases when a request ends.
    assert len(others) == (1 if hook == "release" else 0)
    faults.clear()
    if hook != "close":
        assert rig.scheduler.collect_stats()["backend_errors"] == raised
        assert works(rig, [content_key("afterwards", i) for i in range(2)])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", WORKER_CALLS)
def test_F2_what_a_worker_raises_fails_transfers_and_no_more(
    open_memory, keys, faults, log_lines, call, error
):
    rig = open_memory()
    (worker,) = rig.workers
    faults.plant(worker._side, WORKER_CALLS)
    faults.raise_from(call, error)
    plan = rig.begin_store(PLAIN, keys[:4])
    worker.flush([plan.transfer.id])
    worker.wait([plan.transfer.id], 1.0)
    ended = worker.poll()
    if call == "close":
        assert worker.close(1.0) == []
        faults.clear()
        return
    assert worker.errors == 1
    assert len(log_lines()) == 1
    good = call == "wait"
    assert ended == ([] if call == "poll" else [(plan.transfer.id, [good] * 4)])
    faults.clear()
    if call == "poll":
        ended = worker.poll()
    rig.scheduler.complete_transfer(plan.transfer, ended[0][1])
    rig.scheduler.request_finished(PLAIN)
    assert works(rig, keys[4:])
    assert rig.held() == {}


def test_F2_a_store_whose_flush_raised_is_not_trusted(open_memory, keys, faults):
    rig = open_memory()
    faults.plant(rig.workers[0]._side, WORKER_CALLS)
    faults.raise_from("flush", OSError())
    plan = rig.begin_store(PLAIN, keys)
    rig.workers[0].flush([plan.transfer.id])
    assert rig.collect(plan.transfer) == [False] * 8
    assert rig.hits(keys) == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda n: None, lambda n: b"", lambda n: b"\1" * (n + 1), lambda n: b"\1" * (n - 1),
        lambda n: n, lambda n: "\1" * n, lambda n: [7] * n, lambda n: [300] * n,
        lambda n: [None] * n, lambda n: object(), lambda n: 10**15, lambda n: {},
        lambda n: itertools.chain([1] * (n + 1)), lambda n: [-1] * n, lambda n: [1.0] * n,
    ],
)  # fmt: skip
def test_F2_a_malformed_answer_to_lookup_is_a_miss(
    open_memory, keys, faults, at_the_scheduler, make
):
    rig = open_memory(wrap=at_the_scheduler)
    rig.store(PLAIN, keys)
    faults.answer("lookup", lambda honest: make(len(keys)))
    assert rig.scheduler.lookup(PLAIN, keys) == 0
    assert "leases" not in rig.held()
    faults.clear()
    assert rig.scheduler.lookup(PLAIN, keys) == 8


def of_keys(*chosen: bytes, kind: TransferKind = TransferKind.LOAD) -> Transfer:
    return Transfer(new_transfer_id(), kind, "plain", chosen, tuple(range(len(chosen))))


LOADS = {
    "foreign": lambda keys: of_keys(content_key("foreign")),
    "backwards": lambda keys: of_keys(*reversed(keys)),
    "not leading": lambda keys: of_keys(*keys[1:]),
    "too many": lambda keys: of_keys(*keys, keys[0]),
    "a store": lambda keys: of_keys(*keys, kind=TransferKind.STORE),
    "a move": lambda keys: of_keys(*keys, kind=TransferKind.MOVE),
    "empty": lambda keys: of_keys(),
    "nonsense": lambda keys: object(),
    "a plan": lambda keys: StorePlan(tuple(keys)),
}


@pytest.mark.parametrize("kind", LOADS)
def test_F2_a_malformed_answer_to_prepare_load_loads_nothing(
    open_memory, keys, faults, at_the_scheduler, kind
):
    rig = open_memory(wrap=at_the_scheduler)
    rig.store(PLAIN, keys)
    reader = Request("reader")
    rig.scheduler.lookup(reader, keys)
    faults["prepare_load"] = lambda honest, request, asked: LOADS[kind](asked)
    faults["complete_transfer"] = lambda honest, transfer, verdicts: None
    assert rig.scheduler.prepare_load(reader, keys) is None
    assert rig.scheduler.transfers_in_flight == 0
    rig.scheduler.request_finished(reader)
    faults.clear()
    assert works(rig, [content_key("afterwards")])


PLANS = {
    "foreign keys": lambda plan: StorePlan(
        (content_key("foreign"),),
        of_keys(content_key("foreign"), kind=TransferKind.STORE),
    ),
    "another transfer": lambda plan: StorePlan(plan.accepted[:-1], plan.transfer),
    "no transfer": lambda plan: StorePlan(plan.accepted, None),
    "a load": lambda plan: StorePlan(plan.accepted, of_keys(*plan.accepted)),
    "a key twice": lambda plan: StorePlan(
        plan.accepted * 2, of_keys(*plan.accepted * 2, kind=TransferKind.STORE)
    ),
    "no evictions": lambda plan: StorePlan(plan.accepted, plan.transfer, None),
    "nonsense": lambda plan: object(),
    "a list": lambda plan: [plan],
    "a transfer of nonsense": lambda plan: StorePlan(plan.accepted, object()),
}


@pytest.mark.parametrize("kind", PLANS)
def test_F2_a_malformed_answer_to_prepare_store_stores_nothing(
    open_memory, keys, faults, at_the_scheduler, kind
):
    rig = open_memory(wrap=at_the_scheduler)
    faults.answer("prepare_store", PLANS[kind])
    assert rig.scheduler.prepare_store(PLAIN, keys[:4]) == StorePlan()
    assert rig.scheduler.transfers_in_flight == 0
    assert rig.scheduler.stats.accepted == 0
    assert rig.scheduler._guard.errors >= 1
    faults.clear()
    assert works(rig, keys[4:])


@pytest.mark.parametrize("kind", ["another transfer", "no evictions"])
def test_F2_what_a_refused_plan_had_reserved_is_given_back(
    open_memory, keys, faults, at_the_scheduler, kind
):
    rig = open_memory(wrap=at_the_scheduler)
    faults.answer("prepare_store", PLANS[kind])
    rig.scheduler.prepare_store(PLAIN, keys)
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


class NoBoolean:
    def __bool__(self) -> bool:
        raise TypeError


@pytest.mark.parametrize("answer", [None, 3, object(), [None], NoBoolean()])
def test_F2_malformed_answers_about_the_whole_are_empty(
    open_memory, faults, at_the_scheduler, answer
):
    rig = open_memory(wrap=at_the_scheduler)
    for hook in ("has_pending_work", "reset", "take_events", "collect_stats"):
        faults.answer(hook, lambda honest: answer)
    assert rig.scheduler.has_pending_work() in (True, False)
    assert rig.scheduler.reset() == {}
    assert rig.scheduler.take_events() in ([], [None])
    assert rig.scheduler.collect_stats()["transfers"] == 0


REPORTS = {
    "nothing": lambda id_: None,
    "nonsense": lambda id_: [None],
    "half a pair": lambda id_: [(id_,)],
    "no verdicts": lambda id_: [(id_, None)],
    "unknown": lambda id_: [(id_ + 1000, [True])],
    "unhashable": lambda id_: [([], [True])],
    "a number": lambda id_: 3,
    "verdicts that raise": lambda id_: [(id_, [NoBoolean()])],
}


@pytest.mark.parametrize("kind", REPORTS)
def test_F2_a_malformed_report_is_ignored_and_no_verdict_is_a_failure(
    open_memory, keys, faults, kind
):
    rig = open_memory()
    (worker,) = rig.workers
    faults.plant(worker._side, WORKER_CALLS)
    plan = rig.begin_store(PLAIN, keys[:4])
    faults.answer("poll", lambda honest: REPORTS[kind](plan.transfer.id))
    ended = worker.poll()
    assert worker.errors == 1
    faults.clear()
    if not ended:  # nobody will say how it went: it has failed when its time is over
        worker._deadlines[plan.transfer.id] = 0.0
        ended = worker.poll()
    assert ended == [(plan.transfer.id, [False] * 4)]
    rig.scheduler.complete_transfer(plan.transfer, ended[0][1])
    assert works(rig, keys[4:])


@pytest.mark.parametrize("verdicts", [[True], [True, False], [True] * 9, (True, False, 0, None)])
def test_F2_verdicts_of_another_length_are_cut_or_fail(open_memory, keys, faults, verdicts):
    rig = open_memory()
    faults.plant(rig.workers[0]._side, WORKER_CALLS)
    plan = rig.begin_store(PLAIN, keys[:4])
    faults.answer("poll", lambda honest: [(plan.transfer.id, verdicts)])
    whole = ([bool(v) for v in verdicts] + [False] * 4)[:4]
    assert rig.workers[0].poll() == [(plan.transfer.id, whole)]


def test_F2_a_transfer_that_a_worker_reports_twice_ends_once(open_memory, keys, faults):
    rig = open_memory()
    faults.plant(rig.workers[0]._side, WORKER_CALLS)
    faults.answer("poll", lambda honest: honest * 2)
    plan = rig.begin_store(PLAIN, keys)
    assert len(rig.workers[0].poll()) == 1
    assert rig.workers[0].transfers_running == 0
    rig.scheduler.complete_transfer(plan.transfer, [True] * 8)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def raise_it(honest: Any) -> Any:
        raise error

    return raise_it


STORE_LIES = {
    "nothing": lambda honest: None,
    "too few": lambda honest: honest[:-1],
    "none at all": lambda honest: [],
    "nonsense": lambda honest: object(),
    "not quite true": lambda honest: ["yes"] * len(honest),
    **{type(error).__name__: raising(error) for error in ERRORS},
    "no Exception": raising(BaseException("from a foreign runtime")),
    "SystemExit": raising(SystemExit(3)),
}


@pytest.mark.parametrize("kind", STORE_LIES)
def test_F2_whatever_put_does_is_at_worst_a_failed_store(open_shelf, shelf, keys, kind):
    rig = open_shelf()
    shelf.lies["put"] = STORE_LIES[kind]
    rig.store(PLAIN, keys[:4])
    found = rig.hits(keys)
    assert found == (3 if kind == "too few" else 0)
    shelf.lies.clear()
    assert works(rig, keys[4:])
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


@pytest.mark.parametrize("kind", STORE_LIES)
def test_F2_whatever_get_does_is_at_worst_a_failed_load(open_shelf, shelf, keys, kind):
    rig = open_shelf()
    rig.store(PLAIN, keys[:4])
    shelf.lies["get"] = STORE_LIES[kind]
    reader = Request("reader")
    assert rig.scheduler.lookup(reader, keys) == 4
    # What is answered stands for the leading objects, and each of these carries its own proof.
    believed = 3 if kind == "too few" else 0
    assert rig.load(reader, keys) == [True] * believed + [False] * (4 - believed)
    rig.scheduler.request_finished(reader)
    shelf.lies.clear()
    assert works(rig, keys[believed:])
    rig.scheduler.request_finished(PLAIN)
    assert rig.held() == {}


@pytest.mark.parametrize("kind", STORE_LIES)
def test_F2_whatever_delete_does_next_operations_work(open_shelf, shelf, keys, kind):
    rig = open_shelf(chunks=4)
    rig.store(PLAIN, keys[:4])
    shelf.lies["delete"] = STORE_LIES[kind]
    rig.store(PLAIN, keys[4:6])
    shelf.lies.clear()
    rig.scheduler.request_finished(PLAIN)
    assert works(rig, [content_key("afterwards", i) for i in range(2)])
    assert rig.held() == {}


@pytest.mark.parametrize("kind", [*(type(error).__name__ for error in ERRORS), "nothing"])
def test_F2_a_scan_that_fails_is_an_empty_store(open_shelf, shelf, keys, kind):
    open_shelf().store(PLAIN, keys)
    shelf.lies["scan"] = STORE_LIES[kind]
    rig = open_shelf()
    assert rig.hits(keys) == 0
    shelf.lies.clear()
    assert works(rig, keys)


@pytest.mark.parametrize("size", [0, 1, 100])
def test_F2_a_store_that_lies_about_what_it_read_is_caught(open_shelf, shelf, keys, size):
    rig = open_shelf()
    rig.store(PLAIN, keys[:2])
    for name in shelf.objects:
        shelf.objects[name] = shelf.objects[name][:-size] if size else b""
    reader = Request("reader")
    rig.scheduler.lookup(reader, keys)
    assert rig.load(reader, keys) == [False, False]
    assert rig.is_wiped()


def test_F2_one_bad_object_does_not_spoil_the_others(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(PLAIN, keys)
    name = next(name for name in shelf.objects if name.endswith(keys[5]))
    shelf.objects[name] = b"\0" * len(shelf.objects[name])
    shelf.lies["delete"] = STORE_LIES["RuntimeError"]
    reader = Request("reader")
    rig.scheduler.lookup(reader, keys)
    assert rig.load(reader, keys) == [i != 5 for i in range(8)]


# -- F9: close ---------------------------------------------------------------------------------


def test_F9_the_backend_is_closed_once(open_memory, faults, at_the_scheduler):
    rig = open_memory(wrap=at_the_scheduler)
    closed = []
    faults["close"] = lambda honest, deadline: closed.append(deadline)
    for _ in range(3):
        rig.scheduler.close(5.0)
    assert len(closed) == 1
    assert 0 < closed[0] <= 5.0


@pytest.mark.parametrize("method", ["put", "get"])
def test_F9_close_returns_while_the_store_hangs_and_says_what_it_left(
    open_shelf, shelf, keys, method
):
    rig = open_shelf()
    rig.store(PLAIN, keys[:1])
    shelf.hold(method)
    if method == "put":
        transfer = rig.begin_store(PLAIN, keys[1:]).transfer
    else:
        rig.scheduler.lookup(PLAIN, keys[:1])
        transfer = rig.begin_load(PLAIN, keys[:1])
    shelf.await_call(method)
    assert rig.workers[0].close(0.05) == [transfer.id]
    assert rig.workers[0].close(0.05) == [transfer.id]
    assert rig.close(0.05) == [transfer.id]
    assert shelf.calls["close"] == 1  # the scheduler side's; what hangs is still in use
    shelf.let_go()


def test_F9_close_returns_while_the_backend_itself_hangs(
    open_memory, keys, faults, at_the_scheduler
):
    rig = open_memory(wrap=at_the_scheduler)
    rig.store(PLAIN, keys)
    forever = threading.Event()
    faults["close"] = lambda honest, deadline: forever.wait(20)
    assert rig.scheduler.close(0.05) == []
    assert rig.scheduler._guard.errors == 1
    forever.set()


def test_F9_a_closed_connector_answers_and_reaches_no_backend(
    open_memory, keys, faults, at_the_scheduler
):
    rig = open_memory(wrap=at_the_scheduler, strict=False)
    rig.store(PLAIN, keys)
    rig.close()
    for hook in ("lookup", "prepare_load", "prepare_store", "touch"):
        faults.raise_from(hook, AssertionError("reached"))
    late = Request("late")
    assert rig.scheduler.lookup(late, keys) == 0
    assert rig.scheduler.prepare_load(late, keys) is None
    assert rig.scheduler.prepare_store(late, keys) == StorePlan()
    rig.scheduler.touch(late, keys)
    rig.scheduler.request_finished(late)
    assert rig.scheduler._guard.errors == 0
    assert rig.scheduler.stats.misuse >= 4
