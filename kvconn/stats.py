"""What a connector counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["ConnectorStats"]


@dataclass(slots=True)
class ConnectorStats:
    """Counters since the connector opened; chunks unless said otherwise."""

    queries: int = 0
    """Chunks that lookups asked for; a waiting request that asks again is counted once."""
    hits: int = 0
    """Of these, the chunks answered as usable after every policy was asked."""
    bypassed: int = 0
    """Requests that a policy kept from reading; neither queries nor hits."""
    refused_loads: int = 0
    """Calls of ``prepare_load`` for a request that must not read."""
    refused_stores: int = 0
    """Calls of ``prepare_store`` for a request that must not write."""
    offered: int = 0
    """Chunks offered for storing by requests that may write."""
    accepted: int = 0
    evicted: int = 0
    loaded: int = 0
    stored: int = 0
    failed_loads: int = 0
    failed_stores: int = 0
    policy_errors: int = 0
    """Exceptions raised by policies; each denied."""
    backend_errors: int = 0
    """Exceptions raised by the backend, and answers that break the contract."""
    misuse: int = 0
    """Broken calls by the engine: a transfer completed twice and the like."""

    def as_dict(self) -> dict[str, float]:
        """The counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
