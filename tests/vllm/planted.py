"""A connector for tests: kvconn's own, with a counter at the backend's door and planted faults.

vLLM loads it by its module's name in whatever process it likes.  Faults are chosen by the content
of the file ``$KVCONN_PLANT/fault`` while an engine runs; counts are left in
``$KVCONN_PLANT/counts``.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from kvconn.blockstore import BlockStoreBackend
from kvconn.integrations.vllm import KVConnConnector as RealConnector
from kvconn.testing import Faults, FaultyStore
from kvconn.testing.counting import CountingBackend
from kvconn.types import ABSENT, TransferKind

PLANT = Path(os.environ["KVCONN_PLANT"])
SLOW_POLLS = 40


class PlantedFault(OSError):
    pass


def fault() -> str:
    try:
        return (PLANT / "fault").read_text()
    except FileNotFoundError:
        return ""


class StoreFaults(Faults):
    """``store hangs``: every call does, until the file says something else; and so on."""

    def happens(self, what):
        return fault() == f"store {what}"

    def hang(self):
        while fault() == "store hangs":
            time.sleep(0.02)


class WatchedStore(FaultyStore):
    """Counts what reaches the medium, from which thread, and whether a buffer is engine memory."""

    pages: ClassVar[list] = []
    """The engine's tensors."""
    seen: ClassVar[dict] = {"calls": 0, "on the main thread": 0, "buffers": 0, "in pages": 0}

    def get(self, ids, buffers):
        self.look(buffers)
        return super().get(ids, buffers)

    def put(self, ids, buffers):
        self.look(buffers)
        return super().put(ids, buffers)

    def look(self, buffers):
        for buffer in buffers:
            at = np.frombuffer(buffer, dtype=np.uint8).ctypes.data
            self.seen["buffers"] += 1
            for tensor in self.pages:
                storage = tensor.untyped_storage()
                first = storage.data_ptr()
                self.seen["in pages"] += first < at + len(buffer) and at < first + storage.nbytes()

    def _call(self, work, *lists):
        self.seen["calls"] += 1
        self.seen["on the main thread"] += threading.current_thread() is threading.main_thread()
        return super()._call(work, *lists)


def spoil(backend):
    """Put faults between a block store and what it stores into."""
    if isinstance(backend, BlockStoreBackend):
        real = backend.Store
        backend.Store = lambda config: WatchedStore(real(config), StoreFaults())


class FaultyWorker:
    """Passes everything on to a backend's worker side, but spoils loads as it is told."""

    def __init__(self, side, caches, shard):
        self._side, self._caches, self._shard = side, caches, shard
        self._spoilt: dict[int, set[int]] = {}
        self._slow: dict[int, int] = {}
        self._held = []

    def __getattr__(self, name):
        return getattr(self._side, name)

    def submit(self, transfer, blocks):
        how = fault()
        if transfer.kind is TransferKind.LOAD:
            if how == "submit raises":
                raise PlantedFault
            if how == "slow":
                self._slow[transfer.id] = SLOW_POLLS
        self._side.submit(transfer, blocks)
        if transfer.kind is TransferKind.LOAD:
            count = len(transfer.keys)
            spoilt = {
                "second key": {1}, "last key": {count - 1}, "all keys": set(range(count)),
                "second key on rank 1": {1} if self._shard.index == 1 else set(),
                "lies": {0},
            }.get(how, set())  # fmt: skip
            self._fill_with_noise([blocks[i] for i in spoilt])
            if how != "lies":
                self._spoilt[transfer.id] = spoilt

    def _fill_with_noise(self, rows):
        blocks = [block for row in rows for block in row if block != ABSENT]
        for tensor in self._caches.tensors.values():
            for block in blocks:
                tensor[block] = torch.randn_like(tensor[block]) * 10

    def poll(self):
        ended = []
        for transfer_id, verdicts in [*self._held, *self._side.poll()]:
            spoilt = self._spoilt.get(transfer_id, ())
            ended.append((transfer_id, [v and i not in spoilt for i, v in enumerate(verdicts)]))
        self._held = [e for e in ended if self._slow.get(e[0], 0) > 0]
        for transfer_id, _ in self._held:
            self._slow[transfer_id] -= 1
        return [e for e in ended if e not in self._held]


class PlantedBackend(CountingBackend):
    def prepare_load(self, request, keys):
        how = fault()
        if how == "prepare_load raises":
            raise PlantedFault
        if how == "nothing to load":
            self.inner.release(request)
            return None
        return super().prepare_load(request, keys[:1] if how == "only the first key" else keys)

    def open_worker(self, pool, caches, namespace, shard):
        side = super().open_worker(pool, caches, namespace, shard)
        WatchedStore.pages += caches.tensors.values()
        return FaultyWorker(side, caches, shard)


class KVConnConnector(RealConnector):
    _left = None
    preempted = 0

    def build_connector_meta(self, scheduler_output):
        self.preempted += len(scheduler_output.preempted_req_ids or ())
        return super().build_connector_meta(scheduler_output)

    def _wrap(self, backend):
        spoil(backend)
        self.doors = [*getattr(self, "doors", []), PlantedBackend(backend)]
        return self.doors[-1]

    def _counted(self, whose):
        """By kind of call, the most that any tier has heard."""
        calls = [asdict(getattr(door, whose)) for door in self.doors]
        return {name: max(each[name] for each in calls) for name in calls[0]}

    def has_pending_push_work(self):
        pending = super().has_pending_push_work()
        counts = {
            "plain": self._counted("plain"),
            "skipping": self._counted("skipping"),
            "stats": self._scheduler.scheduler.collect_stats(),
            "pending": pending,
            "tracked": len(self._scheduler._requests),
            "verdicts": self._scheduler._verdicts.waiting,
            "raised": self._guard.errors,
            "preempted": self.preempted,
            "io": dict(WatchedStore.seen),
        }
        if counts != self._left:
            self._left = counts
            temporary = PLANT / "counts.tmp"
            temporary.write_text(json.dumps(counts))
            temporary.rename(PLANT / "counts")
        return pending
