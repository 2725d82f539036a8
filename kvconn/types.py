"""The values that cross the contract.  They know nothing of hooks, plugins or engines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

import msgspec

from kvconn.identity import Key

__all__ = [
    "ABSENT",
    "BlockRows",
    "BlockState",
    "EventKind",
    "Hits",
    "KVEvent",
    "Permissions",
    "Request",
    "StorePlan",
    "Transfer",
    "TransferKind",
    "WriteMode",
    "new_transfer_id",
]

ABSENT = -1
"""The block id that means *do not move this block* in a row of :data:`BlockRows`."""

WriteMode = Literal["write_through", "write_back"]
"""With tiers: a slower one gets what is stored at once, or what the faster one evicts."""

BlockRows = Sequence[Sequence[int]]
"""One row per key, ``blocks_per_chunk`` engine block ids a row, each an id or :data:`ABSENT`."""


class BlockState(IntEnum):
    """What a backend knows of one key."""

    MISS = 0
    HIT = 1
    PENDING = 2
    """Not known yet: ask again in a later step."""


class TransferKind(IntEnum):
    """Which way bytes move."""

    LOAD = 0
    """From the backend into engine pages."""
    STORE = 1
    """From engine pages into the backend."""
    MOVE = 2
    """From one tier to another; no engine page takes part."""


@dataclass(frozen=True, slots=True)
class Request:
    """The context of one engine request, as policies and backends see it.

    A request whose flags change is presented again as another object with the same ``id``.
    """

    id: str
    skip_reading_prefix_cache: bool = False
    skip_writing_prefix_cache: bool = False
    deadline: float | None = None
    """On ``time.monotonic``'s clock, or ``None``: no transfer of this request outlasts it."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the engine or its user says; kvconn passes it on unread."""


@dataclass(frozen=True, slots=True)
class Permissions:
    """What a policy leaves allowed.  Answers are intersected; none can grant."""

    read: bool = True
    write: bool = True

    def __and__(self, other: Permissions) -> Permissions:
        return Permissions(self.read and other.read, self.write and other.write)


@dataclass(frozen=True, slots=True)
class Hits:
    """The leading run of hits that a lookup found, as ``accept`` sees it."""

    chunks: int
    tokens: int
    """Tokens a load would restore: whole chunks less what the engine has of the first one."""


class Transfer(msgspec.Struct, frozen=True, array_like=True, gc=False, eq=False):
    """One asynchronous move of some keys.  Crosses processes as bytes and holds no secrets."""

    id: int
    """Unique in the scheduler process that made it."""
    kind: TransferKind
    request_id: str
    keys: tuple[bytes, ...]
    locations: tuple[int, ...] = ()
    """The backend's own place for each key (a slot of the host pool for ``cpu``), or empty."""
    evictions: tuple[bytes, ...] = ()
    """Keys that workers delete before they store; only where the scheduler side cannot."""
    timeout_s: float = 30.0
    """Seconds, counted from the worker's ``submit``, after which the transfer has failed."""
    group: int = 0
    """The KV-cache group whose pages move."""
    payload: bytes = b""
    """The backend's own words to its workers, opaque to everybody else."""

    def with_evictions(self, keys: tuple[bytes, ...]) -> Transfer:
        """The same transfer, with ``keys`` to delete first."""
        return msgspec.structs.replace(self, evictions=keys)

    def to_bytes(self) -> bytes:
        """The wire form (MessagePack)."""
        return _ENCODER.encode(self)

    @staticmethod
    def from_bytes(wire: bytes) -> Transfer:
        """The inverse of :meth:`to_bytes`; raises ``msgspec.DecodeError`` on other bytes."""
        return _DECODER.decode(wire)


new_transfer_id = itertools.count(1).__next__
"""The next transfer id of this process."""

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Transfer)


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A backend's answer to an offer."""

    accepted: tuple[Key, ...] = ()
    """The keys it wants, in the order of the offer."""
    transfer: Transfer | None = None
    """The transfer of exactly those keys; ``None`` when there are none."""
    evicted: Sequence[Key] = ()
    """Keys that are gone to make room."""
    evicted_locations: Sequence[int] = ()
    """Where the bytes of ``evicted`` still lie until the transfer is submitted, as in
    :attr:`Transfer.locations`; empty where they are gone already."""


class EventKind(IntEnum):
    """What happened to a key in a backend."""

    STORED = 0
    REMOVED = 1
    CLEARED = 2
    """The whole backend or tier was emptied; ``keys`` is empty."""


@dataclass(frozen=True, slots=True)
class KVEvent:
    """One change of what a backend holds, for routers that follow it."""

    kind: EventKind
    keys: tuple[Key, ...]
    tier: str


def seconds_left(deadline: float | None, otherwise: float) -> float:
    """Seconds until ``deadline`` on the monotonic clock, never negative; ``otherwise`` if none."""
    if deadline is None:
        return otherwise
    return max(0.0, min(otherwise, deadline - time.monotonic()))
