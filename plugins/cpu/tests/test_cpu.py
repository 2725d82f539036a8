"""What is special to host memory: an entry of the index is a slot of every rank's pool."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvconn_cpu import backend
from kvconn_cpu.worker import CpuWorker

from kvconn.config import build_backend
from kvconn.connector import Connector
from kvconn.errors import CapacityTooSmall, ConfigurationError, UnknownPlugin
from kvconn.eviction.arc import ARC
from kvconn.eviction.lru import LRU
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, Shard, content_key
from kvconn.memory import KVCaches
from kvconn.types import ABSENT, Request, StorePlan, Transfer

BLOCKS, BLOCK_BYTES, SLOT = 16, 3000, 4096
SPACE = Namespace("m")
KEYS = [content_key(number) for number in range(8)]


class Engine:
    """Both halves in one process; block ``i`` holds chunk ``i`` of what moves."""

    def __init__(self, options: str, *, ranks: int = 1) -> None:
        url = f"cpu://?{options}"
        self.geometry = Geometry(4, BLOCK_BYTES, ranks=ranks)
        self.connectors = [Connector.load(url) for _ in range(ranks)]
        self.scheduler = self.connectors[0].open_scheduler(self.geometry, SPACE)
        self.pages = [torch.zeros(BLOCKS, BLOCK_BYTES, dtype=torch.uint8) for _ in range(ranks)]
        self.workers = [
            connector.open_worker(
                self.geometry, SPACE, KVCaches({"layer": page}, num_blocks=BLOCKS),
                Shard(rank, ranks),
            )
            for rank, (connector, page) in enumerate(zip(self.connectors, self.pages, strict=True))
        ]  # fmt: skip

    def run(self, transfer: Transfer) -> None:
        rows = [[block] for block in range(len(transfer.keys))]
        for worker in self.workers:
            worker.submit(transfer, rows)
            worker.wait([transfer.id], 20)
            assert worker.poll() == [(transfer.id, [True] * len(rows))]
        self.scheduler.complete_transfer(transfer, [True] * len(rows))

    def fill(self, keys: Sequence[bytes]) -> None:
        for rank, page in enumerate(self.pages):
            for block, key in enumerate(keys):
                page[block] = key[0] ^ rank

    def store(self, keys: Sequence[bytes]) -> StorePlan:
        plan = self.scheduler.prepare_store(Request("store"), list(keys))
        if plan.transfer is not None:
            self.fill(plan.accepted)
            self.run(plan.transfer)
        return plan

    def loads(self, keys: Sequence[bytes]) -> bool:
        """Whether ``keys`` come back on every rank, bit for bit."""
        transfer = self.scheduler.prepare_load(Request("load"), list(keys))
        assert transfer is not None
        for page in self.pages:
            page.zero_()
        self.run(transfer)
        return transfer.keys == tuple(keys) and all(
            (page[block] == key[0] ^ rank).all()
            for rank, page in enumerate(self.pages)
            for block, key in enumerate(keys)
        )

    def hits(self, key: bytes) -> int | None:
        request = Request("lookup")
        found = self.scheduler.lookup(request, [key])
        self.scheduler.request_finished(request)
        return found

    def close(self) -> list[int]:
        return [id_ for connector in self.connectors for id_ in connector.close()]


def slots(count: int) -> str:
    return f"capacity={count * SLOT}"


# -- entries are slots -------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_chunk_lies_in_the_slot_that_its_transfer_names_on_every_rank(ranks):
    engine = Engine(slots(8 * ranks), ranks=ranks)
    plan = engine.store(KEYS[:3])
    for rank, worker in enumerate(engine.workers):
        for key, slot in zip(plan.accepted, plan.transfer.locations, strict=True):
            assert set(worker.pool.buffer(slot)[:BLOCK_BYTES]) == {key[0] ^ rank}
    assert engine.loads(KEYS[:3])


def test_a_load_reads_the_slots_that_the_store_wrote():
    engine = Engine(slots(8))
    stored = engine.store(KEYS).transfer
    loaded = engine.scheduler.prepare_load(Request("load"), KEYS)
    assert loaded.locations == stored.locations
    assert sorted(loaded.locations) == list(range(8))


def test_the_slot_of_an_evicted_chunk_is_used_again():
    engine = Engine(slots(2))
    first = [engine.store([key]).transfer.locations for key in KEYS[:2]]
    plan = engine.store([KEYS[2]])
    assert plan.evicted == [KEYS[0]]
    assert plan.transfer.locations == first[0]
    assert [engine.hits(key) for key in KEYS[:3]] == [0, 1, 1]
    assert engine.loads([KEYS[2]])
    assert engine.loads([KEYS[1]])


def test_nothing_is_taken_from_the_pool_that_a_transfer_would_have_to_give_back():
    engine = Engine(slots(4))
    engine.store(KEYS[:3])
    (worker,) = engine.workers
    assert worker.pool.free == worker.pool.slots == 4


@pytest.fixture(scope="module")
def small_engine() -> Engine:
    return Engine(slots(4))


@settings(max_examples=30, deadline=None)
@given(offers=st.lists(st.lists(st.sampled_from(KEYS), max_size=4, unique=True), max_size=8))
def test_whatever_is_a_hit_comes_back_bit_for_bit(small_engine, offers):
    engine = small_engine
    engine.scheduler.reset()
    for keys in offers:
        engine.store(keys)
        found = [key for key in KEYS if engine.hits(key)]
        assert len(found) <= 4
        assert all(engine.loads([key]) for key in found)


# -- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capacity", "ranks", "chunks"),
    [(SLOT, 1, 1), (2 * SLOT - 1, 1, 1), (8 * SLOT, 2, 4), (9 * SLOT, 2, 4), (3 * SLOT, 3, 1)],
)
def test_capacity_is_the_total_over_all_ranks(capacity, ranks, chunks):
    engine = Engine(f"capacity={capacity}", ranks=ranks)
    assert engine.scheduler.collect_stats()["capacity"] == chunks
    held = sum(worker.pool.slots * worker.pool.slot_bytes for worker in engine.workers)
    assert held == chunks * ranks * SLOT <= capacity


def test_capacity_is_the_total_over_workers_that_hold_the_same_too():
    scheduler = Connector.load(f"cpu://?capacity={8 * SLOT}").open_scheduler(
        Geometry(4, BLOCK_BYTES, ranks=2, replicas=2), SPACE
    )
    assert scheduler.collect_stats()["capacity"] == 2


@pytest.mark.parametrize(("capacity", "ranks"), [(SLOT - 1, 1), (2 * SLOT - 1, 2)])
def test_a_capacity_below_one_slot_on_every_rank_is_refused(capacity, ranks):
    connector = Connector.load(f"cpu://?capacity={capacity}")
    with pytest.raises(CapacityTooSmall, match=f"of {SLOT} B on each of {ranks} ranks"):
        connector.open_scheduler(Geometry(4, BLOCK_BYTES, ranks=ranks), SPACE)


@pytest.mark.parametrize(
    ("option", "policy"), [("", LRU), ("&eviction=lru", LRU), ("&eviction=arc", ARC)]
)
def test_the_eviction_policy_is_chosen_by_name(option, policy):
    cpu = build_backend(f"cpu://?{slots(8)}{option}")
    cpu.open_scheduler(Geometry(4, BLOCK_BYTES), SPACE)
    assert type(cpu._index._eviction) is policy
    assert cpu._index._eviction.capacity == 8


def test_an_unknown_eviction_policy_is_named_with_those_that_are_there():
    connector = Connector.load(f"cpu://?{slots(8)}&eviction=mru")
    with pytest.raises(UnknownPlugin, match=r"'mru'.*arc.*lru"):
        connector.open_scheduler(Geometry(4, BLOCK_BYTES), SPACE)


@pytest.mark.parametrize("threads", [1, 3])
def test_copy_threads_reach_the_copies(threads, monkeypatch):
    given_ = []
    monkeypatch.setattr(
        backend, "CpuWorker", lambda *_, threads: given_.append(threads) or SimpleNamespace()
    )
    Engine(f"{slots(2)}&copy_threads={threads}")
    assert given_ == [threads]


def test_chunks_come_back_with_several_threads():
    engine = Engine(f"{slots(8)}&copy_threads=3")
    engine.store(KEYS)
    assert engine.loads(KEYS)


@pytest.mark.parametrize("option", ["copy_threads=0", "staging=1MiB", "path=/x"])
def test_an_option_that_is_wrong_or_another_backends_is_refused(option):
    with pytest.raises(ConfigurationError, match=r"kvconn-cpu") as caught:
        Connector.load(f"cpu://?{slots(2)}&{option}")
    assert f"'{option.partition('=')[0]}'" in str(caught.value)


# -- the worker --------------------------------------------------------------------------------


class Enqueued:
    """A copy on a device, which has not ended when it was started."""

    def __init__(self) -> None:
        self.ended = False
        self.waits = 0

    def done(self) -> bool:
        return self.ended

    def wait(self) -> None:
        self.waits += 1
        self.ended = True


@pytest.fixture
def enqueued(monkeypatch) -> list[Enqueued]:
    """Every copy that the worker of the next engine starts."""
    started: list[Enqueued] = []

    class Copier:
        def __init__(self, *_: object, threads: int) -> None: ...

        def gather(self, *_: object) -> Enqueued:
            started.append(Enqueued())
            return started[-1]

        scatter = gather

    monkeypatch.setattr("kvconn_cpu.worker.Copier", Copier)
    return started


def transfers(engine: Engine, count: int) -> list[Transfer]:
    plans = [engine.scheduler.prepare_store(Request("r"), [key]) for key in KEYS[:count]]
    for plan in plans:
        engine.workers[0].submit(plan.transfer, [[0]])
    return [plan.transfer for plan in plans]


def test_a_transfer_ends_when_its_copy_has(enqueued):
    engine = Engine(slots(4))
    first, second = transfers(engine, 2)
    (worker,) = engine.workers
    assert worker.poll() == []
    enqueued[1].ended = True
    assert worker.poll() == [(second.id, [True])]
    assert worker.poll() == []
    enqueued[0].ended = True
    assert worker.poll() == [(first.id, [True])]
    assert worker.transfers_running == 0


@pytest.mark.parametrize("call", ["flush", "wait"])
def test_only_the_named_copies_are_waited_for(enqueued, call):
    engine = Engine(slots(4))
    first, second = transfers(engine, 2)
    (worker,) = engine.workers
    ids = [second.id, 10**9]
    worker.flush(ids) if call == "flush" else worker.wait(ids, 20)
    assert [copy.waits for copy in enqueued] == [0, 1]
    assert worker.poll() == [(second.id, [True])]
    assert first.id != second.id


def test_a_wait_without_time_waits_for_nothing(enqueued):
    engine = Engine(slots(4))
    (first,) = transfers(engine, 1)
    engine.workers[0].wait([first.id], 0)
    assert enqueued[0].waits == 0


def test_closing_waits_for_the_copies_and_says_what_it_left(enqueued):
    engine = Engine(slots(4))
    transfers(engine, 2)
    side = engine.workers[0]._side
    assert type(side) is CpuWorker
    assert side.close(20) == []
    assert [copy.waits for copy in enqueued] == [1, 1]
    assert side.close(20) == []


def test_closing_without_time_names_the_copies_that_run(enqueued):
    engine = Engine(slots(4))
    ids = [transfer.id for transfer in transfers(engine, 2)]
    assert engine.workers[0]._side.close(0) == ids


def test_a_load_leaves_absent_blocks_alone():
    pairs = Geometry(4, BLOCK_BYTES, blocks_per_chunk=2)
    with Connector.load(f"cpu://?capacity={2 * pairs.slot_bytes}") as connector:
        scheduler = connector.open_scheduler(pairs, SPACE)
        page = torch.zeros(4, BLOCK_BYTES, dtype=torch.uint8)
        caches = KVCaches({"layer": page}, num_blocks=4, blocks_per_chunk=2)
        worker = connector.open_worker(pairs, SPACE, caches)
        page[0], page[1] = 1, 2
        store = scheduler.prepare_store(Request("r"), KEYS[:1]).transfer
        worker.submit(store, [[0, 1]])
        scheduler.complete_transfer(store, worker.poll()[0][1])
        load = scheduler.prepare_load(Request("r"), KEYS[:1])
        worker.submit(load, [[ABSENT, 3]])
        scheduler.complete_transfer(load, worker.poll()[0][1])
        assert [int(block[0]) for block in page] == [1, 2, 0, 2]


def resident(address, nbytes):
    """Bytes of the mapping that the kernel has given memory for."""
    first, total = address >> 12, 0
    with open("/proc/self/pagemap", "rb") as file:  # noqa: PTH123 - eight bytes a page
        file.seek(first * 8)
        for _ in range(nbytes >> 12):
            total += (int.from_bytes(file.read(8), "little") >> 63) << 12
    return total


@pytest.mark.parametrize("prefault", ["true", "false"])
def test_memory_is_taken_at_the_start_where_that_is_asked_for(prefault):
    engine = Engine(f"{slots(1024)}&prefault={prefault}")
    pool = engine.workers[0].pool
    taken = resident(pool.address(0), 1024 * SLOT)
    assert taken == (1024 * SLOT if prefault == "true" else 0)
    engine.store(KEYS)
    assert engine.scheduler.lookup(Request("load"), KEYS) == 8
    assert engine.loads(KEYS)
