"""A wrapper that stands at a backend's own door and counts who comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvconn.backend import Backend, PoolSize, Settings, WorkerSide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches
    from kvconn.types import BlockState, KVEvent, Request, StorePlan, Transfer

__all__ = ["Calls", "CountingBackend"]


@dataclass(slots=True)
class Calls:
    """What reached the backend; calls unless said otherwise."""

    started: int = 0
    lookups: int = 0
    releases: int = 0
    loads: int = 0
    """Calls of ``prepare_load``."""
    touches: int = 0
    offers: int = 0
    """Calls of ``prepare_store``."""
    accepted: int = 0
    """Chunks that were accepted for storing."""
    evicted: int = 0
    """Chunks that had to go for them."""
    finished: int = 0


class CountingBackend(Backend):
    """Hands every call on, and counts those of skipping requests apart."""

    contract_version = 1

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner.config)
        self.inner = inner
        self.plain, self.skipping = Calls(), Calls()
        """Calls for requests that may read, and for those with ``skip_reading_prefix_cache``."""

    def _calls(self, request: Request) -> Calls:
        return self.skipping if request.skip_reading_prefix_cache else self.plain

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        self.inner.open_scheduler(geometry, namespace)

    def pool_size(self, geometry: Geometry) -> PoolSize:
        return self.inner.pool_size(geometry)

    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        return self.inner.open_worker(pool, caches, namespace, shard)

    def request_started(self, request: Request) -> None:
        self._calls(request).started += 1
        self.inner.request_started(request)

    def lookup(self, request: Request, keys: list[Key]) -> Sequence[BlockState] | bytes:
        self._calls(request).lookups += 1
        return self.inner.lookup(request, keys)

    def release(self, request: Request) -> None:
        self._calls(request).releases += 1
        self.inner.release(request)

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        self._calls(request).loads += 1
        return self.inner.prepare_load(request, keys)

    def touch(self, request: Request, keys: list[Key]) -> None:
        self._calls(request).touches += 1
        self.inner.touch(request, keys)

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        calls = self._calls(request)
        calls.offers += 1
        plan = self.inner.prepare_store(request, keys)
        if plan is not None:
            calls.accepted += len(plan.accepted)
            calls.evicted += len(plan.evicted)
        return plan

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        self.inner.complete_transfer(transfer, verdicts)

    def request_finished(self, request: Request) -> None:
        self._calls(request).finished += 1
        self.inner.request_finished(request)

    def step(self) -> Sequence[Transfer] | None:
        return self.inner.step()

    def holds(self, keys: list[Key]) -> Sequence[bool]:
        return self.inner.holds(keys)

    def has_pending_work(self) -> bool:
        return self.inner.has_pending_work()

    def reset(self) -> Mapping[str, int]:
        return self.inner.reset()

    def take_events(self) -> Sequence[KVEvent]:
        return self.inner.take_events()

    def collect_stats(self) -> Mapping[str, float]:
        return self.inner.collect_stats()

    def close(self, deadline: float) -> None:
        self.inner.close(deadline)

    @property
    def settings(self) -> Settings:
        """The inner backend's own."""
        return self.inner.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self.inner.settings = settings
