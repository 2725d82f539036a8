"""A worker whose backend says nothing, or takes too long to let go of pages."""

from __future__ import annotations

import time

import pytest
import torch

from kvconn.backend import Backend, PluginConfig, PoolSize
from kvconn.errors import MisuseError
from kvconn.geometry import Geometry
from kvconn.identity import Namespace
from kvconn.memory import KVCaches
from kvconn.types import Transfer, TransferKind
from kvconn.worker import WorkerConnector

KEY = bytes(16)


class Silent:
    """Never reports, and would write into engine pages whenever it is called again."""

    def __init__(self):
        self.calls = []
        self.flushed = True

    def submit(self, transfer, blocks):
        self.calls.append("submit")

    def poll(self):
        self.calls.append("poll")
        return []

    def flush(self, transfer_ids, deadline):
        self.calls.append("flush")
        return self.flushed

    def wait(self, transfer_ids, deadline):
        self.calls.append("wait")

    def close(self, deadline):
        return []


class Mute(Backend):
    contract_version = 1

    def pool_size(self, geometry):
        return PoolSize(0, geometry.slot_bytes)

    def open_worker(self, pool, caches, namespace, shard):
        self.side = Silent()
        return self.side

    def _not_here(self, *arguments):
        raise NotImplementedError

    open_scheduler = lookup = release = prepare_load = touch = _not_here
    prepare_store = complete_transfer = reset = _not_here


@pytest.fixture
def mute():
    return Mute(PluginConfig())


@pytest.fixture
def worker(mute):
    caches = KVCaches({"kv": torch.zeros(4, 64, dtype=torch.uint8)}, num_blocks=4)
    worker = WorkerConnector(mute, Geometry(1, 64), Namespace("m"), caches)
    yield worker
    worker.close()


@pytest.fixture
def later(monkeypatch):
    """Moves the clock on."""

    def move(seconds):
        now = time.monotonic()
        monkeypatch.setattr("kvconn.worker.time.monotonic", lambda: now + seconds)

    return move


def transfer(number, kind=TransferKind.LOAD, timeout_s=10.0):
    return Transfer(number, kind, "r", (KEY,), timeout_s=timeout_s)


def test_F3_a_transfer_of_which_nothing_is_heard_fails_after_its_time(worker, later):
    worker.submit(transfer(1), [[0]])
    later(9.0)
    assert worker.poll() == []
    later(12.0)
    assert worker.poll() == [(1, [False])]


def test_L8_a_backend_that_was_silent_is_never_called_again(worker, mute, later):
    """Its next call could copy into pages that by now belong to another request."""
    worker.submit(transfer(1), [[0]])
    later(12.0)
    worker.poll()
    mute.side.calls.clear()
    worker.submit(transfer(2), [[1]])
    assert worker.poll() == [(2, [False])]
    worker.wait([2], 1.0)
    worker.flush([2])
    assert mute.side.calls == []


def test_F3_what_else_it_was_given_fails_with_it(worker, later):
    worker.submit(transfer(1), [[0]])
    worker.submit(transfer(2, timeout_s=1000.0), [[1]])
    later(12.0)
    assert sorted(worker.poll()) == [(1, [False]), (2, [False])]
    assert worker.transfers_running == 0


def test_F3_a_store_that_could_not_let_go_of_its_pages_in_time_has_failed(worker, mute):
    worker.submit(transfer(1, TransferKind.STORE), [[0]])
    mute.side.flushed = False
    worker.flush([1], deadline=0.01)
    mute.side.poll = lambda: [(1, [True])]
    assert worker.poll() == [(1, [False])]


def test_F2_a_store_of_which_nothing_is_heard_fails_alone(worker, mute, later):
    worker.submit(transfer(1, TransferKind.STORE), [[0]])
    later(12.0)
    assert worker.poll() == [(1, [False])]
    mute.side.calls.clear()
    worker.submit(transfer(2, TransferKind.STORE), [[1]])
    assert mute.side.calls == ["submit"]


@pytest.mark.parametrize("block", [2**64 - 1, 2**63, 10**30, 4, -2])
def test_L7_a_store_of_a_block_that_does_not_exist_fails(block):
    from kvconn.memory import Copier, HostPool  # noqa: PLC0415 - this test alone

    caches = KVCaches({"kv": torch.zeros(4, 64, dtype=torch.uint8)}, num_blocks=4)
    pool = HostPool(4096, 1)
    with pytest.raises(MisuseError):
        Copier(pool, caches).gather([[block]], [0])
    pool.close()


def test_L4_an_engine_may_use_its_block_table_again_at_once(worker, mute):
    seen = []
    mute.side.submit = lambda transfer, blocks: seen.append(blocks)
    rows = [[3]]
    worker.submit(transfer(1), rows)
    rows[0][0] = 2
    assert seen == [[[3]]]
