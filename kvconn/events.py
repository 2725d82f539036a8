"""Keeps what was stored and removed until somebody takes it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from kvconn.identity import Key
from kvconn.types import EventKind, KVEvent

__all__ = ["EventLog"]


class EventLog:
    """The events of one tier; keeps none unless asked to.  Scheduler thread."""

    def __init__(self, tier: str, *, keep: bool) -> None:
        self._tier = tier
        self._keep = keep
        self._events: list[KVEvent] = []

    def _add(self, kind: EventKind, keys: Sequence[Key]) -> None:
        if self._keep and keys:
            self._events.append(KVEvent(kind, tuple(keys), self._tier))

    def stored(self, keys: Sequence[Key], verdicts: Sequence[bool]) -> None:
        """Those of ``keys`` whose verdict is good can be found from now on."""
        if self._keep:
            self._add(EventKind.STORED, tuple(compress(keys, verdicts)))

    def failed(self, keys: Sequence[Key], verdicts: Sequence[bool]) -> None:
        """Those of ``keys`` whose verdict is bad are gone."""
        if self._keep:
            bad = tuple(key for key, good in zip(keys, verdicts, strict=True) if not good)
            self._add(EventKind.REMOVED, bad)

    def removed(self, keys: Sequence[Key]) -> None:
        """``keys`` were evicted."""
        self._add(EventKind.REMOVED, keys)

    def cleared(self) -> None:
        """The tier was emptied."""
        if self._keep:
            self._events.append(KVEvent(EventKind.CLEARED, (), self._tier))

    def take(self) -> list[KVEvent]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events
