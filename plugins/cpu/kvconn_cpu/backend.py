"""The scheduler-side half: an index over slots that stay resident in each worker's host pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvconn.backend import PluginConfig, PoolSize, WorkerSide
from kvconn.config import Capacity, Per
from kvconn.indexed import IndexedBackend
from kvconn_cpu.worker import CpuWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvconn.geometry import Geometry
    from kvconn.identity import Namespace, Shard
    from kvconn.memory import HostPool, KVCaches

__all__ = ["CpuBackend", "CpuConfig"]


class CpuConfig(PluginConfig):
    """``cpu://?capacity=8GiB&eviction=lru``."""

    capacity: Annotated[Capacity, Per.TOTAL] = Field(
        description="Host memory in total, over all ranks of one engine."
    )
    eviction: str = Field(default="lru", description="The eviction policy, by name.")
    copy_threads: int = Field(
        default=1, ge=1, description="Threads per worker process that a large copy may use."
    )
    prefault: bool = Field(
        default=False,
        description="Take all memory at the start: first writes cost more than copies.",
    )


class CpuBackend(IndexedBackend):
    """Blocks in host memory: an entry of the index *is* a slot of every rank's pool."""

    contract_version: ClassVar[int] = 1
    pinned: ClassVar[bool] = True
    tier = "cpu"
    Config = CpuConfig
    config: CpuConfig

    def chunks_that_fit(self, geometry: Geometry) -> int:
        return int(self.config.capacity) // (geometry.slot_bytes * geometry.workers)

    def eviction_name(self) -> str:
        return self.config.eviction

    def _places(self) -> Sequence[int]:
        return self._index.places

    def pool_size(self, geometry: Geometry) -> PoolSize:
        return PoolSize(self.chunks_that_fit(geometry), geometry.slot_bytes)

    def open_worker(
        self,
        pool: HostPool,
        caches: KVCaches,
        namespace: Namespace,
        shard: Shard,
    ) -> WorkerSide:
        if self.config.prefault:
            pool.prefault()
        return CpuWorker(pool, caches, threads=self.config.copy_threads)
