"""One lookup over two tiers: the leading run of keys, in segments that lie in one tier each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvconn.identity import Key
from kvconn.tiers.orders import FAST, SLOW
from kvconn.types import Request

__all__ = ["Found", "Segment", "sweep"]

_ROUNDS = 8
"""How often a prefix may change tiers; what comes after is taken from the slow one."""

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


class _Sweep:
    """One lookup on its way."""

    def __init__(self, leading: Leading, request: Request, found: Found) -> None:
        self._leading = leading
        self._request = request
        self.found = found

    def ask(self, tier: int, turn: int, at_most: int | None = None) -> tuple[int, bool]:
        """What ``tier`` has of what comes next: the length, and whether it is to be known.

        A tier replaces what a request leased before: from the second turn on an alias asks.
        """
        at = self.found.hits
        rest = self.found.keys[at:][:at_most]
        asker = _alias(self._request, turn) if turn else self._request
        count, waits = self._leading(tier, asker, rest) if rest else (0, False)
        if count:
            self.found.segments.append(Segment(tier, asker, at, count))
        return count, waits


def sweep(
    leading: Leading,
    next_fast: Callable[[list[Key]], int],
    request: Request,
    keys: Sequence[Key],
    fast_hits: int,
    *,
    pending: bool,
) -> Found:
    """Go on where the fast tier's first answer ended, from tier to tier, until neither has a key.

    ``next_fast`` says how many leading keys the fast tier lacks: so far the slow one is asked, that
    each key comes from the fastest tier that has it.
    """
    found = Found(list(keys))
    if fast_hits:
        found.segments.append(Segment(FAST, request, 0, fast_hits))
    going = _Sweep(leading, request, found)
    for turn in range(_ROUNDS):
        gap = next_fast(found.keys[found.hits :])
        last = turn == _ROUNDS - 1 or not gap
        count, waits = going.ask(SLOW, turn, None if last else gap)
        pending = waits or (pending and not count)
        if last or count < gap or found.hits == len(keys):
            break
        more, waits = going.ask(FAST, turn + 1)
        pending = waits or (pending and not more)
        if not more:  # it has lost what it said that it has
            going.ask(SLOW, turn + 1)
            break
    found.pending = pending and found.hits < len(keys)
    return found


def _alias(request: Request, turn: int) -> Request:
    """The same request under another name, for another lease in the same tier."""
    return replace(request, id=f"{request.id}\0{turn}")
