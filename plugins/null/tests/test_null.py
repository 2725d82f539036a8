"""A backend that accepts everything, completes it, and keeps nothing."""

from __future__ import annotations

import pytest
import torch

from kvconn.connector import Connector
from kvconn.errors import ConfigurationError
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches
from kvconn.types import Request

GEOMETRY, SPACE = Geometry(4, 3000), Namespace("m")
KEYS = [content_key(number) for number in range(8)]
REQUEST = Request("r")


@pytest.fixture
def connector():
    with Connector.load({"backend": "null://", "strict": True}) as connector:
        yield connector


@pytest.fixture
def scheduler(connector):
    return connector.open_scheduler(GEOMETRY, SPACE)


@pytest.fixture
def page():
    return torch.full((8, 3000), 7, dtype=torch.uint8)


@pytest.fixture
def worker(connector, page):
    return connector.open_worker(GEOMETRY, SPACE, KVCaches({"layer": page}, num_blocks=8))


def store(scheduler, worker, keys):
    plan = scheduler.prepare_store(REQUEST, keys)
    worker.submit(plan.transfer, [[block] for block in range(len(plan.accepted))])
    ((transfer_id, verdicts),) = worker.poll()
    assert transfer_id == plan.transfer.id
    scheduler.complete_transfer(plan.transfer, verdicts)
    return plan, verdicts


def test_every_offer_is_accepted_and_completes_at_once(scheduler, worker):
    for _ in range(3):  # the same keys again: nothing is remembered
        plan, verdicts = store(scheduler, worker, KEYS)
        assert plan.accepted == tuple(KEYS)
        assert not plan.evicted
        assert verdicts == [True] * 8
    assert scheduler.collect_stats()["stored"] == 24


def test_a_key_that_is_offered_twice_is_accepted_once(scheduler, worker):
    plan, _ = store(scheduler, worker, [KEYS[0], KEYS[0], KEYS[1]])
    assert plan.accepted == (KEYS[0], KEYS[1])
    assert scheduler.collect_stats()["backend_errors"] == 0


def test_every_lookup_is_a_miss_and_there_is_nothing_to_load(scheduler, worker):
    store(scheduler, worker, KEYS)
    assert scheduler.lookup(REQUEST, KEYS) == 0
    assert scheduler.prepare_load(REQUEST, KEYS) is None
    assert scheduler.collect_stats()["hits"] == 0


def test_no_memory_is_set_aside(scheduler, worker):
    assert worker.pool.slots == 0
    stats = scheduler.collect_stats()
    assert [stats["entries"], stats["capacity"], stats["leases"]] == [0, 0, 0]


def test_no_page_is_touched(scheduler, worker, page):
    store(scheduler, worker, KEYS)
    assert (page == 7).all()


def test_what_is_on_its_way_is_counted_until_it_completes(scheduler):
    plans = [scheduler.prepare_store(REQUEST, KEYS[:count]) for count in (2, 3)]
    assert scheduler.collect_stats()["reservations"] == 5
    scheduler.complete_transfer(plans[0].transfer, [False, True])
    assert scheduler.collect_stats()["reservations"] == 3
    scheduler.complete_transfer(plans[1].transfer, [])
    assert scheduler.collect_stats()["reservations"] == 0


def test_a_reset_has_nothing_to_drop(scheduler, worker):
    store(scheduler, worker, KEYS)
    assert scheduler.reset() == {"null": 0}
    assert scheduler.take_events() == []
    assert not scheduler.has_pending_work()


def test_a_life_cycle_leaves_nothing(scheduler, worker, connector):
    scheduler.request_started(REQUEST)
    scheduler.touch(REQUEST, KEYS)
    store(scheduler, worker, KEYS)
    worker.flush([1])
    worker.wait([1], 0)
    scheduler.step()
    scheduler.request_finished(REQUEST)
    stats = scheduler.collect_stats()
    assert [stats[name] for name in ("backend_errors", "requests", "transfers")] == [0, 0, 0]
    assert connector.close() == []
    assert connector.close() == []


def test_it_takes_no_options():
    with pytest.raises(ConfigurationError, match=r"kvconn-null .* has no option 'capacity'"):
        Connector.load("null://?capacity=1MiB")
