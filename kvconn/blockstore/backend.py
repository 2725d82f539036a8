"""The backend that drives a block store, scheduler side."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from kvconn.backend import PluginConfig, PoolSize, WorkerSide
from kvconn.blockstore.seal import object_bytes
from kvconn.blockstore.worker import StoreWorker
from kvconn.config.sizes import Capacity, Per
from kvconn.guard import Guard
from kvconn.identity import Shard, object_id, parse_object_id
from kvconn.indexed import IndexedBackend
from kvconn.threads import Background
from kvconn.types import Request, StorePlan, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.blockstore.store import BlockStore
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace
    from kvconn.memory import HostPool, KVCaches

__all__ = ["BlockStoreBackend", "StoreConfig"]

_EMPTY_AGAIN_S = 5.0
"""Seconds between two attempts to empty a store that refuses."""


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

    The store is also opened in the scheduler process: to find what an earlier process left, to
    empty it on ``reset``, and to delete what came to nothing when no store comes that takes the
    deletion along.  Everything else is known from completions.
    """

    pinned: ClassVar[bool] = False
    Store: ClassVar[type[BlockStore]]
    Config: ClassVar[type[PluginConfig]] = StoreConfig
    config: StoreConfig

    def chunks_that_fit(self, geometry: Geometry) -> int:
        store = self.Store(self.config)
        room = int(self.config.capacity) - store.overhead()
        return room // (store.footprint(object_bytes(geometry.chunk_bytes)) * geometry.ranks)

    def eviction_name(self) -> str:
        return self.config.eviction

    def pool_size(self, geometry: Geometry) -> PoolSize:
        size = object_bytes(geometry.chunk_bytes)
        return PoolSize(max(1, int(self.config.staging) // size), size)

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        super().open_scheduler(geometry, namespace)
        self._namespace = namespace.digest
        self._ranks = geometry.ranks
        self._still_full = False
        """A reset has begun and the store is not known to be empty."""
        self._empty_again = 0.0
        self._unwanted: list[Key] = []
        """Keys of which some rank may hold an object that nothing refers to any more."""
        self._emptying: list[Background] = []
        """Deletions of everything, which run on threads of their own."""
        self._sweeping: Background | None = None
        self._swept: frozenset[Key] = frozenset()
        """What is being deleted there; nothing else is."""
        self._guard = Guard(f"block store of {self.tier}")
        self._store = self.Store(self.config)
        self._store.open(namespace)
        self._adopt(
            self._guard.call_for(list, self._store.scan, otherwise=[], consequence="taken as empty")
        )

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

        The others, and what is too much, are deleted.
        """
        shards: Counter[Key] = Counter()
        for name in dict.fromkeys(ids):
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
        # A store now could be overtaken by a deletion that still runs.
        if self._is_emptying():
            return None
        if self._is_sweeping():
            keys = [key for key in keys if key not in self._swept]
        return super().prepare_store(request, keys)

    def _is_emptying(self) -> bool:
        if self._emptying:
            self._emptying = [deletion for deletion in self._emptying if deletion.running]
        return bool(self._emptying) or self._still_full

    def _is_sweeping(self) -> bool:
        return self._sweeping is not None and self._sweeping.running

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
            # Each worker deletes before it stores: nothing can be overtaken.
            transfer = transfer.with_evictions((*self._take_unwanted(), *evicted))
        return transfer

    def _wasted(self, keys: Sequence[Key]) -> None:
        self._unwanted += keys

    def _take_unwanted(self) -> list[Key]:
        unwanted, self._unwanted = self._unwanted, []
        return [key for key in dict.fromkeys(unwanted) if not self._index.holds(key)]

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        super().complete_transfer(transfer, verdicts)
        if transfer.evictions and not all(verdicts):
            self._unwanted += transfer.evictions  # who knows whether the worker came to it

    def step(self) -> None:
        super().step()
        if self._still_full and not self._emptying and time.monotonic() >= self._empty_again:
            self._start_emptying()
        idle = not self._index.reservations  # else the next store takes them along
        if self._unwanted and idle and not self._is_emptying() and not self._is_sweeping():
            self._swept = frozenset(self._take_unwanted())
            if self._swept:
                self._sweeping = Background(partial(self._delete, self._swept), "sweep")

    def _delete(self, keys: Iterable[Key]) -> None:
        """Every shard of ``keys``."""
        shards = [Shard(index, self._ranks) for index in range(self._ranks)]
        self._store.delete(
            [object_id(self._namespace, 0, shard, key) for key in keys for shard in shards]
        )

    def reset(self) -> Mapping[str, int]:
        dropped = super().reset()
        self._start_emptying()
        return dropped

    def _start_emptying(self) -> None:
        self._still_full = True
        self._empty_again = time.monotonic() + _EMPTY_AGAIN_S
        self._emptying.append(Background(self._empty, "reset"))

    def _empty(self) -> None:
        """What cannot be deleted now is tried again: a reset must not come undone (L5)."""
        try:
            self._store.delete(list(self._store.scan()))
        except Exception as error:  # noqa: BLE001 - F2
            self._still_full = True
            self._guard.failed("delete", error, "nothing is stored until it is emptied")
        else:
            self._still_full = False

    def has_pending_work(self) -> bool:
        self._is_emptying()
        return bool(self._unwanted or self._emptying) or self._is_sweeping()

    def close(self, deadline: float) -> None:
        """What nobody wants does not outlive us, or the next process would find it."""
        ends = time.monotonic() + deadline
        for deletion in (*self._emptying, self._sweeping):
            if deletion is not None:
                deletion.join(max(0.0, ends - time.monotonic()))
        if self._still_full and not any(deletion.running for deletion in self._emptying):
            self._empty()
        if any(deletion.running for deletion in self._emptying) or self._is_sweeping():
            return  # the store is in use
        self._unwanted += self._index.abandoned_keys
        unwanted = self._take_unwanted()
        if unwanted:
            self._guard.call(self._delete, unwanted, otherwise=None, consequence="bytes are left")
        self._store.close()
