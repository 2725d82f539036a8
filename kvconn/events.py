"""Keeps what was stored and removed until somebody takes it."""

from __future__ import annotations

from collections.abc import Sequence

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

    def stored(self, keys: Sequence[Key]) -> None:
        """``keys`` can be found from now on."""
        self._add(EventKind.STORED, keys)

    def removed(self, keys: Sequence[Key]) -> None:
        """``keys`` were evicted, or are lost."""
        self._add(EventKind.REMOVED, keys)

    def cleared(self) -> None:
        """The tier was emptied."""
        if self._keep:
            self._events.append(KVEvent(EventKind.CLEARED, (), self._tier))

    def take(self) -> list[KVEvent]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events
