"""The scheduler half: what it makes of an engine's calls; what it makes of a backend's failures
is in the guarantees."""

from __future__ import annotations

import asyncio

import pytest

from kvconn.backend import Backend, PluginConfig, PoolSize, Settings
from kvconn.errors import CapacityTooSmall, ConnectorClosed, UnknownTransfer, WrongKey
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.indexed import IndexedBackend
from kvconn.policy import Policy
from kvconn.scheduler import SchedulerConnector
from kvconn.types import BlockState, Request, Transfer, TransferKind, new_transfer_id

GEOMETRY = Geometry(block_tokens=4, block_bytes=100, blocks_per_chunk=2)
KEYS = [content_key(number) for number in range(6)]
ONE, OTHER = Request("one"), Request("other")


class ShelfLess(IndexedBackend):
    """A scheduler side over nothing: no worker ever opens."""

    contract_version = 1
    tier = "nothing"
    chunks = 8
    states: list[BlockState] | None = None

    def chunks_that_fit(self, geometry):
        return self.chunks

    def eviction_name(self):
        return "lru"

    def pool_size(self, geometry):
        return PoolSize(0, geometry.slot_bytes)

    def open_worker(self, pool, caches, namespace, shard):
        raise NotImplementedError

    def lookup(self, request, keys):
        return self.states[: len(keys)] if self.states else super().lookup(request, keys)


@pytest.fixture
def backend() -> Backend:
    return ShelfLess(PluginConfig())


def connect(
    backend: Backend, *policies: Policy, strict: bool = True, geometry: Geometry = GEOMETRY
) -> SchedulerConnector:
    named = [(type(policy).__name__, policy) for policy in policies]
    return SchedulerConnector(
        backend, named, geometry, Namespace("m"), settings=Settings(), strict=strict
    )


@pytest.fixture
def scheduler(backend) -> SchedulerConnector:
    return connect(backend)


def store(scheduler: SchedulerConnector, keys: list[bytes]) -> None:
    transfer = scheduler.prepare_store(ONE, keys).transfer
    scheduler.complete_transfer(transfer, [True] * len(keys))


# -- keys --------------------------------------------------------------------------------------

WRONG_KEYS = [
    ["text" * 8], [None], [3], [b"short"], [b"x" * 16, b"x" * 17], [b"x" * 16, "y" * 16],
    [b"x" * 16, None], [b""], [[b"x" * 16]],
]  # fmt: skip


@pytest.mark.parametrize("keys", WRONG_KEYS)
@pytest.mark.parametrize("call", ["lookup", "prepare_load", "touch", "prepare_store"])
def test_a_wrong_key_is_misuse_and_reaches_no_backend(backend, keys, call):
    backend.lookup = backend.prepare_load = backend.touch = backend.prepare_store = None
    with pytest.raises(WrongKey, match=r"make keys with kvconn\.identity"):
        getattr(connect(backend, strict=True), call)(ONE, list(keys))
    lenient = connect(backend, strict=False)
    assert not getattr(lenient, call)(ONE, list(keys)) or call == "prepare_store"
    assert lenient.stats.misuse == 1


@pytest.mark.parametrize("call", ["lookup", "prepare_load", "touch", "prepare_store"])
def test_no_keys_at_all_are_no_call(backend, call):
    backend.lookup = backend.prepare_load = backend.touch = backend.prepare_store = None
    scheduler = connect(backend)
    getattr(scheduler, call)(ONE, [])
    assert scheduler.stats.misuse == scheduler.stats.queries == scheduler.stats.offered == 0


def test_longer_keys_than_digests_are_welcome(scheduler):
    keys = [key * 2 for key in KEYS]
    store(scheduler, keys)
    assert scheduler.lookup(OTHER, keys) == 6


# -- lookups -----------------------------------------------------------------------------------

H, M, P = BlockState.HIT, BlockState.MISS, BlockState.PENDING


@pytest.mark.parametrize(
    ("states", "found"),
    [([H] * 6, 6), ([H, H, M, H, H, H], 2), ([M] * 6, 0), ([H, P, M, M, M, M], None),
     ([P] * 6, None), ([H, M, P, H, H, H], 1), ([M, P, P, P, P, P], 0)],
)  # fmt: skip
def test_the_leading_run_counts_and_what_is_pending_behind_it_is_asked_again(
    backend, states, found
):
    backend.states = states
    assert connect(backend).lookup(ONE, KEYS) == found


