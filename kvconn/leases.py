"""What keeps a reported hit from being evicted until it is used or given up."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvconn.identity import Key

__all__ = ["Lease"]


@dataclass(slots=True, eq=False)
class Lease:
    """One request's hold on the leading run of the keys that it asked for."""

    asked: list[Key]
    count: int
    """The first ``count`` of ``asked`` are leased."""
    version: int
    """Of the index when the lease was taken: the same question has the same answer until then."""
    expires: float
    """On the index's clock."""
    pinned: bool = False
    """Whether its entries carry a pin of it; not before something is to be removed."""
    entries: list[int] = field(default_factory=list)
    """One per leased key, once they are pinned."""
