"""C1 to C3 through the door that engines use; each case of them is tested with its module."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from kvconn.connector import Connector
from kvconn.errors import ConfigurationError
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.registry import BACKENDS, available
from kvconn.types import Request

SOURCE = """
from pathlib import Path
from typing import Annotated
from pydantic import SecretStr
from kvconn.backend import PluginConfig, PoolSize
from kvconn.config import Capacity, Per
from kvconn.indexed import IndexedBackend


class ShedConfig(PluginConfig):
    capacity: Annotated[Capacity, Per.TOTAL]
    eviction: str = "lru"
    password: SecretStr = SecretStr("")


class Shed(IndexedBackend):
    contract_version = {version}
    tier = "shed"
    Config = ShedConfig
    def chunks_that_fit(self, geometry):
        return int(self.config.capacity) // (geometry.slot_bytes * geometry.ranks)
    def eviction_name(self): return self.config.eviction
    def pool_size(self, geometry): return PoolSize(0, geometry.slot_bytes)
    def open_worker(self, pool, caches, namespace, shard): raise NotImplementedError
"""
GOOD = SOURCE.replace("{version}", "1")

HEAP = """
from kvconn.blockstore import BlockStore, BlockStoreBackend


class Store(BlockStore):
    def exists(self, ids): return [False] * len(ids)
    get = put = lambda self, ids, buffers: [False] * len(ids)
    delete = exists


class Heap(BlockStoreBackend):
    contract_version = 1
    tier = "heap"
    Store = Store
