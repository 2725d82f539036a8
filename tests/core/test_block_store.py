"""Seals, jobs and the worker of a block store, piece by piece."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvconn.backend import PluginConfig
from kvconn.blockstore import BlockStore, Capabilities
from kvconn.blockstore.operations import Operations
from kvconn.blockstore.seal import SEAL_BYTES, object_bytes, seal, seals_hold
from kvconn.blockstore.worker import StoreWorker
from kvconn.geometry import SLOT_ALIGNMENT
from kvconn.identity import Namespace, Shard, content_key, object_id, parse_object_id
from kvconn.memory import HostPool, KVCaches
from kvconn.types import Transfer, TransferKind, new_transfer_id

NAME = object_id(Namespace("m").digest, 0, Shard(), content_key("x"))
PAYLOAD = 1000


def sealed(payload_bytes: int = PAYLOAD, name: bytes = NAME) -> bytearray:
    buffer = bytearray(b"\xaa" * object_bytes(payload_bytes))
    seal([memoryview(buffer)], [name], payload_bytes)
    return buffer


# -- seal (K4) ---------------------------------------------------------------------------------


@given(st.integers(1, 1 << 20))
def test_an_object_is_the_smallest_aligned_size_with_room_for_its_seal(payload):
    size = object_bytes(payload)
    assert size % SLOT_ALIGNMENT == 0
    assert payload + SEAL_BYTES <= size < payload + SEAL_BYTES + SLOT_ALIGNMENT


@pytest.mark.parametrize("payload", [1, PAYLOAD, 4096 - SEAL_BYTES, 4096, 4097])
def test_what_was_sealed_holds_and_keeps_its_payload(payload):
    buffer = sealed(payload)
    assert seals_hold([memoryview(buffer)], [NAME], payload) == [True]
    assert buffer[:payload] == b"\xaa" * payload
    assert not any(buffer[payload:-SEAL_BYTES])


@given(st.integers(0, object_bytes(PAYLOAD) - 1), st.integers(1, 255))
def test_K4_a_flipped_byte_anywhere_breaks_the_seal(at, flip):
    buffer = sealed()
    buffer[at] ^= flip
    assert seals_hold([memoryview(buffer)], [NAME], PAYLOAD) == [False]


@pytest.mark.parametrize(
    "name",
    [
        object_id(Namespace("other").digest, 0, Shard(), content_key("x")),
        object_id(Namespace("m").digest, 1, Shard(), content_key("x")),
        object_id(Namespace("m").digest, 0, Shard(0, 2), content_key("x")),
        object_id(Namespace("m").digest, 0, Shard(), content_key("y")),
        NAME + b"\0",
        NAME[:-1],
    ],
)
def test_K4_an_object_of_another_name_is_not_that_object(name):
    assert seals_hold([memoryview(sealed())], [name], PAYLOAD) == [False]


def test_K4_an_object_of_another_length_is_not_that_object():
    assert seals_hold([memoryview(sealed())], [NAME], PAYLOAD - 1) == [False]
    assert seals_hold([memoryview(sealed() + bytes(SLOT_ALIGNMENT))], [NAME], PAYLOAD) == [False]
    assert seals_hold([memoryview(sealed())[SLOT_ALIGNMENT // 2 :]], [NAME], PAYLOAD) == [False]


def test_zeros_are_no_object():
    assert seals_hold([memoryview(bytes(object_bytes(PAYLOAD)))], [NAME], PAYLOAD) == [False]


def test_a_name_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="bytes: at most"):
        sealed(name=b"x" * 200)


# -- worker ------------------------------------------------------------------------------------

BLOCKS, PAGE = 16, 512


class Recorder(BlockStore):
    """Keeps objects in a dict and notes every call with the thread that made it."""

    def __init__(self) -> None:
        super().__init__(PluginConfig())
        self.objects: dict[bytes, bytes] = {}
        self.calls: list[tuple[str, list[bytes]]] = []
        self.threads: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.closed = 0
        self.fails: set[str] = set()

    def _note(self, call: str, ids) -> None:
        self.calls.append((call, [parse_object_id(name)[3] for name in ids]))
        self.threads.add(threading.current_thread().name)
        assert self.gate.wait(20)
        if call in self.fails:
            raise OSError(call)

    def exists(self, ids):
        raise NotImplementedError

    def get(self, ids, buffers):
        self._note("get", ids)
        for name, buffer in zip(ids, buffers, strict=True):
            if name in self.objects:
                buffer[:] = self.objects[name]
        return [name in self.objects for name in ids]

    def put(self, ids, buffers):
        self._note("put", ids)
        self.objects.update(zip(ids, map(bytes, buffers), strict=True))
        return [True] * len(ids)

    def delete(self, ids):
        self._note("delete", ids)
        return [self.objects.pop(name, None) is not None for name in ids]

    def close(self):
        self.closed += 1


@pytest.fixture
def store():
    store = Recorder()
    yield store
    store.gate.set()


@pytest.fixture
def pages() -> torch.Tensor:
    return torch.arange(BLOCKS * PAGE, dtype=torch.int32).to(torch.uint8).view(BLOCKS, PAGE)


@pytest.fixture
def pool():
    pool = HostPool(object_bytes(PAGE), 4)
    yield pool
    pool.close()


@pytest.fixture
def worker(store, pages, pool):
    caches = KVCaches({"layer": pages}, num_blocks=BLOCKS)
    worker = StoreWorker(
        Operations(store), pool, caches, Namespace("m").digest, Shard(), readers=2, writers=1
    )
    yield worker
    store.gate.set()
    worker.close(20)


def keys(count: int, start: int = 0) -> tuple[bytes, ...]:
    return tuple(content_key(number) for number in range(start, start + count))


def transfer(kind: TransferKind, named: tuple[bytes, ...], **options) -> Transfer:
    return Transfer(new_transfer_id(), kind, "r", named, **options)


def run(worker: StoreWorker, moved: Transfer, rows) -> list[bool]:
    worker.submit(moved, rows)
    worker.wait([moved.id], 20)
    ((id_, verdicts),) = worker.poll()
    assert id_ == moved.id
    return verdicts


def test_a_chunk_goes_out_and_comes_back_into_other_blocks(worker, pages, pool):
    wanted = pages.clone()
    assert run(worker, transfer(TransferKind.STORE, keys(3)), [[0], [1], [2]]) == [True] * 3
    pages[:8] = 0
    assert run(worker, transfer(TransferKind.LOAD, keys(3)), [[5], [6], [7]]) == [True] * 3
    assert torch.equal(pages[5:8], wanted[:3])
    assert not pages[:5].any()
    assert pool.free == 4


def test_pages_may_be_used_again_when_submit_returns(worker, store, pages):
    wanted = pages[0].clone()
    store.gate.clear()
    stored = transfer(TransferKind.STORE, keys(1))
    worker.submit(stored, [[0]])
    assert worker.flush([stored.id], 1.0)
    pages[0] = 7
    store.gate.set()
    worker.wait([stored.id], 20)
    assert worker.poll() == [(stored.id, [True])]
    (data,) = store.objects.values()
    assert data[:PAGE] == wanted.numpy().tobytes()


def test_a_deletion_goes_before_its_store(worker, store):
    run(worker, transfer(TransferKind.STORE, keys(1)), [[0]])
    run(worker, transfer(TransferKind.STORE, keys(1, 1), evictions=keys(1)), [[1]])
    assert store.calls == [
        ("put", list(keys(1))), ("delete", list(keys(1))), ("put", list(keys(1, 1))),
    ]  # fmt: skip
    assert len(store.objects) == 1


def test_nothing_is_stored_when_what_goes_before_cannot_be_deleted(worker, store, pool):
    store.fails = {"delete"}
    stored = transfer(TransferKind.STORE, keys(2), evictions=keys(1, 9))
    assert run(worker, stored, [[0], [1]]) == [False, False]
    assert store.objects == {}
    assert pool.free == 4


def test_a_key_deleted_and_stored_again_is_there(worker, store):
    again = transfer(TransferKind.STORE, keys(1), evictions=keys(1))
    run(worker, transfer(TransferKind.STORE, keys(1)), [[0]])
    run(worker, again, [[0]])
    assert len(store.objects) == 1


def test_no_call_is_made_from_the_engines_thread(worker, store):
    run(worker, transfer(TransferKind.STORE, keys(4)), [[i] for i in range(4)])
    run(worker, transfer(TransferKind.LOAD, keys(4)), [[i] for i in range(4)])
    assert threading.current_thread().name not in store.threads
    assert all(name.startswith("kvconn-") for name in store.threads)


def test_a_load_is_spread_over_the_threads(worker, store):
    run(worker, transfer(TransferKind.STORE, keys(4)), [[i] for i in range(4)])
    store.calls.clear()
    run(worker, transfer(TransferKind.LOAD, keys(4)), [[i] for i in range(4)])
    assert sorted(store.calls) == sorted(("get", list(keys(1, i))) for i in range(4))


def test_a_store_that_works_in_parallel_gets_its_batch_in_a_few_calls(store, pages, monkeypatch):
    monkeypatch.setattr("kvconn.blockstore.worker._OVERLAP", 2)
    store.capabilities = Capabilities(parallel=True)
    pool = HostPool(object_bytes(PAGE), 64)
    caches = KVCaches({"layer": pages}, num_blocks=BLOCKS)
    worker = StoreWorker(
        Operations(store), pool, caches, Namespace("m").digest, Shard(), readers=2, writers=1
    )
    run(worker, transfer(TransferKind.STORE, keys(8)), [[i] for i in range(8)])
    run(worker, transfer(TransferKind.LOAD, keys(8)), [[i] for i in range(8)])
    worker.close(20)
    halves = list(keys(4)), list(keys(4, 4))
    assert sorted(store.calls) == sorted((call, half) for call in ("put", "get") for half in halves)


def test_a_worker_that_another_one_stores_for_puts_nothing_and_loads_all(store, pages, pool):
    caches = KVCaches({"layer": pages}, num_blocks=BLOCKS)

    def make(**options):
        space = Namespace("m").digest
        return StoreWorker(
            Operations(store), pool, caches, space, Shard(), readers=2, writers=1, **options
        )

    one, other = make(), make(stores=False)
    moved = transfer(TransferKind.STORE, keys(3))
    rows = [[i] for i in range(3)]
    assert run(other, moved, rows) == [True] * 3
    assert store.calls == []
    assert run(one, moved, rows) == [True] * 3
    assert run(other, transfer(TransferKind.LOAD, keys(3)), rows) == [True] * 3
    one.close(20)
    other.close(20)


def test_more_keys_than_slots_are_loaded_one_after_the_other(worker, store, pool):
    for start in range(0, 12, 4):
        rows = [[i] for i in range(4)]
        run(worker, transfer(TransferKind.STORE, keys(4, start)), rows)
    assert run(worker, transfer(TransferKind.LOAD, keys(12)), [[i] for i in range(12)]) == (
        [True] * 12
    )
    assert pool.free == 4


def test_a_missing_object_is_a_verdict_and_changes_no_page(worker, pages):
    before = pages.clone()
    assert run(worker, transfer(TransferKind.LOAD, keys(2)), [[0], [1]]) == [False, False]
    assert torch.equal(pages, before)


@pytest.mark.parametrize("rows", [[], [[0]], [[0], [BLOCKS]], [[0, 1], [2, 3]]])
def test_rows_that_do_not_fit_fail_a_load_and_leak_no_slot(worker, pages, pool, rows):
    run(worker, transfer(TransferKind.STORE, keys(2)), [[0], [1]])
    pages.zero_()
    assert not all(run(worker, transfer(TransferKind.LOAD, keys(2)), rows))
    assert pool.free == 4
    assert not pages[1:].any()


def test_a_broken_object_is_removed(worker, store):
    run(worker, transfer(TransferKind.STORE, keys(2)), [[0], [1]])
    name = next(name for name in store.objects if name.endswith(keys(1)[0]))
    store.objects[name] = store.objects[name][:-1] + b"?"
    assert run(worker, transfer(TransferKind.LOAD, keys(2)), [[0], [1]]) == [False, True]
    assert name not in store.objects


def test_waiting_ends_at_its_own_deadline_and_not_with_the_transfer(worker, store):
    store.gate.clear()
    stored = transfer(TransferKind.STORE, keys(1))
    worker.submit(stored, [[0]])
    worker.wait([stored.id], 0.01)
    assert worker.poll() == []
    worker.wait([12345], 20)  # unknown, so there is nothing to wait for
    store.gate.set()
    worker.wait([stored.id], 20)
    assert worker.poll() == [(stored.id, [True])]


def test_a_transfer_ends_at_its_own_deadline_though_nobody_polls(worker, store, pool):
    store.gate.clear()
    stored = transfer(TransferKind.STORE, keys(1), timeout_s=0.01)
    worker.submit(stored, [[0]])
    worker.wait([stored.id], 20)
    assert worker.poll() == [(stored.id, [False])]
    assert pool.quarantined == 1


def test_closing_waits_for_what_runs_and_closes_the_store_once(worker, store):
    worker.submit(transfer(TransferKind.STORE, keys(1)), [[0]])
    assert worker.close(20) == []
    assert store.closed == 1
    assert len(store.objects) == 1


def test_closing_in_vain_names_what_is_left_and_leaves_the_store_open(worker, store):
    store.gate.clear()
    left = transfer(TransferKind.STORE, keys(1))
    worker.submit(left, [[0]])
    assert worker.close(0.01) == [left.id]
    assert store.closed == 0


def test_what_is_put_after_the_close_is_taken_back(worker, store):
    store.gate.clear()
    worker.submit(transfer(TransferKind.STORE, keys(1)), [[0]])
    worker.close(0.01)
    store.gate.set()
    assert worker._threads.close(20)
    assert store.objects == {}
