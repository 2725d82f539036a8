"""The backend that drives a block store, scheduler side."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from kvconn.backend import PluginConfig, PoolSize, WorkerSide
from kvconn.blockstore.breaker import Breaker, Circuit
from kvconn.blockstore.config import StoreConfig
from kvconn.blockstore.deletions import Deletions
from kvconn.blockstore.finder import Finder
from kvconn.blockstore.operations import Operations
from kvconn.blockstore.recovery import Recovery
from kvconn.blockstore.seal import object_bytes
from kvconn.blockstore.worker import StoreWorker
from kvconn.errors import ConfigurationError, ObjectTooLarge
from kvconn.guard import Guard
from kvconn.identity import Shard, object_id, parse_object_id
from kvconn.indexed import IndexedBackend
from kvconn.types import BlockState, Request, StorePlan, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.blockstore.store import BlockStore
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace
    from kvconn.memory import HostPool, KVCaches

__all__ = ["BlockStoreBackend"]

_RECOVERY_S = 1.0
"""How long opening waits for the scan: a small store is known whole from the first lookup on."""
_PER_STEP = 64
"""Keys that one step adopts or evicts ahead, so that none takes long."""
_FOUND_S = 60.0
"""For so long it is believed that what others stored is still there."""
_HIT, _MISS, _PENDING = (
    bytes([state]) for state in (BlockState.HIT, BlockState.MISS, BlockState.PENDING)
)


class BlockStoreBackend(IndexedBackend):
    """A scheduler-side index over what workers put into a store.

    Where the scheduler's process sees the store it opens it, too: to find what an earlier process
    left and what others put there, to empty it on ``reset``, and to delete.  Elsewhere everything
    is known from completions, and deletions travel with the next store.
    """

    pinned: ClassVar[bool] = False
    Store: ClassVar[type[BlockStore]]
    Config: ClassVar[type[PluginConfig]] = StoreConfig
    config: StoreConfig

    # -- what it can do --------------------------------------------------------------------

    @property
    def persistent(self) -> bool:
        return self.Store(self.config).capabilities.persistent

    @property
    def shared(self) -> bool:
        return self.Store(self.config).capabilities.shared

    # -- opening ---------------------------------------------------------------------------

    def chunks_that_fit(self, geometry: Geometry) -> int:
        capacity, size = int(self.config.capacity), object_bytes(geometry.chunk_bytes)
        store = self.Store(self.config)
        copies = geometry.ranks if _in_common(store) else geometry.workers
        return store.objects_that_fit(capacity, size) // copies

    def eviction_name(self) -> str:
        return self.config.eviction

    def pool_size(self, geometry: Geometry) -> PoolSize:
        size = object_bytes(geometry.chunk_bytes)
        return PoolSize(max(1, int(self.config.staging) // size), size)

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        super().open_scheduler(geometry, namespace)
        self._namespace = namespace.digest
        self._ranks = geometry.ranks
        self._guard = Guard(f"block store of {self.tier}")
        probe_s = self.settings.transfer_timeout_s
        self._reads, self._writes = Breaker(probe_s=probe_s), Breaker(probe_s=probe_s)
        slots = self.pool_size(geometry).slots
        self._most_storing = max(1, slots - slots // 4)
        """Chunks: a quarter of the slots is kept for loads."""
        self._declined = 0
        high, low = self.config.high_watermark, self.config.low_watermark
        self._high, self._low = (math.ceil(share * self._index.capacity) for share in (high, low))
        self._evicting = False
        self._found: dict[Key, float] = {}
        """What others stored, and until when that is believed; oldest first."""
        store = self.Store(self.config)
        self._capabilities = store.capabilities
        self._check(geometry)
        self._operations = Operations(store)
        self._deletions = Deletions(self._operations, self._ids_of, self._guard)
        self._finder = Finder(self._whole, self._guard)
        self._recovery: Recovery | None = None
        if self._capabilities.scheduler_visible:
            store.open(namespace)
            if self._capabilities.persistent:
                recovery = self._recover()
                recovery.join(_RECOVERY_S)
                self._adopt_recovered(recovery.left)

    def _check(self, geometry: Geometry) -> None:
        largest, size = self._capabilities.max_object_bytes, object_bytes(geometry.chunk_bytes)
        if largest is not None and size > largest:
            msg = (
                f"{self.tier} takes objects of at most {largest} B and a chunk with its seal has "
                f"{size} B: lower blocks_per_chunk"
            )
            raise ObjectTooLarge(msg)
        if self._capabilities.shared and not self._capabilities.scheduler_visible:
            msg = (
                f"{self.tier} is shared and the scheduler's process cannot see it, so nobody can "
                "tell what is there: use a store that it can reach, or one for each engine"
            )
            raise ConfigurationError(msg)

    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        store = self.Store(self.config)
        store.open(namespace)
        if store.capabilities.registered_memory:
            store.register(pool.memory)
        return StoreWorker(
            Operations(store), pool, caches, namespace.digest, shard,
            readers=self.config.readers, writers=self.config.writers,
            stores=shard.replica == 0 or not _in_common(store),
        )  # fmt: skip

    # -- what is there ---------------------------------------------------------------------

    def _recover(self) -> Recovery:
        """Find, in the background, what the store holds."""
        self._recovery = Recovery(self._operations.scan, self._key_of, self._ranks, self._guard)
        return self._recovery

    def _adopt_recovered(self, count: int) -> None:
        """Take over some of what a scan found; what there is no room for goes."""
        recovery = self._recovery
        if recovery is None or recovery.scanning:
            return
        found = recovery.take(count)
        self._deletions.add(set(found) - set(self._index.adopt(found)))
        if not recovery.left:
            if not self._capabilities.shared:  # others may be storing the rest
                self._deletions.add(recovery.partial)
            self._recovery = None

    def _key_of(self, name: bytes) -> Key | None:
        try:
            namespace, group, shard, key = parse_object_id(name)
        except ValueError:
            return None
        ours = (namespace, group, shard.count) == (self._namespace, 0, self._ranks)
        return key if ours else None

    def _ids_of(self, keys: Iterable[Key]) -> list[bytes]:
        """Every shard of ``keys``, those of a key side by side."""
        shards = [Shard(index, self._ranks) for index in range(self._ranks)]
        return [object_id(self._namespace, 0, shard, key) for key in keys for shard in shards]

    def _whole(self, keys: Sequence[Key]) -> list[bool]:
        there = self._operations.exists(self._ids_of(keys))
        ranks = self._ranks
        return [all(there[i * ranks : (i + 1) * ranks]) for i in range(len(keys))]

    def lookup(self, request: Request, keys: list[Key]) -> bytes:
        """As any index; what it does not know is asked of the store where others may know."""
        if self._reads.circuit is Circuit.OPEN:
            self._index.release(request.id)
            return _MISS * len(keys)
        hits = self._index.lookup(request.id, keys)
        if hits == len(keys) or not self._may_hold_more():
            return _HIT * hits + _MISS * (len(keys) - hits)
        if self._adopt_found():
            hits = self._index.lookup(request.id, keys)
        rest = len(keys) - hits
        if rest and self._finder.must_ask_again(keys, hits):
            return _HIT * hits + _PENDING * rest
        return _HIT * hits + _MISS * rest

    def _may_hold_more(self) -> bool:
        return not self._deletions.must_be_emptied and (
            self._capabilities.shared or self._recovery is not None
        )

    def _adopt_found(self) -> bool:
        answered = self._finder.take()
        if not answered:
            return False
        found = [key for key in answered if not self._deletions.is_going(key)]
        adopted: list[Key] = []
        if found and not self._deletions.must_be_emptied:
            self._leave(self._index.make_room(len(found)))
            adopted = self._index.adopt(found)
            if self._capabilities.shared:
                self._found.update(dict.fromkeys(adopted, time.monotonic() + _FOUND_S))
        self._finder.found_in_vain(key for key in answered if not self._index.has(key))
        return bool(adopted)

    def _age(self) -> None:
        """What others stored they may have removed: it is asked about again (F1)."""
        now = time.monotonic()
        old = [key for key, _ in zip(self._found, range(_PER_STEP), strict=False)]
        old = [key for key in old if self._found[key] <= now]
        for key in old:
            del self._found[key]
        if old:
            kept = self._index.forget_idle(old)
            self._found.update(dict.fromkeys(kept, now + _FOUND_S))

    # -- transfers -------------------------------------------------------------------------

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        if self._reads.circuit is Circuit.OPEN:
            self._index.release(request.id)
            return None
        transfer = super().prepare_load(request, keys)
        if transfer is not None:
            self._reads.lets_through()  # while probing, it is the probe
        return transfer

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        circuit = self._writes.circuit
        if self._at_most() <= 0 or self._deletions.must_be_emptied or circuit is Circuit.OPEN:
            self._declined += len(keys)
            return None
        if self._deletions.any_going:
            keys = [key for key in keys if not self._deletions.is_going(key)]
        plan = super().prepare_store(request, keys)
        if plan is not None:
            self._writes.lets_through()
        return plan

    def _at_most(self) -> int:
        """Back-pressure: what the workers have no slot for is not begun."""
        return self._most_storing - self._index.reservations

    def _transfer(
        self,
        kind: TransferKind,
        request: Request,
        keys: list[Key],
        entries: list[int],
        evicted: Sequence[Key] = (),
    ) -> Transfer:
        transfer = super()._transfer(kind, request, keys, entries)
        if kind is TransferKind.STORE:
            # Each worker deletes before it stores: the capacity holds at every moment.
            doomed = [*evicted]
            if not self._capabilities.scheduler_visible:
                doomed += self._deletions.take(self._index.holds)
            if doomed:
                self._finder.gone(doomed)
                self._deletions.travels(doomed)
                transfer = transfer.with_evictions(tuple(doomed))
        return transfer

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        super().complete_transfer(transfer, verdicts)
        if transfer.evictions:
            self._deletions.arrived(transfer.evictions, surely=all(verdicts))
        breaker = self._reads if transfer.kind is TransferKind.LOAD else self._writes
        if not any(verdicts):
            breaker.failed()
        elif breaker.succeeded() and breaker is self._reads and self._capabilities.persistent:
            self._look_again()

    def _look_again(self) -> None:
        """The store works again: find what was taken for lost while it did not."""
        if self._recovery is None and self._capabilities.scheduler_visible:
            self._recover()

    def _wasted(self, keys: Sequence[Key]) -> None:
        self._finder.gone(keys)
        self._deletions.add(keys)

    def _leave(self, keys: Sequence[Key]) -> None:
        """These were evicted."""
        self._events.removed(keys)
        self._finder.gone(keys)
        self._deletions.add(keys)

    # -- the whole -------------------------------------------------------------------------

    def step(self) -> Sequence[Transfer] | None:
        super().step()
        self._adopt_recovered(_PER_STEP)
        self._age()
        if self._capabilities.scheduler_visible:
            self._evict_ahead()
            self._index.free(self._deletions.step(self._index.holds))
        return None

    def _evict_ahead(self) -> None:
        """From the high watermark down to the low one, so that a store need not wait for it."""
        used = self._index.used
        if used > self._high:
            self._evicting = True
        if self._evicting:
            above = used - self._deletions.withdrawn - self._low
            keys, entries = self._index.withdraw(min(_PER_STEP, max(0, above)))
            self._events.removed(keys)
            self._finder.gone(keys)
            self._deletions.withdraw(keys, entries)
            self._evicting = bool(keys)

    def reset(self) -> Mapping[str, int]:
        keys = list(self._index)
        dropped = super().reset()
        self._found.clear()
        self._finder.everything_gone()
        if self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None
        if self._capabilities.scheduler_visible:
            self._deletions.empty()
        else:
            self._deletions.add(keys)
        return dropped

    def has_pending_work(self) -> bool:
        return self._capabilities.scheduler_visible and self._deletions.busy

    def collect_stats(self) -> Mapping[str, float]:
        """Those of any index, and how the store does.

        ``declined`` chunks, whether it is ``recovering``, open ``questions``, the circuits
        ``reads`` and ``writes`` (0 closed, 1 probing, 2 open), and what each operation took.
        """
        return {
            **super().collect_stats(),
            "declined": self._declined,
            "recovering": self._recovery is not None,
            "questions": self._finder.open_questions,
            "reads": self._reads.circuit,
            "writes": self._writes.circuit,
            **self._operations.figures(),
        }

    def close(self, deadline: float) -> None:
        """What nobody wants does not outlive us, or the next process would find it."""
        ends = time.monotonic() + deadline
        if self._recovery is not None:
            self._recovery.cancel()
        idle = self._finder.close(deadline / 4)
        idle &= self._recovery is None or not self._recovery.scanning
        if not self._capabilities.scheduler_visible:
            return
        left = max(0.0, ends - time.monotonic())
        idle &= self._deletions.close(left, self._index.abandoned_keys, self._index.holds)
        if idle:
            self._operations.store.close()


def _in_common(store: BlockStore) -> bool:
    """Whether all workers see the same objects: else each must store what it needs."""
    return store.capabilities.scheduler_visible
