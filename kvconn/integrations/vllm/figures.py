"""What kvconn counts, through vLLM's own metrics interface: its log, and its ``/metrics``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

__all__ = ["Collector", "Figures", "PromFigures"]

_EVERY_S = 0.25
"""Seconds between two collections while requests run; the last step of all always collects."""


@dataclass(frozen=True, slots=True)
class _Metric:
    """One family of ``/metrics``; ``labels`` beside vLLM's own and the tier."""

    name: str
    says: str
    label: str = ""


_COUNTERS = {
    "lookup": _Metric("vllm:kvconn_lookup_chunks", "Chunks that lookups asked for.", "result"),
    "bypassed": _Metric(
        "vllm:kvconn_bypassed_requests", "Requests that a policy kept from reading any cache."
    ),
    "gated": _Metric(
        "vllm:kvconn_gated_requests", "Requests whose hits would have taken longer to load."
    ),
    "offer": _Metric("vllm:kvconn_offered_chunks", "Chunks offered for storing.", "result"),
    "loaded": _Metric("vllm:kvconn_load_chunks", "Chunks that were to be loaded.", "result"),
    "stored": _Metric("vllm:kvconn_store_chunks", "Chunks that were to be stored.", "result"),
    "bytes": _Metric("vllm:kvconn_bytes", "Bytes moved, over all ranks.", "direction"),
    "evicted": _Metric("vllm:kvconn_evicted_chunks", "Chunks evicted to make room."),
    "errors": _Metric("vllm:kvconn_errors", "What plugins raised or broke.", "kind"),
    "seconds": _Metric("vllm:kvconn_io_seconds", "Seconds spent in a store's calls.", "call"),
}
_GAUGES = {
    "entries": _Metric("vllm:kvconn_entries", "Chunks that can be found.", "tier"),
    "capacity": _Metric("vllm:kvconn_capacity", "Chunks that there is room for.", "tier"),
    "leases": _Metric("vllm:kvconn_leases", "Requests that hold a lease."),
    "reservations": _Metric("vllm:kvconn_reservations", "Chunks that are being stored."),
    "reads": _Metric("vllm:kvconn_read_circuit", "Of loads: 0 closed, 1 probing, 2 open.", "tier"),
    "writes": _Metric(
        "vllm:kvconn_write_circuit", "Of stores: 0 closed, 1 probing, 2 open.", "tier"
    ),
}


class Figures(KVConnectorStats):
    """What happened since the last ones, and how things stand.

    ``data`` has ``counters``, which add up, and ``gauges``, of which the last counts; the keys of
    both are ``family`` or ``family|label``.
    """

    def reset(self) -> None:
        """Forget everything."""
        self.data: dict[str, Any] = {"counters": {}, "gauges": {}}

    def aggregate(self, other: KVConnectorStats) -> Figures:
        """These, then ``other``'s: of another rank, or later."""
        counters = dict(self.data.get("counters", {}))
        for name, value in other.data.get("counters", {}).items():
            counters[name] = counters.get(name, 0) + value
        gauges = {**self.data.get("gauges", {}), **other.data.get("gauges", {})}
        return Figures({"counters": counters, "gauges": gauges})

    def reduce(self) -> dict[str, int | float]:
        """For the log line that vLLM prints now and then."""
        counters = self.data.get("counters", {})
        hits, misses = (counters.get(f"lookup|{result}", 0) for result in ("hit", "miss"))
        asked = hits + misses
        said = {
            "kvconn hit rate": round(hits / asked, 3) if asked else 0.0,
            "bypassed requests": counters.get("bypassed", 0),
            "loaded MB": round(counters.get("bytes|load", 0) / 1e6, 1),
            "stored MB": round(counters.get("bytes|store", 0) / 1e6, 1),
            "failed chunks": counters.get("loaded|failed", 0) + counters.get("stored|failed", 0),
        }
        errors = sum(value for name, value in counters.items() if name.startswith("errors|"))
        return {**said, "errors": errors} if errors else said

    def is_empty(self) -> bool:
        """Nothing happened."""
        return not any(self.data.get("counters", {}).values())


class Collector:
    """Makes :class:`Figures` of one side's totals, each time of what came since."""

    def __init__(self, totals: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        self._totals = totals
        self._before: dict[str, float] = {}
        self._next = 0.0

    def collect(self, *, now: bool) -> Figures | None:
        """``None`` while it is too early, unless ``now``, and when nothing happened."""
        if not now and time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _EVERY_S
        totals = self._totals()
        counters = dict(totals["counters"])
        since = {
            name: value - self._before.get(name, 0)
            for name, value in counters.items()
            if value != self._before.get(name, 0)
        }
        self._before = counters
        if not since:
            return None
        return Figures({"counters": since, "gauges": dict(totals["gauges"])})


def scheduler_totals(
    figures: Mapping[str, float], chunk_bytes: int, tiers: list[str]
) -> dict[str, dict[str, float]]:
    """The scheduler side's figures, sorted; ``chunk_bytes`` over all ranks."""
    f = figures
    counters = {
        "lookup|hit": f["hits"],
        "lookup|miss": f["queries"] - f["hits"],
        "bypassed": f["bypassed"],
        "gated": f.get("gated", 0),
        "offer|accepted": f["accepted"],
        "offer|declined": f["offered"] - f["accepted"],
        "loaded|ok": f["loaded"],
        "loaded|failed": f["failed_loads"],
        "stored|ok": f["stored"],
        "stored|failed": f["failed_stores"],
        "bytes|load": f["loaded"] * chunk_bytes,
        "bytes|store": f["stored"] * chunk_bytes,
        "evicted": f["evicted"],
        "errors|policy": f["policy_errors"],
        "errors|backend": f["backend_errors"],
        "errors|misuse": f["misuse"],
    }
    return {"counters": counters, "gauges": dict(_gauges(figures, tiers))}


def _gauges(figures: Mapping[str, float], tiers: list[str]) -> Iterator[tuple[str, float]]:
    for family, metric in _GAUGES.items():
        if metric.label != "tier":
            yield family, float(figures.get(family, 0))
            continue
        for tier in tiers:
            name = family if len(tiers) == 1 else f"{tier}_{family}"
            if name in figures:
                yield f"{family}|{tier}", float(figures[name])


def worker_totals(figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """A worker's, likewise."""
    seconds = {
        f"seconds|{name.removesuffix('_seconds')}": value
        for name, value in figures.items()
        if name.endswith("_seconds")
    }
    return {
        "counters": {**seconds, "errors|worker": figures.get("worker_errors", 0)},
        "gauges": {},
    }


class PromFigures(KVConnectorPromMetrics):
    """One family per figure, with vLLM's own labels first."""

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401 - vLLM's
        metric_types: Any,  # noqa: ANN401
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            family: self._make(self._counter_cls, metric) for family, metric in _COUNTERS.items()
        }
        self._gauges = {
            family: self._make(self._gauge_cls, metric) for family, metric in _GAUGES.items()
        }

    def _make(self, kind: Any, metric: _Metric) -> Any:  # noqa: ANN401 - prometheus_client's
        names = [*self._labelnames, *([metric.label] if metric.label else [])]
        return kind(name=metric.name, documentation=metric.says, labelnames=names)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what :class:`Figures` say."""
        own = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.get("counters", {}).items():
            family, _, label = name.partition("|")
            self._counters[family].labels(*own, *([label] if label else [])).inc(value)
        for name, value in transfer_stats_data.get("gauges", {}).items():
            family, _, label = name.partition("|")
            self._gauges[family].labels(*own, *([label] if label else [])).set(value)
