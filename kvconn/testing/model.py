"""What a backend must hold, in plain Python: the reference of the random runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from kvconn.types import EventKind

if TYPE_CHECKING:
    from kvconn.identity import Key
    from kvconn.types import KVEvent, StorePlan, Transfer

__all__ = ["Lease", "Model"]


@dataclass
class Lease:
    """What a request was told that it may load."""

    keys: list[Key]
    sure: bool = True
    """Nothing has happened since that could have taken a leased block away."""


@dataclass
class _Flight:
    transfer: Transfer
    era: int
    """Resets so far when it was prepared."""
    time: int


@dataclass
class Model:
    """Blocks by key, and what is on its way.

    ``may`` is what a lookup may find: whatever a store completed and nothing took away since.
    ``told`` is what the backend's own events say that it holds, by tier.
    """

    one_tier: bool
    may: set[Key] = field(default_factory=set)
    told: dict[str, set[Key]] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    failed: dict[str, set[Key]] = field(default_factory=dict)
    """By request, the keys that are not offered to it again (F1)."""
    alive: set[str] = field(default_factory=set)
    """Requests that were heard of and have not ended."""
    flights: dict[int, _Flight] = field(default_factory=dict)
    _born: dict[Key, int] = field(default_factory=dict)
    _time: int = 0
    _era: int = 0

    # -- what is expected --------------------------------------------------------------------

    def usable(self, request: str, keys: Sequence[Key]) -> list[Key]:
        """The leading ``keys`` that may be offered to ``request``."""
        failed = self.failed.get(request, set())
        return list(takewhile(lambda key: key not in failed, keys))

    def most(self, request: str, keys: Sequence[Key]) -> int:
        """The longest hit that is not a lie."""
        return _leading(self.usable(request, keys), self.may)

    def said(self, request: str, keys: Sequence[Key]) -> int:
        """The hit that the backend's own events promise."""
        held = set().union(*self.told.values())
        return _leading(self.usable(request, keys), held)

    def moving(self, kind: int) -> int:
        """Chunks in transfers of one kind that nobody completed yet."""
        return sum(len(f.transfer.keys) for f in self.flights.values() if f.transfer.kind == kind)

    # -- what happens ------------------------------------------------------------------------

    def heard(self, events: Iterable[KVEvent]) -> None:
        """Follow the backend's events."""
        for event in events:
            held = self.told.setdefault(event.tier, set())
            if event.kind is EventKind.STORED:
                held.update(event.keys)
            elif event.kind is EventKind.REMOVED:
                held.difference_update(event.keys)
                if self.one_tier:
                    self.may.difference_update(event.keys)
            else:
                held.clear()

    def planned(self, request: str, keys: Sequence[Key], transfer: Transfer | None) -> None:
        """A load of ``keys`` was asked for: the first that it lacks is not offered again."""
        usable = self.usable(request, keys)
        named = 0 if transfer is None else len(transfer.keys)
        if named < len(usable):
            self.failed.setdefault(request, set()).add(usable[named])

    def begun(self, transfer: Transfer, plan: StorePlan | None = None) -> None:
        """A transfer was prepared."""
        self._time += 1
        self.flights[transfer.id] = _Flight(transfer, self._era, self._time)
        if plan is not None and self.one_tier:
            self.may.difference_update(plan.evicted)

    def stored(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        """A store was completed."""
        self._time += 1
        flight = self.flights.pop(transfer.id)
        if flight.era != self._era:
            return
        for key, good in zip(transfer.keys, verdicts, strict=True):
            if good:
                self.may.add(key)
                self._born[key] = self._time
            elif self.one_tier:
                self.may.discard(key)

    def loaded(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        """A load was completed: what failed is a miss to everyone, unless it was stored since."""
        flight = self.flights.pop(transfer.id)
        for key, good in zip(transfer.keys, verdicts, strict=True):
            if good:
                continue
            if transfer.request_id in self.alive:
                self.failed.setdefault(transfer.request_id, set()).add(key)
            if self.one_tier and self._born.get(key, 0) < flight.time:
                self.may.discard(key)
            self.doubt()

    def doubt(self) -> None:
        """Something was taken away that may have been leased."""
        for lease in self.leases.values():
            lease.sure = False

    def ended(self, request: str) -> None:
        """A request is over; one of the same name starts afresh."""
        self.leases.pop(request, None)
        self.failed.pop(request, None)
        self.alive.discard(request)

    def reset(self) -> None:
        """Everything is forgotten, stores on their way included."""
        self._era += 1
        self.may.clear()
        self.leases.clear()

    def restarted(self, *, persistent: bool) -> None:
        """Another process goes on with what was there."""
        on_their_way = {key for f in self.flights.values() for key in f.transfer.keys}
        self.may = (self.may | on_their_way) if persistent else set()
        for lost in (self.leases, self.failed, self.flights, self.told, self.alive):
            lost.clear()


def _leading(keys: Iterable[Key], held: set[Key]) -> int:
    return sum(1 for _ in takewhile(held.__contains__, keys))
