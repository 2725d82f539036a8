"""What keeps a reported hit from being evicted until it is used or given up."""

from __future__ import annotations

from dataclasses import dataclass

from kvconn.identity import Key

__all__ = ["Lease"]


@dataclass(slots=True, eq=False)
class Lease:
    """One request's pins on the leading run of the keys that it asked for."""

    asked: list[Key]
    entries: list[int]
    """One per leased key; the first ``len(entries)`` of ``asked``."""
    version: int
    """Of the index when the lease was taken: the same question has the same answer until then."""
    expires: float
    """On the index's clock."""
    pinned: bool = False
    """Whether its entries carry a pin of it; not before something is to be removed."""
