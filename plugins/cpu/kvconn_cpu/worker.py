"""The worker-side half: copies between engine pages and resident slots."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kvconn.memory import Copier, Copy
from kvconn.types import BlockRows, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.backend import Verdicts
    from kvconn.memory import HostPool, KVCaches

__all__ = ["CpuWorker"]


class CpuWorker:
    """One copy per transfer and direction, made (or enqueued, on a device) by ``submit``."""

    def __init__(self, pool: HostPool, caches: KVCaches, *, threads: int = 1) -> None:
        self._copier = Copier(pool, caches, threads=threads)
        self._running: dict[int, tuple[Copy, int]] = {}

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        loading = transfer.kind is TransferKind.LOAD
        copy = (self._copier.scatter if loading else self._copier.gather)(
            blocks, transfer.locations
        )
        self._running[transfer.id] = copy, len(transfer.keys)

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        ended = [(id_, [True] * keys) for id_, (copy, keys) in self._running.items() if copy.done()]
        for id_, _ in ended:
            del self._running[id_]
        return ended

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:
        ids = list(transfer_ids)
        self.wait(ids, deadline)
        return all(self._running[id_][0].done() for id_ in ids if id_ in self._running)

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        ends = time.monotonic() + deadline
        for id_ in transfer_ids:
            if id_ in self._running and time.monotonic() < ends:
                self._running[id_][0].wait()

    def close(self, deadline: float) -> Sequence[int]:
        self.wait(list(self._running), deadline)
        return [id_ for id_, (copy, _) in self._running.items() if not copy.done()]
