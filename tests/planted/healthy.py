"""Two honest backends that need no plugin, and a store that misbehaves on request."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from pydantic import ConfigDict

from kvconn.backend import PluginConfig, PoolSize
from kvconn.blockstore import BlockStore, BlockStoreBackend, Capabilities, StoreConfig
from kvconn.config import Capacity
from kvconn.indexed import IndexedBackend
from kvconn.memory import Copier
from kvconn.testing.rig import PATIENCE_S
from kvconn.types import TransferKind


class MemoryWorker:
    def __init__(self, copier: Copier) -> None:
        self.copier = copier
        self.ended: list[tuple[int, list[bool]]] = []

    def submit(self, transfer, blocks):
        loading = transfer.kind is TransferKind.LOAD
        copy = self.copier.scatter if loading else self.copier.gather
        copy(blocks, transfer.locations).wait()
        self.ended.append((transfer.id, [True] * len(transfer.keys)))

    def poll(self):
        ended, self.ended = self.ended, []
        return ended

    def flush(self, transfer_ids, deadline):
        return True

    def wait(self, transfer_ids, deadline):
        pass

    def close(self, deadline):
        return []


class MemoryConfig(PluginConfig):
    capacity: Capacity


class MemoryBackend(IndexedBackend):
    """An index over slots that stay where they are."""

    contract_version = 1
    tier = "memory"
    Config = MemoryConfig
    Worker = MemoryWorker

    def chunks_that_fit(self, geometry):
        return int(self.config.capacity) // (geometry.slot_bytes * geometry.workers)

    def eviction_name(self):
        return "lru"

    def pool_size(self, geometry):
        return PoolSize(self.chunks_that_fit(geometry), geometry.slot_bytes)

    def open_worker(self, pool, caches, namespace, shard):
        return self.Worker(Copier(pool, caches))


class Shelf:
    """What a :class:`ShelfStore` keeps, and how it misbehaves."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.spaces: set[bytes] = set()
        """The namespaces that were ever opened on it."""
        self.calls: Counter[str] = Counter()
        self.capabilities = Capabilities(persistent=True, parallel=True)
        self.options: dict[str, Any] = {}
        """Of the configuration."""
        self.lies: dict[str, Callable[[Any], Any]] = {}
        """By method: what makes of its honest answer the one that is given; may raise."""
        self._held: dict[str, threading.Event] = {}
        self._entered: dict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(0))

    def hold(self, method: str) -> None:
        """Let calls of ``method`` hang until :meth:`let_go`."""
        self._entered[method]  # made here, or two threads could each make one of their own
        self._held[method] = threading.Event()

    def let_go(self, *methods: str) -> None:
        for method in methods or list(self._held):
            self._held.pop(method).set()

    def await_call(self, method: str) -> None:
        """Return when a held ``method`` was called."""
        assert self._entered[method].acquire(timeout=PATIENCE_S), f"{method} was never called"

    def enter(self, method: str) -> None:
        self.calls[method] += 1
        if (event := self._held.get(method)) is not None:
            self._entered[method].release()
            assert event.wait(PATIENCE_S), f"{method} was never let go"

    def answer(self, method: str, honest: Any) -> Any:
        return self.lies.get(method, lambda answer: answer)(honest)


class ShelfConfig(StoreConfig):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    shelf: Shelf


class ShelfStore(BlockStore):
    """A dict that can be slow, hang, fail and lie."""

    def __init__(self, config: ShelfConfig) -> None:
        super().__init__(config)
        self.shelf = config.shelf
        self.capabilities = config.shelf.capabilities

    def open(self, namespace):
        self.space = namespace.digest
        self.shelf.spaces.add(self.space)

    def exists(self, ids):
        self.shelf.enter("exists")
        return self.shelf.answer("exists", [name in self.shelf.objects for name in ids])

    def get(self, ids, buffers):
        self.shelf.enter("get")
        stored = [self.shelf.objects.get(name, b"") for name in ids]
        for held, buffer in zip(stored, buffers, strict=True):
            buffer[: len(held)] = held[: len(buffer)]
        whole = [len(held) == len(buffer) for held, buffer in zip(stored, buffers, strict=True)]
        return self.shelf.answer("get", whole)

    def put(self, ids, buffers):
        self.shelf.enter("put")
        answer = self.shelf.answer("put", [True] * len(ids))
        self.shelf.objects.update(zip(ids, map(bytes, buffers), strict=True))
        return answer

    def delete(self, ids):
        self.shelf.enter("delete")
        gone = [self.shelf.objects.pop(name, None) is not None for name in ids]
        return self.shelf.answer("delete", gone)

    def scan(self):
        self.shelf.enter("scan")
        others = self.shelf.spaces - {self.space}
        names = [name for name in self.shelf.objects if name[:16] not in others]
        return self.shelf.answer("scan", names)

    def close(self):
        self.shelf.enter("close")
        self.shelf.answer("close", None)


class ShelfBackend(BlockStoreBackend):
    contract_version = 1
    tier = "shelf"
    Store = ShelfStore
    Config = ShelfConfig
