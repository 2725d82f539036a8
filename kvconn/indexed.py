"""A backend whose scheduler side is a :class:`~kvconn.index.ChunkIndex` over its own capacity."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from kvconn.backend import Backend
from kvconn.errors import CapacityTooSmall
from kvconn.events import EventLog
from kvconn.index import ChunkIndex
from kvconn.registry import load_eviction_class
from kvconn.types import (
    BlockState,
    KVEvent,
    Request,
    StorePlan,
    Transfer,
    TransferKind,
    new_transfer_id,
    seconds_left,
)

if TYPE_CHECKING:
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace

__all__ = ["IndexedBackend"]

_HIT, _MISS = bytes([BlockState.HIT]), bytes([BlockState.MISS])


class IndexedBackend(Backend):
    """Everything of the scheduler side but the size: leases, eviction, life cycle, events.

    A subclass names its tier, says how many chunks its capacity holds, and opens its worker.
    """

    tier: ClassVar[str]
    """Names this backend in events, resets and reports."""

    @abstractmethod
    def chunks_that_fit(self, geometry: Geometry) -> int:
        """How many chunks the configured capacity holds, all their shards counted."""

    @abstractmethod
    def eviction_name(self) -> str:
        """The eviction policy, by entry-point name."""

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:  # noqa: ARG002
        chunks = self.chunks_that_fit(geometry)
        if chunks < 1:
            msg = (
                f"the capacity of {self.tier} does not hold one chunk of "
                f"{self.pool_size(geometry).slot_bytes} B "
                f"on each of {geometry.workers} ranks: raise capacity or lower blocks_per_chunk"
            )
            raise CapacityTooSmall(msg)
        self._index = ChunkIndex(
            chunks,
            load_eviction_class(self.eviction_name())(chunks),
            lease_seconds=self.settings.lease_seconds,
        )
        self._loading = 0
        self._touched: set[str] = set()
        """Requests that touched or stored before: what they touch again is no further use."""
        self._events = EventLog(self.tier, keep=self.settings.events)

    def lookup(self, request: Request, keys: list[Key]) -> bytes:
        """The keys after the first miss are not looked at: only a leading run can be used."""
        hits = self._index.lookup(request.id, keys)
        return _HIT * hits + _MISS * (len(keys) - hits)

    def release(self, request: Request) -> None:
        self._index.release(request.id)

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        entries = self._index.take(request.id, keys)
        if not entries:
            return None
        self._loading += len(entries)
        return self._transfer(TransferKind.LOAD, request, keys[: len(entries)], entries)

    def touch(self, request: Request, keys: list[Key]) -> None:
        self._index.touch(keys, again=request.id in self._touched)
        self._touched.add(request.id)

    def request_finished(self, request: Request) -> None:
        self._touched.discard(request.id)
        self.release(request)

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        self._touched.add(request.id)
        accepted, entries, evicted = self._index.reserve(keys, self._at_most())
        self._events.removed(evicted)
        if not accepted:
            return None
        transfer = self._transfer(TransferKind.STORE, request, accepted, entries, evicted)
        return StorePlan(transfer.keys, transfer, evicted, self._places() if evicted else ())

    def _places(self) -> Sequence[int]:
        """Where the bytes of what was just evicted still lie, if they do."""
        return ()

    def _at_most(self) -> int | None:
        """How many chunks may begin to be stored now; ``None``: as many as there is room for."""
        return None

    def _transfer(
        self,
        kind: TransferKind,
        request: Request,
        keys: list[Key],
        entries: list[int],
        evicted: Sequence[Key] = (),  # noqa: ARG002 - for backends whose workers delete
    ) -> Transfer:
        return Transfer(
            id=new_transfer_id(),
            kind=kind,
            request_id=request.id,
            keys=tuple(keys),
            locations=tuple(entries),
            timeout_s=seconds_left(request.deadline, self.settings.transfer_timeout_s),
        )

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        if transfer.kind is TransferKind.LOAD:
            self._loading -= len(transfer.keys)
            dropped = self._index.loaded(transfer.keys, transfer.locations, verdicts)
            if dropped:
                self._events.removed(dropped)
                self._wasted(dropped)
        else:
            stored, lost = self._index.stored(transfer.keys, transfer.locations, verdicts)
            self._events.stored(stored)
            if lost:
                self._wasted(lost)

    def holds(self, keys: list[Key]) -> Sequence[bool]:
        return [self._index.has(key) for key in keys]

    def _wasted(self, keys: Sequence[Key]) -> None:
        """Bytes of ``keys`` may lie somewhere that nothing refers to; nothing to do by default."""

    def step(self) -> Sequence[Transfer] | None:
        self._index.expire()
        return None

    def reset(self) -> Mapping[str, int]:
        self._events.cleared()
        return {self.tier: self._index.clear()}

    def take_events(self) -> Sequence[KVEvent]:
        return self._events.take()

    def collect_stats(self) -> Mapping[str, float]:
        """``entries``, ``used`` and ``capacity`` in chunks; the others as in the contract."""
        index = self._index
        return {
            "entries": len(index),
            "used": index.used,
            "capacity": index.capacity,
            "leases": index.leases,
            "reservations": index.reservations,
            "loading": self._loading,
        }
