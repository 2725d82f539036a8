"""What a replay found, in the form that is printed as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvconn.engine.engine import Engine
    from kvconn.engine.figures import BusyTime
    from kvconn.testing.counting import CountingBackend

__all__ = ["Blocks", "Failures", "Leaks", "LookupTime", "ReplayReport", "Skip", "Tier", "report"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Counts of whole blocks; ``queried + bypassed == local + external hits + computed``."""

    queried: int
    """By requests that may read."""
    bypassed: int
    """Of requests that must not read: neither queries nor hits (R4)."""
    local_hits: int
    external_hits: int
    computed: int
    accepted: int
    """For storing, by the backend, at its own door."""
    evicted: int
    stored: int
    checked: int
    """Compared with what they should hold, over all ranks."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One backend."""

    name: str
    hits: int
    """Blocks."""
    loaded_bytes: int
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Requests with ``skip_reading_prefix_cache``, counted at the backend's own door."""

    requests: int
    backend_lookups: int
    backend_loads: int
    accepted: int
    """Blocks of theirs that were accepted for storing."""


@dataclass(frozen=True, slots=True)
class Leaks:
    """What was still held when everything had ended."""

    leases: int
    reservations: int
    transfers: int
    requests: int
    """That never ended."""
    local_blocks: int
    """Of the engine's own memory."""


@dataclass(frozen=True, slots=True)
class LookupTime:
    """Of one call of the connector's ``lookup``, in microseconds."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Failures:
    """What went wrong and cost hits only."""

    loads: int
    """Chunks that were promised and did not come: computed instead."""
    stores: int
    """Chunks that were accepted and not stored."""
    backend_errors: int
    """Exceptions of the backend, both halves."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Everything that ``kvconn replay`` says."""

    requests: int
    blocks: Blocks
    hit_rate: float
    """(local hits + external hits) / queried."""
    tiers: list[Tier]
    wrong_blocks: int
    skip: Skip
    leaks: Leaks
    failures: Failures
    lookup_us: LookupTime
    load_gbps: float
    """10**9 bytes a second while at least one load ran."""
    store_gbps: float
    seconds: float

    @property
    def good(self) -> bool:
        """No wrong block, nothing leaked, and no skipping request reached the backend."""
        leaked = any(asdict(self.leaks).values())
        breached = self.skip.backend_lookups or self.skip.backend_loads
        return not (self.wrong_blocks or leaked or breached)

    def as_dict(self) -> dict[str, Any]:
        """The document that ``--json`` prints."""
        return asdict(self)


def report(
    engine: Engine, doors: Sequence[CountingBackend], names: Sequence[str], seconds: float
) -> ReplayReport:
    """What ``engine``, at rest, and the counter at each tier's door say; the fastest first."""
    figures, geometry = engine.figures, engine.scheduler.geometry
    stats, leaks = engine.scheduler.collect_stats(), engine.leaks()
    block_bytes = geometry.block_bytes * geometry.ranks
    loaded_bytes, stored_bytes = figures.loaded * block_bytes, figures.stored * block_bytes
    size = geometry.blocks_per_chunk
    skipping = [door.skipping for door in doors]
    accepted = max(door.plain.accepted + door.skipping.accepted for door in doors)
    worker_errors = sum(worker.connector.errors for worker in engine.workers)
    return ReplayReport(
        requests=figures.requests,
        blocks=Blocks(
            queried=figures.queried,
            bypassed=figures.bypassed,
            local_hits=figures.local_hits,
            external_hits=figures.external_hits,
            computed=figures.computed,
            accepted=accepted * size,
            evicted=sum(door.plain.evicted + door.skipping.evicted for door in doors) * size,
            stored=figures.stored,
            checked=sum(worker.checked_blocks for worker in engine.workers),
        ),
        hit_rate=figures.hit_rate,
        tiers=(
            [Tier(names[0], figures.external_hits, loaded_bytes, stored_bytes)]
            if len(names) == 1
            else [_tier(name, stats, size, block_bytes) for name in names]
        ),
        wrong_blocks=engine.wrong_blocks,
        skip=Skip(
            requests=skipping[0].started,
            backend_lookups=sum(calls.lookups for calls in skipping),
            backend_loads=sum(calls.loads for calls in skipping),
            accepted=max(calls.accepted for calls in skipping) * size,
        ),
        leaks=Leaks(**leaks),
        failures=Failures(
            loads=int(stats["failed_loads"]),
            stores=int(stats["failed_stores"]),
            backend_errors=int(stats["backend_errors"]) + worker_errors,
        ),
        lookup_us=_lookup_time(figures.lookup_ns),
        load_gbps=_rate(loaded_bytes, (worker.loading for worker in engine.workers)),
        store_gbps=_rate(stored_bytes, (worker.storing for worker in engine.workers)),
        seconds=seconds,
    )


def _tier(name: str, stats: Mapping[str, float], size: int, block_bytes: int) -> Tier:
    loaded, stored = (int(stats[f"{name}_{what}"]) * size for what in ("loaded", "stored"))
    return Tier(name, loaded, loaded * block_bytes, stored * block_bytes)


def _lookup_time(nanoseconds: list[int]) -> LookupTime:
    if not nanoseconds:
        return LookupTime(0.0, 0.0)
    p50, p99 = np.percentile(nanoseconds, [50, 99]) / 1000
    return LookupTime(float(p50), float(p99))


def _rate(total_bytes: int, busy: Iterable[BusyTime]) -> float:
    """Ranks work one after the other here, so their times add up, as their bytes do."""
    seconds = sum(rank.seconds for rank in busy)
    return total_bytes / seconds / 1e9 if seconds else 0.0
