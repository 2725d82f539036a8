"""What crosses between the scheduler's connector and each worker's, in every engine step."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

__all__ = ["Load", "StepOrders", "StepVerdicts", "Store"]

Rows = list[list[int]]


@dataclass(slots=True)
class Load:
    """A request waits until every worker has reported this as received."""

    request_id: str
    transfer: bytes | None
    """``None`` when there was nothing to load after all."""
    rows: Rows
    unnamed: list[int]
    """Blocks that vLLM set aside for the load and that the transfer does not fill."""
    whole: bool = False
    """Whether the request is computed from its start when anything is missing."""


@dataclass(slots=True)
class Store:
    """Blocks whose tokens are final once this step's computation has ended."""

    transfer: bytes
    rows: Rows


@dataclass(slots=True)
class StepOrders(KVConnectorMetadata):
    """Scheduler to workers."""

    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    flush: list[int] = field(default_factory=list)
    """Stores whose blocks this step may overwrite."""
    moves: list[bytes] = field(default_factory=list)
    """Transfers of the backend's own, in which no block takes part."""
    idle: bool = False
    """Nothing is computed in this step, so that a worker may wait a little for I/O."""


@dataclass(slots=True)
class StepVerdicts(KVConnectorWorkerMetadata):
    """Workers to scheduler: ``(transfer id, one verdict per key)`` by rank."""

    by_rank: dict[int, list[tuple[int, list[bool]]]]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepVerdicts:
        """Both together; a rank reports once per step."""
        if not isinstance(other, StepVerdicts):
            return self
        return StepVerdicts({**self.by_rank, **other.by_rank})
