"""A backend that behaves like any other and holds nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from kvconn.backend import Backend, PoolSize, Verdicts, WorkerSide
from kvconn.types import (
    BlockRows,
    BlockState,
    Request,
    StorePlan,
    Transfer,
    TransferKind,
    new_transfer_id,
    seconds_left,
)

if TYPE_CHECKING:
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches

__all__ = ["NullBackend"]

_MISS = bytes([BlockState.MISS])


class NullBackend(Backend):
    """Every lookup is a miss; every store is accepted, completes at once and is forgotten."""

    contract_version: ClassVar[int] = 1
    pinned: ClassVar[bool] = True
    keeps: ClassVar[bool] = False

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        self._storing = 0

    def pool_size(self, geometry: Geometry) -> PoolSize:
        return PoolSize(0, geometry.slot_bytes)

    def open_worker(
        self,
        pool: HostPool,
        caches: KVCaches,
        namespace: Namespace,
        shard: Shard,
    ) -> WorkerSide:
        return NullWorker()

    def lookup(self, request: Request, keys: list[Key]) -> bytes:
        return _MISS * len(keys)

    def release(self, request: Request) -> None:
        """Nothing is ever leased."""

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        return None

    def touch(self, request: Request, keys: list[Key]) -> None:
        """Nothing is ever evicted."""

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        transfer = Transfer(
            id=new_transfer_id(),
            kind=TransferKind.STORE,
            request_id=request.id,
            keys=tuple(dict.fromkeys(keys)),
            timeout_s=seconds_left(request.deadline, self.settings.transfer_timeout_s),
        )
        self._storing += len(transfer.keys)
        return StorePlan(transfer.keys, transfer)

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        self._storing -= len(transfer.keys)

    def reset(self) -> Mapping[str, int]:
        return {"null": 0}

    def collect_stats(self) -> Mapping[str, float]:
        return {"entries": 0, "capacity": 0, "leases": 0, "reservations": self._storing}


class NullWorker:
    """Says yes to every transfer and touches no page."""

    def __init__(self) -> None:
        self._ended: list[tuple[int, Verdicts]] = []

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        self._ended.append((transfer.id, [True] * len(transfer.keys)))

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        ended, self._ended = self._ended, []
        return ended

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:
        """No page is read."""
        return True

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        """Every transfer has ended when ``submit`` returns."""

    def close(self, deadline: float) -> Sequence[int]:
        return ()
