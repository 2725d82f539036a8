"""One lookup over two tiers: the leading run of keys, in segments that lie in one tier each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvconn.identity import Key
from kvconn.tiers.orders import FAST, SLOW
from kvconn.types import Request

__all__ = ["Found", "Segment", "sweep"]

_ROUNDS = 8
"""How often a prefix may change tiers; what comes after is a miss."""

Leading = Callable[[int, Request, list[Key]], tuple[int, bool]]
"""``(tier, request, keys)`` to the leading hits and whether the next state is pending."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Keys ``at`` to ``at + count`` are leased in ``tier``, by ``request`` or an alias of it."""

    tier: int
    request: Request
    at: int
    count: int


@dataclass(slots=True)
class Found:
    """What one request's lookup found."""

    keys: list[Key]
    segments: list[Segment] = field(default_factory=list)
    pending: bool = False
    """Whether the key after them is."""

    @property
    def hits(self) -> int:
        """The length of the leading run."""
        return self.segments[-1].at + self.segments[-1].count if self.segments else 0

    @property
    def holders(self) -> set[tuple[int, str]]:
        """Who leases what: tier and request id."""
        return {(segment.tier, segment.request.id) for segment in self.segments}


def sweep(
    leading: Leading, request: Request, keys: Sequence[Key], fast_hits: int, *, pending: bool
) -> Found:
    """Go on where the fast tier's first answer ended, from tier to tier, until neither has a key.

    A tier replaces what a request leased before; a second segment in a tier is leased by an alias.
    """
    found = Found(list(keys))
    if fast_hits:
        found.segments.append(Segment(FAST, request, 0, fast_hits))
    tier, stuck = SLOW, 1
    for turn in range(1, 2 * _ROUNDS):
        at = found.hits
        if at == len(keys):
            break
        asker = request if turn == 1 else _alias(request, turn)
        count, waits = leading(tier, asker, found.keys[at:])
        if count:
            found.segments.append(Segment(tier, asker, at, count))
            pending, stuck = waits, 1
        else:
            pending = pending or waits
            stuck += 1
            if stuck > 1:
                break
        tier = FAST if tier == SLOW else SLOW
    found.pending = pending and found.hits < len(keys)
    return found


def _alias(request: Request, turn: int) -> Request:
    """The same request under another name, for another lease in the same tier."""
    return replace(request, id=f"{request.id}\0{turn}")
