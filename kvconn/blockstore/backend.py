"""The backend that drives a block store, scheduler side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvconn.backend import PluginConfig, PoolSize, WorkerSide
from kvconn.blockstore.seal import object_bytes
from kvconn.blockstore.worker import StoreWorker
from kvconn.config.sizes import Capacity, Per
from kvconn.identity import parse_object_id
from kvconn.indexed import IndexedBackend
from kvconn.threads import Background
from kvconn.types import Request, StorePlan, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.blockstore.store import BlockStore
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches

__all__ = ["BlockStoreBackend", "StoreConfig"]


class StoreConfig(PluginConfig):
    """The options that every block store has."""

    capacity: Annotated[Capacity, Per.TOTAL] = Field(
        description="Bytes of stored objects in total, over all ranks of one engine."
    )
    eviction: str = Field(default="lru", description="The eviction policy, by name.")
    staging: Annotated[Capacity, Per.PROCESS] = Field(
        default=64 << 20,
        validate_default=True,
        description="Host memory per worker process for bytes on their way.",
    )
    readers: int = Field(default=4, ge=1, description="Threads per worker process that load.")


class BlockStoreBackend(IndexedBackend):
    """A scheduler-side index over what workers put into a store.

    The store is also opened in the scheduler process: to find what an earlier process left, and
    to empty it on ``reset``.  Everything else is known from completions.
    """

    pinned: ClassVar[bool] = False
    Store: ClassVar[type[BlockStore]]
    Config = StoreConfig
    config: StoreConfig

    def chunks_that_fit(self, geometry: Geometry) -> int:
        return int(self.config.capacity) // (object_bytes(geometry.chunk_bytes) * geometry.ranks)

    def eviction_name(self) -> str:
        return self.config.eviction

    def pool_size(self, geometry: Geometry) -> PoolSize:
        size = object_bytes(geometry.chunk_bytes)
        return PoolSize(max(1, int(self.config.staging) // size), size)

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        super().open_scheduler(geometry, namespace)
        self._namespace = namespace.digest
        self._ranks = geometry.ranks
        self._unwanted: list[Key] = []
        """Keys of which some rank may hold an object that nothing refers to any more."""
        self._emptying: Background | None = None
        self._store = self.Store(self.config)
        self._store.open(namespace)
        self._adopt(self._store.scan())

    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        store = self.Store(self.config)
        store.open(namespace)
        return StoreWorker(
            store, pool, caches, namespace.digest, shard, readers=self.config.readers
        )

    def _adopt(self, ids: Iterable[bytes]) -> None:
        """Take over the chunks of which every shard is there.

        The others, and what is too much, go with the next store.
        """
        shards: Counter[Key] = Counter()
        for name in ids:
            try:
                namespace, group, shard, key = parse_object_id(name)
            except ValueError:
                continue  # not one of ours
            if (namespace, group, shard.count) == (self._namespace, 0, self._ranks):
                shards[key] += 1
        whole = [key for key, count in shards.items() if count == self._ranks]
        self._unwanted += [key for key, count in shards.items() if count < self._ranks]
        excess = max(0, len(whole) - self._index.capacity)
        self._unwanted += whole[:excess]
        keys, entries, _ = self._index.reserve(whole[excess:])
        for key, entry in zip(keys, entries, strict=True):  # one by one: the oldest goes first
            self._index.stored([key], [entry], [True])

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        if self._emptying is not None:
            if self._emptying.running:
                return None  # a store now could be overtaken by the deletion that still runs
            self._emptying = None
        return super().prepare_store(request, keys)

    def _transfer(
        self,
        kind: TransferKind,
        request: Request,
        keys: list[Key],
        entries: list[int],
        evicted: Sequence[Key] = (),
    ) -> Transfer:
        transfer = super()._transfer(kind, request, keys, entries)
        if kind is TransferKind.STORE and (evicted or self._unwanted):
            # Only workers delete, each before it stores: nothing can be overtaken.
            transfer = transfer.with_evictions((*self._unwanted, *evicted))
            self._unwanted = []
        return transfer

    def _wasted(self, keys: Sequence[Key]) -> None:
        self._unwanted += keys

    def reset(self) -> Mapping[str, int]:
        dropped = super().reset()
        self._emptying = Background(self._empty, "reset")
        return dropped

    def _empty(self) -> None:
        self._store.delete(list(self._store.scan()))

    def has_pending_work(self) -> bool:
        return self._emptying is not None and self._emptying.running

    def close(self, deadline: float) -> None:
        if self._emptying is not None:
            self._emptying.join(deadline)
        self._store.close()
