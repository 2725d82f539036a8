"""What the scheduler side of a composition tells its worker side, inside a transfer.

A transfer of the composition carries the transfers of its tiers.  What a tier does in the
background is begun by the transfer that causes it and reported under a ``MOVE`` of its own, which
the next step hands out: so nobody waits for it, and a failure of it is nobody else's.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from kvconn.types import Transfer

__all__ = [
    "FAST",
    "SLOW",
    "Demotion",
    "LoadOrders",
    "MoveOrders",
    "Placement",
    "StoreOrders",
    "orders_of",
]

FAST, SLOW = 0, 1


class Demotion(msgspec.Struct, frozen=True, array_like=True):
    """Some chunks on their way down; both transfers name the same keys."""

    evicted: Transfer
    """Reads them from where they still lie."""
    demoted: Transfer
    """Stores them into the slow tier, in the background."""


class Placement(msgspec.Struct, frozen=True, array_like=True):
    """A store into the fast tier, and what it pushes down first."""

    store: Transfer
    demotions: tuple[Demotion, ...] = ()


class LoadOrders(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a load, in key order, each with its tier."""

    parts: tuple[tuple[int, Transfer], ...]
    promotion: Placement | None = None
    """Of what came from the slow tier, in the background once it lies in the engine's pages."""


class StoreOrders(msgspec.Struct, frozen=True, array_like=True):
    """Where a store goes."""

    placement: Placement | None = None
    through: Transfer | None = None
    """Into the slow tier at the same time, in the background."""
    direct: Transfer | None = None
    """Into the slow tier, since the fast one did not want it."""


class MoveOrders(msgspec.Struct, frozen=True, array_like=True):
    """Whose end is reported under this ``MOVE``."""

    awaited: int = 0
    """The background transfer."""
    tier: int = 0
    inner: Transfer | None = None
    """A ``MOVE`` of a tier that is a composition itself."""


Orders = TypeVar("Orders", LoadOrders, StoreOrders, MoveOrders)


def orders_of(transfer: Transfer, kind: type[Orders]) -> Orders:
    """The orders that ``transfer`` carries; raises ``msgspec.DecodeError`` where it has none."""
    return msgspec.msgpack.decode(transfer.payload, type=kind)