def test_a_pending_lookup_is_no_query_yet(backend):
    scheduler = connect(backend)
    backend.states = [P] * 6
    scheduler.lookup(ONE, KEYS)
    assert scheduler.stats.queries == 0
    backend.states = [H, H, M, M, M, M]
    assert scheduler.lookup(ONE, KEYS) == 2
    assert (scheduler.stats.queries, scheduler.stats.hits) == (6, 2)


def test_policies_judge_hits_by_the_tokens_that_a_load_would_restore(backend):
    judged = []

    class Judge(Policy):
        def accept(self, request, hits):
            judged.append((hits.chunks, hits.tokens))
            return 1

    scheduler = connect(backend, Judge(PluginConfig()))
    store(scheduler, KEYS[:3])
    assert scheduler.lookup(OTHER, KEYS, computed_tokens=5) == 1
    assert scheduler.lookup(OTHER, KEYS[:1], computed_tokens=50) == 1
    assert scheduler.lookup(OTHER, KEYS[4:]) == 0
    assert judged == [(3, 24 - 5), (1, 0)]


def test_of_several_groups_keys_whole_chunks_are_found_and_judged(backend):
    judged = []

    class Judge(Policy):
        def accept(self, request, hits):
            judged.append((hits.chunks, hits.tokens))

    scheduler = connect(
        backend, Judge(PluginConfig()), geometry=Geometry(4, 100, blocks_per_chunk=2, groups=2)
    )
    store(scheduler, KEYS[:3])
    assert scheduler.lookup(OTHER, KEYS, computed_tokens=3) == 2
    assert scheduler.lookup(OTHER, KEYS[2:]) == 0
    assert judged == [(1, GEOMETRY.chunk_tokens - 3)]
    assert scheduler.collect_stats()["leases"] == 0


def test_a_preempted_request_that_looks_up_after_its_load_is_another_query(scheduler):
    store(scheduler, KEYS)
    for queries in (6, 12):
        assert scheduler.lookup(OTHER, KEYS) == 6
        transfer = scheduler.prepare_load(OTHER, KEYS)
        scheduler.complete_transfer(transfer, [True] * 6)
        assert scheduler.stats.queries == scheduler.stats.hits == queries


def test_a_hit_that_cannot_be_loaded_is_not_found_for_ever(backend):
    scheduler = connect(backend)
    store(scheduler, KEYS)
    assert scheduler.lookup(OTHER, KEYS) == 6
    backend._index.forget([KEYS[2]])
    store(scheduler, KEYS[2:3])
    transfer = scheduler.prepare_load(OTHER, KEYS)
    assert len(transfer.keys) == 2
    assert scheduler.lookup(OTHER, KEYS) == 2


# -- requests ----------------------------------------------------------------------------------


def test_a_request_that_was_never_started_is_started_by_its_first_call(backend):
    seen = []
    backend.request_started = lambda request: seen.append(request.id)
    scheduler = connect(backend)
    scheduler.touch(ONE, KEYS)
    scheduler.lookup(ONE, KEYS)
    scheduler.request_started(ONE)
    assert seen == ["one"]
    assert scheduler.collect_stats()["requests"] == 1


def test_policies_are_asked_again_only_when_what_they_see_has_changed(backend):
    asked = []

    class Notes(Policy):
        def permit(self, request):
            asked.append(request)

    scheduler = connect(backend, Notes(PluginConfig()))
    for request in (ONE, Request("one"), Request("one", deadline=1e12)):
        scheduler.lookup(request, KEYS)
    assert len(asked) == 1
    scheduler.lookup(Request("one", params={"tier": 1}), KEYS)
    scheduler.lookup(Request("one", params={"tier": 1}, skip_writing_prefix_cache=True), KEYS)
    assert len(asked) == 3


# -- transfers ---------------------------------------------------------------------------------


def test_a_transfer_nobody_prepared_is_unknown_and_a_completed_one_is_remembered(backend):
    scheduler = connect(backend, strict=False)
    stranger = Transfer(new_transfer_id(), TransferKind.LOAD, "x", (KEYS[0],))
    scheduler.complete_transfer(stranger, [True])
    for _ in range(1100):
        plan = scheduler.prepare_store(ONE, KEYS[:1])
        scheduler.complete_transfer(plan.transfer, [False])
    assert scheduler.stats.misuse == 1
    assert len(scheduler._completed) <= 1000
    with pytest.raises(UnknownTransfer, match="complete only what prepare_load"):
        connect(backend, strict=True).complete_transfer(stranger, [True])


def test_an_idle_engine_goes_on_stepping_while_a_transfer_runs(scheduler):
    assert not scheduler.has_pending_work()
    transfer = scheduler.prepare_store(ONE, KEYS).transfer
    assert scheduler.has_pending_work()
    scheduler.complete_transfer(transfer, [])
    assert not scheduler.has_pending_work()


