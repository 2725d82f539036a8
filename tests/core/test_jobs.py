"""Jobs of a block store over a dict, and who gets the staging slots."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from kvconn.backend import PluginConfig
from kvconn.blockstore import BlockStore
from kvconn.blockstore.jobs import Job, Pending
from kvconn.blockstore.operations import Operations
from kvconn.blockstore.seal import (
    UNKNOWN_LAYOUT,
    layout_digest,
    object_bytes,
    seal,
    seals_hold,
    unseal,
)
from kvconn.blockstore.worker import StoreWorker
from kvconn.identity import Namespace, Shard, content_key, object_id
from kvconn.memory import HostPool, KVCaches
from kvconn.types import Transfer, TransferKind, new_transfer_id

SPACE = Namespace("m").digest
BLOCKS, PAGE, SLOTS = 16, 512, 4
LAYOUT = layout_digest([PAGE], 1)
"""Of the pages that the worker moves."""
SIZE = object_bytes(PAGE)
KEYS = tuple(content_key(number) for number in range(BLOCKS))
NAMES = [object_id(SPACE, 0, Shard(), key) for key in KEYS]


class DictStore(BlockStore):
    """Tells when a call begins, and ends it when told."""

    def __init__(self) -> None:
        super().__init__(PluginConfig())
        self.objects: dict[bytes, bytes] = {}
        self.calls: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.began = threading.Semaphore(0)

    def _begin(self, call: str) -> None:
        self.calls.append(call)
        self.began.release()
        assert self.open.wait(20)

    def exists(self, ids):
        return [name in self.objects for name in ids]

    def get(self, ids, buffers):
        self._begin("get")
        for name, buffer in zip(ids, buffers, strict=True):
            stored = self.objects.get(name, b"")
            buffer[: len(stored)] = stored
        return self.exists(ids)

    def put(self, ids, buffers):
        self._begin("put")
        self.objects.update(zip(ids, map(bytes, buffers), strict=True))
        return [True] * len(ids)

    def delete(self, ids):
        self._begin("delete")
        return [self.objects.pop(name, None) is not None for name in ids]


@pytest.fixture
def store():
    store = DictStore()
    yield store
    store.open.set()


def sealed(number: int, byte: int = 7, layout: bytes = UNKNOWN_LAYOUT) -> bytes:
    buffer = bytearray([byte]) * SIZE
    seal([memoryview(buffer)], [NAMES[number]], PAGE, layout)
    return bytes(buffer)


# -- jobs --------------------------------------------------------------------------------------


def job(kind: TransferKind, count: int = 3, deletions: list[bytes] | None = None) -> Job:
    transfer = Transfer(new_transfer_id(), kind, "r", KEYS[:count])
    pending = Pending(transfer, [[0]] * count, NAMES[:count], math.inf)
    buffers = [memoryview(bytearray([7]) * SIZE) for _ in range(count)]
    return Job(pending, range(count), list(range(count)), buffers, PAGE, deletions or [])


def test_a_store_job_seals_each_object_under_its_name(store):
    stored = job(TransferKind.STORE)
    stored.run(Operations(store))
    assert stored.verdicts == [True] * 3
    assert store.objects == {NAMES[number]: sealed(number) for number in range(3)}


def test_a_store_job_deletes_first(store):
    store.objects[NAMES[9]] = store.objects[NAMES[1]] = b"old"
    job(TransferKind.STORE, deletions=[NAMES[9], NAMES[1]]).run(Operations(store))
    assert store.calls == ["delete", "put"]
    assert store.objects.keys() == set(NAMES[:3])


def test_a_job_that_only_deletes_puts_nothing(store):
    store.objects[NAMES[9]] = b"old"
    job(TransferKind.STORE, count=0, deletions=[NAMES[9]]).run(Operations(store))
    assert store.calls == ["delete"]
    assert store.objects == {}


def test_a_job_that_expired_before_its_turn_deletes_and_moves_nothing(store):
    stored, loaded = job(TransferKind.STORE, deletions=[NAMES[9]]), job(TransferKind.LOAD)
    for late in (stored, loaded):
        late.pending.expired = True
        late.run(Operations(store))
        assert late.verdicts == [False] * 3
    assert store.calls == ["delete"]


def test_a_load_job_fills_each_buffer_with_its_object(store):
    store.objects = {NAMES[number]: sealed(number, number) for number in range(3)}
    loaded = job(TransferKind.LOAD)
    loaded.run(Operations(store))
    assert loaded.verdicts == [True] * 3
    assert [buffer[:PAGE].tolist() for buffer in loaded.buffers] == [[n] * PAGE for n in range(3)]
    assert loaded.broken == []


def test_a_load_job_names_what_is_broken_and_not_what_is_missing(store):
    store.objects = {NAMES[0]: sealed(1), NAMES[2]: sealed(2)[:-1] + b"?"}
    loaded = job(TransferKind.LOAD)
    loaded.run(Operations(store))
    assert loaded.verdicts == [False] * 3
    assert loaded.broken == [NAMES[0], NAMES[2]]


def test_an_object_that_is_read_short_is_not_completed_by_what_was_in_the_slot(store):
    """The slot still holds the same object, whole, from an earlier load."""
    store.objects[NAMES[0]] = sealed(0)[:100]
    loaded = job(TransferKind.LOAD, count=1)
    loaded.buffers[0][:] = sealed(0)
    loaded.run(Operations(store))
    assert loaded.verdicts == [False]


def test_an_unsealed_buffer_is_no_object():
    buffer = memoryview(bytearray(sealed(0)))
    assert seals_hold([buffer], [NAMES[0]], PAGE) == [True]
    unseal(buffer)
    assert seals_hold([buffer], [NAMES[0]], PAGE) == [False]


@pytest.mark.parametrize("kind", [TransferKind.LOAD, TransferKind.STORE])
@pytest.mark.parametrize(
    ("answer", "verdicts"),
    [
        ([True, False, True], [True, False, True]),
        ([1, "yes", None], [False] * 3),
        ([False] * 3, [False] * 3),
    ],
)
def test_only_true_is_a_yes(store, monkeypatch, kind, answer, verdicts):
    store.objects = {NAMES[number]: sealed(number) for number in range(3)}
    moving = job(kind)
    get = store.get

    def get_and_lie(ids, buffers):
        get(ids, buffers)
        return answer

    monkeypatch.setattr(store, "get", get_and_lie)
    monkeypatch.setattr(store, "put", lambda *_: answer)
    moving.run(Operations(store))
    assert moving.verdicts == verdicts


@pytest.mark.parametrize(("answer", "verdicts"), [([], [False] * 3), ([True] * 9, [True] * 3)])
def test_a_put_of_another_number_of_verdicts_is_cut_or_fails(store, monkeypatch, answer, verdicts):
    monkeypatch.setattr(store, "put", lambda *_: answer)
    stored = job(TransferKind.STORE)
    stored.run(Operations(store))
    assert stored.verdicts == verdicts


def test_a_pending_transfer_has_failed_where_nothing_was_decided():
    pending = job(TransferKind.LOAD, count=4).pending
    pending.decide(range(1, 3), [True, False])
    assert pending.verdicts == [False, True, False, False]
    assert pending.undecided == 2
    pending.decide(range(2), [True, True])
    assert pending.undecided == 0


# -- staging slots -----------------------------------------------------------------------------


@pytest.fixture
def pool():
    pool = HostPool(SIZE, SLOTS)
    yield pool
    pool.close()


@pytest.fixture
def worker(store, pool):
    caches = KVCaches({"layer": torch.ones(BLOCKS, PAGE, dtype=torch.uint8)}, num_blocks=BLOCKS)
    worker = StoreWorker(Operations(store), pool, caches, SPACE, Shard(), readers=2, writers=1)
    yield worker
    store.open.set()
    worker.close(20)


def submit(worker: StoreWorker, kind: TransferKind, *keys: bytes, **options) -> int:
    transfer = Transfer(new_transfer_id(), kind, "r", keys, **options)
    worker.submit(transfer, [[block] for block in range(len(keys))])
    return transfer.id


def verdicts(worker: StoreWorker, *ids: int) -> dict[int, list[bool]]:
    worker.wait(ids, 20)
    return dict(worker.poll())


def test_a_store_that_finds_no_staging_declines_the_rest(worker, store, pool):
    stored = submit(worker, TransferKind.STORE, *KEYS[:7])
    assert verdicts(worker, stored) == {stored: [True] * SLOTS + [False] * 3}
    assert store.objects.keys() == set(NAMES[:SLOTS])
    assert pool.free == SLOTS


def test_a_store_that_finds_no_slot_at_all_fails_and_deletes_all_the_same(worker, store):
    store.objects[NAMES[9]] = b"old"
    store.open.clear()
    first = submit(worker, TransferKind.STORE, *KEYS[:SLOTS])
    second = submit(worker, TransferKind.STORE, KEYS[8], evictions=(KEYS[9],))
    store.open.set()
    assert verdicts(worker, first, second) == {first: [True] * SLOTS, second: [False]}
    assert store.objects.keys() == set(NAMES[:SLOTS])


def test_a_load_waits_for_slots_that_a_store_holds(worker, store, pool):
    store.objects = {NAMES[number]: sealed(number, layout=LAYOUT) for number in range(8, 14)}
    store.open.clear()
    stored = submit(worker, TransferKind.STORE, *KEYS[:SLOTS])
    assert store.began.acquire(timeout=20)
    loaded = submit(worker, TransferKind.LOAD, *KEYS[8:14])
    assert pool.free == 0
    assert store.calls == ["put"]
    store.open.set()
    assert verdicts(worker, stored, loaded) == {stored: [True] * SLOTS, loaded: [True] * 6}
    assert pool.free == SLOTS


def test_loads_get_slots_in_the_order_in_which_they_came(worker, store):
    store.objects = {NAMES[number]: sealed(number, layout=LAYOUT) for number in range(BLOCKS)}
    store.open.clear()
    first = submit(worker, TransferKind.LOAD, *KEYS[:6])
    second = submit(worker, TransferKind.LOAD, *KEYS[6:8])
    assert [pending.transfer.id for pending, _ in worker._loads._queue] == [first, second]
    store.open.set()
    assert verdicts(worker, first, second) == {first: [True] * 6, second: [True] * 2}


def test_a_load_that_never_got_a_slot_fails_at_its_deadline_and_takes_none(worker, store, pool):
    store.open.clear()
    stored = submit(worker, TransferKind.STORE, *KEYS[:SLOTS])
    late = submit(worker, TransferKind.LOAD, *KEYS[8:10], timeout_s=0.0)
    assert verdicts(worker, late) == {late: [False, False]}
    store.open.set()
    assert verdicts(worker, stored) == {stored: [True] * SLOTS}
    assert "get" not in store.calls
    assert [pool.free, pool.quarantined] == [SLOTS, 0]


def test_a_quarantined_slot_is_free_when_the_hung_call_returns(worker, store, pool):
    store.open.clear()
    hung = submit(worker, TransferKind.STORE, *KEYS[:2], timeout_s=0.0)
    assert store.began.acquire(timeout=20)
    assert verdicts(worker, hung) == {hung: [False, False]}
    assert [pool.free, pool.quarantined] == [2, 2]
    store.open.set()
    assert worker._threads.close(20)
    assert worker.poll() == []
    assert [pool.free, pool.quarantined] == [SLOTS, 0]
    assert store.objects == {}


def test_a_chunk_of_another_group_or_shard_is_another_object(worker, store, pool):
    stored = submit(worker, TransferKind.STORE, *KEYS[:2])
    assert verdicts(worker, stored) == {stored: [True, True]}
    other_group = submit(worker, TransferKind.LOAD, *KEYS[:2], group=1)
    assert verdicts(worker, other_group) == {other_group: [False, False]}
    worker._shard = Shard(1, 2)
    other_shard = submit(worker, TransferKind.LOAD, *KEYS[:2])
    assert verdicts(worker, other_shard) == {other_shard: [False, False]}


def test_K2_a_chunk_that_was_stored_with_other_pages_is_a_miss_and_goes(worker, store):
    """Though its namespace forgot to say so, and its size is the same."""
    other = layout_digest([PAGE // 2, PAGE // 2], 1)
    store.objects = {NAMES[0]: sealed(0, layout=other), NAMES[1]: sealed(1, layout=LAYOUT)}
    loaded = submit(worker, TransferKind.LOAD, *KEYS[:2])
    assert verdicts(worker, loaded) == {loaded: [False, True]}
    assert store.objects.keys() == {NAMES[1]}
