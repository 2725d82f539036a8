"""The worker-side half of a connector: it moves bytes where the bytes are."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvconn.backend import Backend, Settings, Verdicts
from kvconn.errors import MisuseError
from kvconn.guard import Guard
from kvconn.identity import Namespace, Shard
from kvconn.memory import HostPool, KVCaches
from kvconn.threads import run_bounded
from kvconn.types import ABSENT, BlockRows, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.geometry import Geometry

__all__ = ["WorkerConnector"]

_GRACE_S = 1.0
"""Seconds after a transfer's own deadline in which the backend may still say how it ended."""


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
        self._deadlines: dict[int, float] = {}
        self._doubtful: set[int] = set()
        """Stores whose pages may have been written over while they were read."""
        self._ended: list[tuple[int, Verdicts]] = []
        self._silent = False
        """The backend let a load's time pass without a word: it is called no more."""
        self._closed = False

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        """Start ``transfer``: row ``i`` of ``blocks`` holds the engine blocks of key ``i``.

        What the backend raises fails the transfer; its verdicts come from :meth:`poll`.
        """
        self._running[transfer.id] = transfer
        self._deadlines[transfer.id] = time.monotonic() + transfer.timeout_s + _GRACE_S
        if self._closed or self._silent:
            self._end(transfer.id, [])
            return
        try:
            # Copied: the engine may use its block table again before a load is copied into pages.
            blocks = [[int(block) for block in row] for row in blocks]
            _check_rows(transfer, blocks)
            self._side.submit(transfer, blocks)
        except BaseException as error:  # noqa: BLE001 - F2: a failed transfer, never a dead engine
            self._guard.failed("submit", error, "the transfer failed")
            self._end(transfer.id, [])

    def poll(self) -> list[tuple[int, Verdicts]]:
        """``(transfer id, one verdict per key)`` of what ended since the last call."""
        reports: list[Any] = []
        if not self._silent:
            reports = self._guard.call_for(
                list, self._side.poll, otherwise=[], consequence="its transfers go on"
            )
        for report in reports:
            try:
                transfer_id, verdicts = report
                self._end(transfer_id, verdicts)
            except BaseException as error:  # noqa: BLE001 - F2
                self._guard.failed("poll", error, "a missing verdict has failed")
        self._give_up()
        ended, self._ended = self._ended, []
        return ended

    def _give_up(self) -> None:
        """Fail what the backend has said nothing about for too long (F3).

        A load that it is silent about may still be copied into pages, which happens when the
        backend is called and only then: so it is called no more, until a new connector is opened.
        """
        now = time.monotonic()
        for transfer_id in [id_ for id_, ends in self._deadlines.items() if ends <= now]:
            silence = TimeoutError(f"nothing was heard of transfer {transfer_id}")
            if self._running[transfer_id].kind is TransferKind.LOAD:
                self._silent = True
                self._guard.failed("poll", silence, "it is out of service until a restart")
            else:
                self._guard.failed("poll", silence, "the transfer failed")
                self._end(transfer_id, [])
        if self._silent:
            for transfer_id in list(self._running):
                self._end(transfer_id, [])

    def flush(self, transfer_ids: Iterable[int], deadline: float = 5.0) -> None:
        """Return when the pages that these stores read may be overwritten.

        After ``deadline`` seconds they may be all the same, and the stores have failed.
        """
        ids = list(transfer_ids)
        try:
            if not self._silent and self._side.flush(ids, deadline) is False:
                msg = f"{deadline} s passed"
                raise TimeoutError(msg)
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("flush", error, "the stores failed")
            self._doubtful.update(id_ for id_ in ids if id_ in self._running)

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        """Return when these transfers have ended, or after ``deadline`` seconds."""
        if self._silent:
            return
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

    def _end(self, transfer_id: int, verdicts: Iterable[bool]) -> None:
        transfer = self._running.pop(transfer_id, None)
        if transfer is None:
            self._guard.failed("poll", KeyError(transfer_id), "an unknown transfer is ignored")
            return
        del self._deadlines[transfer_id]
        whole = [False] * len(transfer.keys)
        self._ended.append((transfer_id, whole))
        if transfer_id in self._doubtful:
            self._doubtful.discard(transfer_id)
            return
        for i, good in zip(range(len(whole)), verdicts, strict=False):  # a missing one has failed
            whole[i] = bool(good)

    def figures(self) -> Mapping[str, float]:
        """What this worker counts, and what its backend does, if it has ``figures`` of its own."""
        own = {"transfers": self.transfers_running, "worker_errors": self._guard.errors}
        theirs = getattr(self._side, "figures", dict)
        return {
            **self._guard.call_for(dict, theirs, otherwise={}, consequence="they are missing"),
            **own,
        }


def _check_rows(transfer: Transfer, blocks: BlockRows) -> None:
    """One row per key, and a store has every block of it: else a slot's old bytes were stored."""
    if transfer.kind is TransferKind.MOVE:
        return
    if len(blocks) != len(transfer.keys):
        msg = f"{len(blocks)} rows for {len(transfer.keys)} keys: give one row of blocks per key"
        raise MisuseError(msg)
    if transfer.kind is TransferKind.STORE and any(ABSENT in row for row in blocks):
        msg = "a block to store is absent: offer whole chunks only"
        raise MisuseError(msg)