def test_figures_tell_moved_from_failed(scheduler):
    transfer = scheduler.prepare_store(ONE, KEYS).transfer
    scheduler.complete_transfer(transfer, [True, True, True, True, False, False])
    scheduler.lookup(OTHER, KEYS)
    transfer = scheduler.prepare_load(OTHER, KEYS[:4])
    scheduler.complete_transfer(transfer, [True, False, True, True])
    figures = scheduler.collect_stats()
    wanted = {
        "offered": 6, "accepted": 6, "stored": 4, "failed_stores": 2, "queries": 6, "hits": 4,
        "loaded": 3, "failed_loads": 1, "entries": 3, "capacity": 8, "transfers": 0,
        "backend_errors": 0, "policy_errors": 0, "misuse": 0,
    }  # fmt: skip
    assert {name: figures[name] for name in wanted} == wanted


# -- opening and closing -----------------------------------------------------------------------


def test_a_capacity_below_one_chunk_is_said_when_it_is_opened(backend):
    backend.chunks = 0
    with pytest.raises(CapacityTooSmall, match="raise capacity or lower blocks_per_chunk"):
        connect(backend)


def test_using_a_closed_connector_is_misuse(scheduler):
    scheduler.close(1.0)
    with pytest.raises(ConnectorClosed, match="open another one"):
        scheduler.lookup(ONE, KEYS)


def test_closing_ends_every_request_in_the_backend(backend):
    ended = []
    backend.request_finished = lambda request: ended.append(request.id)
    scheduler = connect(backend)
    scheduler.request_started(ONE)
    scheduler.request_started(OTHER)
    scheduler.close(10.0)
    assert ended == ["one", "other"]


@pytest.mark.parametrize(
    "keys",
    [[b"a" * 16, b"x", b"b" * 31], [b"", b"b" * 32], [bytearray(16)], [memoryview(bytes(16))]],
    ids=["of one sum", "empty", "bytearray", "memoryview"],
)
def test_K1_keys_are_bytes_of_one_length_each(scheduler, keys):
    for call in (
        scheduler.lookup,
        scheduler.touch,
        scheduler.prepare_load,
        scheduler.prepare_store,
    ):
        with pytest.raises(WrongKey):
            call(ONE, keys)


def test_L1_a_lookup_of_nothing_replaces_the_lease(scheduler):
    store(scheduler, KEYS)
    assert scheduler.lookup(OTHER, KEYS) == len(KEYS)
    assert scheduler.lookup(OTHER, []) == 0
    assert scheduler.collect_stats()["leases"] == 0


def test_F1_no_verdicts_at_all_are_a_failure_and_leak_nothing(scheduler):
    transfer = scheduler.prepare_store(ONE, KEYS).transfer
    scheduler.complete_transfer(transfer, None)
    assert scheduler.collect_stats()["reservations"] == 0
    assert scheduler.lookup(OTHER, KEYS) == 0


def test_R4_a_lookup_after_close_is_not_bypassed(backend):
    scheduler = connect(backend, strict=False)
    scheduler.close()
    assert scheduler.lookup(ONE, KEYS) == 0
    assert scheduler.stats.bypassed == 0


def test_a_request_whose_time_has_passed_loads_nothing_and_costs_nobody_a_key(scheduler):
    store(scheduler, KEYS)
    late = Request("late", deadline=0.0)
    assert scheduler.lookup(late, KEYS) == 0
    assert scheduler.prepare_load(late, KEYS) is None
    assert scheduler.collect_stats()["leases"] == 0
    assert scheduler.lookup(OTHER, KEYS) == len(KEYS)


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, GeneratorExit, type("Panic", (BaseException,), {})]
)
def test_F2_what_is_raised_and_is_no_exception_stays_inside_too(backend, monkeypatch, error):
    def broken(*_):
        raise error

    for hook in ("lookup", "prepare_load", "touch", "prepare_store", "step"):
        monkeypatch.setattr(backend, hook, broken)
    scheduler = connect(backend)
    assert scheduler.lookup(ONE, KEYS) == 0
    assert scheduler.prepare_load(ONE, KEYS) is None
    assert scheduler.prepare_store(ONE, KEYS).transfer is None
    scheduler.touch(ONE, KEYS)
    scheduler.step()
    assert scheduler.collect_stats()["backend_errors"] == 5


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_request_to_end_the_process_goes_on(backend, monkeypatch, error):
    def stop(*_):
        raise error

    monkeypatch.setattr(backend, "lookup", stop)
    with pytest.raises(error):
        connect(backend).lookup(ONE, KEYS)
