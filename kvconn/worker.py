"""The worker-side half of a connector: it moves bytes where the bytes are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kvconn.backend import Backend, Settings, Verdicts
from kvconn.guard import Guard
from kvconn.identity import Namespace, Shard
from kvconn.memory import HostPool, KVCaches
from kvconn.threads import run_bounded
from kvconn.types import BlockRows, Transfer

if TYPE_CHECKING:
    from kvconn.geometry import Geometry

__all__ = ["WorkerConnector"]


class WorkerConnector:
    """What one engine worker calls, from its own thread; one per tensor-parallel rank."""

    def __init__(
        self,
        backend: Backend,
        geometry: Geometry,
        namespace: Namespace,
        caches: KVCaches,
        *,
        shard: Shard | None = None,
        name: str = "backend",
        settings: Settings | None = None,
    ) -> None:
        if caches.block_bytes != geometry.block_bytes:
            msg = (
                f"the registered tensors hold {caches.block_bytes} bytes a block and the geometry "
                f"says {geometry.block_bytes}: give scheduler and workers the same geometry"
            )
            raise ValueError(msg)
        self.geometry = geometry
        self._guard = Guard(f"backend {name} (worker)")
        if settings is not None:
            backend.settings = settings
        size = backend.pool_size(geometry)
        self.pool = HostPool(size.slot_bytes, size.slots, device=caches.device)
        self._side = backend.open_worker(self.pool, caches, namespace, shard or Shard())
        self._running: dict[int, Transfer] = {}
        self._ended: list[tuple[int, Verdicts]] = []
        self._closed = False

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        """Start ``transfer``: row ``i`` of ``blocks`` holds the engine blocks of key ``i``.

        What the backend raises fails the transfer; its verdicts come from :meth:`poll`.
        """
        self._running[transfer.id] = transfer
        try:
            self._side.submit(transfer, blocks)
        except Exception as error:  # noqa: BLE001 - F2: a failed transfer, never a dead engine
            self._guard.failed("submit", error, "the transfer failed")
            self._end(transfer.id, [])

    def poll(self) -> list[tuple[int, Verdicts]]:
        """``(transfer id, one verdict per key)`` of what ended since the last call."""
        for transfer_id, verdicts in self._guard.call(
            self._side.poll, otherwise=(), consequence="its transfers go on"
        ):
            self._end(transfer_id, verdicts)
        ended, self._ended = self._ended, []
        return ended

    def flush(self, transfer_ids: Iterable[int]) -> None:
        """Return when the pages that these stores read may be overwritten."""
        self._guard.call(
            self._side.flush, list(transfer_ids), otherwise=None, consequence="not waited for"
        )

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        """Return when these transfers have ended, or after ``deadline`` seconds."""
        self._guard.call(
            self._side.wait, list(transfer_ids), deadline,
            otherwise=None, consequence="not waited for",
        )  # fmt: skip

    @property
    def transfers_running(self) -> int:
        """Transfers submitted whose end :meth:`poll` has not reported."""
        return len(self._running) + len(self._ended)

    @property
    def errors(self) -> int:
        """Exceptions that the backend raised here."""
        return self._guard.errors

    def close(self, deadline: float = 5.0) -> list[int]:
        """Stop within ``deadline`` seconds, from any thread, perhaps twice; what was left."""
        if not self._closed:
            self._closed = True
            ends = time.monotonic() + deadline

            left: list[int] = []

            def end() -> None:
                remaining = max(0.0, ends - time.monotonic())
                left.extend(self._side.close(remaining))

            def close_side() -> bool:
                return run_bounded(end, deadline, "close-worker")

            ended = self._guard.call(close_side, otherwise=False, consequence="left behind")
            # A call that still hangs may write into the pool, which then has to stay.
            if ended and not left:
                self.pool.close()
        return list(self._running)

    def _end(self, transfer_id: int, verdicts: Verdicts) -> None:
        transfer = self._running.pop(transfer_id, None)
        if transfer is None:
            self._guard.failed("poll", KeyError(transfer_id), "an unknown transfer is ignored")
            return
        count = len(transfer.keys)
        whole = [bool(v) for v in verdicts[:count]] + [False] * (count - len(verdicts))
        self._ended.append((transfer_id, whole))

    def figures(self) -> Mapping[str, float]:
        """What this worker counts."""
        return {"transfers": self.transfers_running, "worker_errors": self._guard.errors}