"""


@pytest.fixture
def shed(install):
    """Installs a backend called ``shed``."""
    return lambda source=GOOD: install("kvconn-shed", source, backends={"shed": "Shed"})


@pytest.mark.parametrize(
    ("source", "url", "said"),
    [
        (GOOD, "shed://?capasity=1GiB", ["'capasity'", "'capacity'", "kvconn-shed 1.0"]),
        (GOOD, "sched://?capacity=1GiB", ["'sched'", "shed", "pip install"]),
        (SOURCE.replace("{version}", "99"), "shed://?capacity=1GiB", ["99", "kvconn-shed 1.0"]),
        ("import nowhere_to_be_found", "shed://?capacity=1GiB",
         ["nowhere_to_be_found", "kvconn-shed 1.0"]),
        ("raise SystemExit(3)", "shed://?capacity=1GiB", ["does not import", "kvconn-shed 1.0"]),
        (GOOD.replace("def pool_size", "def pool_sise"), "shed://?capacity=1GiB",
         ["pool_size", "kvconn-shed 1.0"]),
    ],
    ids=["misspelt option", "unknown backend", "another contract", "does not import",
         "ends the process", "lacks a hook"],
)  # fmt: skip
def test_C1_what_cannot_be_is_said_at_the_start_with_who_and_what_to_do(shed, source, url, said):
    shed(source)
    with pytest.raises(ConfigurationError) as caught:
        Connector.load(url)
    assert all(word in str(caught.value) for word in said), str(caught.value)


@pytest.mark.parametrize("option", ["eviction=lur", "eviction=shed"])
def test_C1_an_unknown_eviction_policy_is_said_with_those_that_are_there(shed, option):
    shed()
    with Connector.load(f"shed://?capacity=1GiB&{option}") as connector:
        with pytest.raises(ConfigurationError, match=rf"'{option[9:]}'.*arc, lru"):
            connector.open_scheduler(Geometry(1, 1), Namespace("m"))
        assert connector.close() == []


CHUNK = Geometry(4, 4000).slot_bytes


@pytest.mark.parametrize(
    ("capacity", "ranks", "chunks"), [(CHUNK, 1, 1), (2 * CHUNK, 2, 1), (9 * CHUNK, 2, 4)]
)
@pytest.mark.parametrize("store", [False, True])
def test_C2_a_capacity_in_total_is_shared_by_the_ranks(
    install, shed, store, capacity, ranks, chunks
):
    shed()
    install("kvconn-heap", HEAP, backends={"heap": "Heap"})
    # An object of a store carries its seal; these chunks leave room for it.
    geometry = Geometry(4, 4096 - 160 if store else 4000, ranks=ranks)
    with Connector.load(f"{'heap' if store else 'shed'}://?capacity={capacity}") as connector:
        scheduler = connector.open_scheduler(geometry, Namespace("m"))
        assert scheduler.collect_stats()["capacity"] == chunks


@pytest.mark.parametrize("group", ["backends", "policies", "eviction"])
def test_C1_a_broken_plugin_that_is_not_used_harms_nobody(install, shed, group):
    install("kvconn-broken", "raise SystemExit(1)", **{group: {"broken": "Broken"}})
    shed()
    assert group != "backends" or "broken" in available(BACKENDS)
    with Connector.load("shed://?capacity=1GiB&eviction=lru") as connector:
        scheduler = connector.open_scheduler(Geometry(1, 1), Namespace("m"))
        assert scheduler.prepare_store(Request("r"), [content_key("x")]).accepted


def test_C2_a_size_has_a_unit_and_is_logged_once_as_what_it_came_to(shed, caplog):
    shed()
    caplog.set_level(logging.INFO, "kvconn")
    with Connector.load("shed://?capacity=1GiB"):
        pass
    about = [r.getMessage() for r in caplog.records if "1073741824" in r.getMessage().replace(
        ",", "").replace("_", "")]  # fmt: skip
    assert len(about) == 1
    assert "total" in about[0]


@pytest.mark.parametrize("size", ["many", "-1GiB", "1XB"])
def test_C2_what_is_no_size_is_refused(shed, size):
    shed()
    with pytest.raises(ConfigurationError, match="'capacity'"):
        Connector.load(f"shed://?capacity={size}")


@pytest.mark.parametrize(
    "query",
    ["capacity=1GiB", "capacity=nonsense", "capasity=1", "capacity=1&password=hunter2secret"],
)
def test_C3_a_secret_is_in_no_log_and_no_error(shed, caplog, query):
    shed()
    caplog.set_level(logging.DEBUG)
    said = ""
    try:
        connector = Connector.load(f"shed://?password=hunter2secret&{query}")
        said = repr(connector.config) + repr(connector._backend.config)
        scheduler = connector.open_scheduler(Geometry(1, 1), Namespace("m"))
        request = Request("r", params={"token": "hunter2secret"})
        transfer = scheduler.prepare_store(request, [content_key("x")]).transfer
        said += f"{transfer.to_bytes()} {transfer} {scheduler.collect_stats()}"
        connector.close()
    except ConfigurationError as error:
        said = f"{error!r} {error.__cause__!r} {error.__context__!r}"
    assert "hunter2secret" not in said + caplog.text


def test_R6_no_configuration_switches_the_skip_policy_off(install, shed, monkeypatch):
    shed()
    install(
        "kvconn-rival",
        "from kvconn.policy import Policy\nclass Rival(Policy):\n    contract_version = 1\n",
        policies={"prefix_skip": "Rival"},
    )
    monkeypatch.setenv("KVCONN_FORBID", "prefix_skip")
    keys = [content_key("x")]
    for policies in ([], ["prefix_skip"]):
        config = {"backend": "shed://?capacity=1GiB", "policies": policies}
        with Connector.load(config) as connector:
            scheduler = connector.open_scheduler(Geometry(1, 1), Namespace("m"))
            transfer = scheduler.prepare_store(Request("w"), keys).transfer
            scheduler.complete_transfer(transfer, [True])
            assert scheduler.lookup(Request("r", skip_reading_prefix_cache=True), keys) == 0
            assert scheduler.lookup(Request("p"), keys) == 1


def test_no_guarantee_imports_a_plugin():
    """So that they run where only the core is installed."""
    here = Path(__file__).parent
    plugins = ("kvconn_cpu", "kvconn_disk", "kvconn_null")
    sources = [path for path in here.rglob("*.py") if path != Path(__file__)]
    assert len(sources) >= 5
    for path in sources:
        assert not any(plugin in path.read_text() for plugin in plugins), path
