"""One block there and back, through everything: policies, backend, worker, store."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import torch

from kvconn.connector import Connector
from kvconn.doctor.finding import Finding, Verdict
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches
from kvconn.registry import load_backend_class
from kvconn.types import Request

if TYPE_CHECKING:
    from kvconn.config import ConnectorConfig
    from kvconn.scheduler import SchedulerConnector
    from kvconn.types import Transfer
    from kvconn.worker import WorkerConnector

__all__ = ["round_trip"]

_LAYERS, _PAGE_BYTES = 4, 65536
_PATIENCE_S = 20.0


def round_trip(config: ConnectorConfig) -> Finding:
    """Stores a block in a namespace of its own, loads it, compares it, and removes it."""
    about = "one block there and back"
    if not any(load_backend_class(choice.name).keeps for choice in config.tiers):
        says = f"{config.backend.name} keeps nothing, as it declares: nothing is ever loaded"
        return Finding(about, Verdict.DOUBT, says)
    pages = {
        f"layer {i}": torch.randint(0, 256, (2, _PAGE_BYTES), dtype=torch.uint8)
        for i in range(_LAYERS)
    }
    caches = KVCaches(pages, num_blocks=2)
    geometry = Geometry(block_tokens=16, block_bytes=caches.block_bytes)
    namespace = Namespace("kvconn doctor", revision=uuid.uuid4().hex)
    began = time.monotonic()
    with Connector(config) as connector:
        scheduler = connector.open_scheduler(geometry, namespace)
        worker = connector.open_worker(geometry, namespace, caches)
        try:
            said = _there_and_back(scheduler, worker, pages)
        finally:
            scheduler.reset()
            ends = time.monotonic() + _PATIENCE_S
            while scheduler.has_pending_work() and time.monotonic() < ends:
                scheduler.step()
                time.sleep(0.001)
    name, seconds = connector.backend_name, time.monotonic() - began
    if said:
        return Finding(about, Verdict.BAD, f"{name}: {said}")
    says = f"{name}: {caches.block_bytes >> 10} KiB stored, found and loaded in {seconds:.2f} s"
    return Finding(about, Verdict.GOOD, says)


def _there_and_back(
    scheduler: SchedulerConnector, worker: WorkerConnector, pages: dict[str, torch.Tensor]
) -> str:
    """What went wrong, if anything did."""
    request, keys = Request("kvconn doctor"), [content_key("kvconn doctor")]
    plan = scheduler.prepare_store(request, keys)
    if plan.transfer is None:
        return "it declined a store while it is empty: look at its capacity and into the log"
    if not _moved(scheduler, worker, plan.transfer, [[0]]):
        return "the store failed: the log says what it raised"
    for _ in range(scheduler.has_pending_work() * 1000):
        for move in scheduler.step():
            _moved(scheduler, worker, move, [])
        if not scheduler.has_pending_work():
            break
        time.sleep(0.001)
    ends = time.monotonic() + _PATIENCE_S
    while (found := scheduler.lookup(request, keys)) is None and time.monotonic() < ends:
        scheduler.step()
        time.sleep(0.001)
    if not found:
        return "what was stored is not found: look into the log"
    load = scheduler.prepare_load(request, keys)
    if load is None or not _moved(scheduler, worker, load, [[1]]):
        return "the load failed: the log says what it raised"
    scheduler.request_finished(request)
    if not all(torch.equal(layer[0], layer[1]) for layer in pages.values()):
        return "other bytes came back than were stored: do not use it"
    return ""


def _moved(
    scheduler: SchedulerConnector,
    worker: WorkerConnector,
    transfer: Transfer,
    rows: list[list[int]],
) -> bool:
    worker.submit(transfer, rows)
    worker.wait([transfer.id], _PATIENCE_S)
    said = dict(worker.poll()).get(transfer.id, [])
    scheduler.complete_transfer(transfer, said)
    return bool(said) and all(said)
