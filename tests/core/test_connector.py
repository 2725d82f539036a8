"""The door for engines: what it opens, tells, and closes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kvconn.backend import Settings
from kvconn.config import load_config
from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, Shard, content_key
from kvconn.memory import KVCaches
from kvconn.types import Request
from kvconn.worker import WorkerConnector

GEOMETRY, SPACE = Geometry(4, 3000), Namespace("m")
KEYS = [content_key(number) for number in range(4)]

BACKEND = """
from kvconn.backend import PluginConfig, PoolSize
from kvconn.indexed import IndexedBackend
from kvconn.policy import Policy

class Side:
    def __init__(self): self.ended, self.closed = [], 0
    def submit(self, transfer, blocks): self.ended.append((transfer.id, [True] * len(blocks)))
    def poll(self):
        ended, self.ended = self.ended, []
        return ended
    def flush(self, transfer_ids, deadline): ...
    def wait(self, transfer_ids, deadline): ...
    def close(self, deadline):
        self.closed += 1
        return []

class Box(IndexedBackend):
    contract_version = 1
    tier = "box"
    def __init__(self, config):
        super().__init__(config)
        self.side, self.closed, self.shard = Side(), 0, None
    def chunks_that_fit(self, geometry): return 4
    def eviction_name(self): return "lru"
    def pool_size(self, geometry): return PoolSize(1, geometry.slot_bytes)
    def open_worker(self, pool, caches, namespace, shard):
        self.shard = shard
        return self.side
    def close(self, deadline): self.closed += 1

class Refusing(Policy):
    contract_version = 1
    def admit(self, request, keys): return keys[:1]
"""


@pytest.fixture(autouse=True)
def box(install) -> str:
    return install(
        "kvconn-box", BACKEND, backends={"box": "Box"}, policies={"refusing": "Refusing"}
    )


def caches() -> KVCaches:
    page = torch.zeros(4, GEOMETRY.block_bytes, dtype=torch.uint8)
    return KVCaches({"layer": page}, num_blocks=4)


def test_both_halves_share_one_backend_and_work_together():
    with Connector.load("box") as connector:
        scheduler = connector.open_scheduler(GEOMETRY, SPACE)
        worker = connector.open_worker(GEOMETRY, SPACE, caches())
        assert [connector.scheduler, connector.worker] == [scheduler, worker]
        plan = scheduler.prepare_store(Request("r"), KEYS)
        worker.submit(plan.transfer, [[0], [1], [2], [3]])
        for _, verdicts in worker.poll():
            scheduler.complete_transfer(plan.transfer, verdicts)
        assert scheduler.lookup(Request("s"), KEYS) == 4


def test_leaving_the_context_closes_what_was_opened_once():
    with Connector.load("box") as connector:
        connector.open_scheduler(GEOMETRY, SPACE)
        connector.open_worker(GEOMETRY, SPACE, caches())
    backend = connector._backend
    assert [backend.closed, backend.side.closed] == [1, 1]
    assert connector.worker.pool.tensor.numel() == 0
    assert connector.close() == []
    assert [backend.closed, backend.side.closed] == [1, 1]


def test_an_exception_in_the_context_gets_out_and_all_is_closed():
    def work() -> None:
        with connector:
            connector.open_scheduler(GEOMETRY, SPACE)
            raise KeyError(KEYS[0])

    connector = Connector.load("box")
    with pytest.raises(KeyError):
        work()
    assert connector._backend.closed == 1


def test_one_half_may_be_all_that_is_opened():
    for half in ("scheduler", "worker"):
        with Connector.load("box") as connector:
            if half == "scheduler":
                connector.open_scheduler(GEOMETRY, SPACE)
            else:
                connector.open_worker(GEOMETRY, SPACE, caches())
        backend = connector._backend
        assert [backend.closed, backend.side.closed] == [half == "scheduler", half == "worker"]


def test_nothing_opened_is_nothing_to_close():
    assert Connector.load("box").close() == []


def test_closing_names_the_transfers_left_on_both_sides_once():
    connector = Connector.load("box")
    scheduler = connector.open_scheduler(GEOMETRY, SPACE)
    worker = connector.open_worker(GEOMETRY, SPACE, caches())
    plans = [scheduler.prepare_store(Request("r"), [key]) for key in KEYS[:3]]
    for plan in plans[:2]:
        worker.submit(plan.transfer, [[0]])
    left = [plan.transfer.id for plan in plans]
    assert connector.close() == left
    assert connector.close() == left


def test_the_worker_closes_before_the_scheduler(monkeypatch):
    order = []
    connector = Connector.load("box")
    for half in (
        connector.open_scheduler(GEOMETRY, SPACE),
        connector.open_worker(GEOMETRY, SPACE, caches()),
    ):
        monkeypatch.setattr(
            half, "close", lambda deadline, half=half: order.append(type(half)) or []
        )
    connector.close()
    assert order[0] is WorkerConnector
    assert len(order) == 2


@pytest.mark.parametrize("shard", [None, Shard(1, 2)])
def test_a_worker_is_shard_0_of_1_unless_it_is_told_otherwise(shard):
    with Connector.load("box") as connector:
        connector.open_worker(GEOMETRY, SPACE, caches(), shard)
        assert connector._backend.shard == (shard or Shard(0, 1))


def test_a_worker_of_another_geometry_is_refused():
    with (
        Connector.load("box") as connector,
        pytest.raises(ValueError, match="give scheduler and workers the same geometry"),
    ):
        connector.open_worker(Geometry(4, 3001), SPACE, caches())


def test_what_is_configured_reaches_the_backend():
    told = {"backend": "box", "lease_seconds": 5, "transfer_timeout_s": 7, "events": True}
    with Connector.load(told) as connector:
        scheduler = connector.open_scheduler(GEOMETRY, SPACE)
        assert connector._backend.settings == Settings(5.0, 7.0, events=True)
        plan = scheduler.prepare_store(Request("r"), KEYS)
        assert plan.transfer.timeout_s == 7.0
        scheduler.complete_transfer(plan.transfer, [True] * 4)
        assert [event.keys for event in scheduler.take_events()] == [tuple(KEYS)]


def test_strictness_is_that_of_the_configuration():
    for strict in (False, True):
        with Connector.load({"backend": "box", "strict": strict}) as connector:
            assert connector.open_scheduler(GEOMETRY, SPACE).strict is strict


def test_configured_policies_are_asked():
    with Connector.load({"backend": "box", "policies": ["refusing"]}) as connector:
        scheduler = connector.open_scheduler(GEOMETRY, SPACE)
        assert scheduler.prepare_store(Request("r"), KEYS).accepted == (KEYS[0],)


def test_every_plugin_is_registered_by_its_name():
    connector = Connector.load({"backend": "box", "policies": ["refusing"]})
    names = [name for name, _ in connector.plugins.list_name_plugin()]
    assert names == ["box", "prefix_skip", "refusing"]
    assert connector.plugins.get_plugin("box") is connector._backend


def test_something_may_be_put_before_the_backend():
    seen = []
    connector = Connector.load("box", wrap=lambda backend: seen.append(backend) or backend)
    assert seen == [connector._backend]


def test_a_connector_opens_from_whatever_a_configuration_may_be(tmp_path: Path):
    path = tmp_path / "kv.toml"
    path.write_text('backend = "box"')
    sources = ["box", "box://", {"name": "box"}, {"backend": "box"}, path, load_config("box")]
    assert {Connector.load(source).backend_name for source in sources} == {"box"}
