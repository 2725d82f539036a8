"""What the engine counts; blocks unless said otherwise."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

__all__ = ["BusyTime", "Figures"]


@dataclass(slots=True)
class Figures:
    """Since the engine was opened.

    Without preemptions, aborts and answers,
    ``queried + bypassed == local_hits + external_hits + computed``.
    """

    requests: int = 0
    queried: int = 0
    """Whole blocks of the prompts of requests that may read, each time one is admitted."""
    bypassed: int = 0
    """The same of requests that must not: neither queries nor hits (R4)."""
    local_hits: int = 0
    external_hits: int = 0
    """Blocks that a load brought and a request used."""
    computed: int = 0
    evicted: int = 0
    """Blocks that the backend said had to go for a store."""
    loaded: int = 0
    stored: int = 0
    preemptions: int = 0
    failed_loads: int = 0
    """Chunks that a lookup promised and a load did not bring: computed instead."""
    lookup_ns: list[int] = field(default_factory=list)
    """Of each call of the connector's ``lookup``."""

    @property
    def hit_rate(self) -> float:
        """Share of the queried blocks that were hits, here or in the backend."""
        return (self.local_hits + self.external_hits) / self.queried if self.queried else 0.0


@dataclass(slots=True)
class BusyTime:
    """Seconds in which at least one transfer ran."""

    seconds: float = 0.0
    running: int = 0
    _since: float = 0.0

    def start(self) -> None:
        """One more runs."""
        if not self.running:
            self._since = time.perf_counter()
        self.running += 1

    def end(self) -> None:
        """One less runs."""
        self.running -= 1
        if not self.running:
            self.seconds += time.perf_counter() - self._since
