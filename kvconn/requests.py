"""What a connector remembers of one request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvconn.identity import Key
from kvconn.types import Request

__all__ = ["RequestState"]


@dataclass(slots=True, eq=False)
class RequestState:
    """From ``request_started`` to ``request_finished``."""

    request: Request
    read: bool
    write: bool
    leased: bool = False
    """The backend may hold a lease for it."""
    counted: bool = False
    """Its lookup is in the statistics; asking again is not."""
    bypassed: bool = False
    failed: set[Key] | None = None
    """Keys whose load failed for it: never offered to it again, or it would try for ever."""

    def same_flags(self, request: Request) -> bool:
        """Whether policies would see the same request."""
        old = self.request
        return (
            old.skip_reading_prefix_cache == request.skip_reading_prefix_cache
            and old.skip_writing_prefix_cache == request.skip_writing_prefix_cache
            and _equal(old.params, request.params)
        )

    def remember_failed(self, keys: Iterable[Key]) -> None:
        """Never offer ``keys`` to this request again."""
        self.failed = {*(self.failed or ()), *keys}

    def before_failed(self, keys: list[Key]) -> list[Key]:
        """``keys`` up to the first that failed for this request."""
        failed = self.failed or ()
        return keys[: next((i for i, key in enumerate(keys) if key in failed), len(keys))]


def _equal(params: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Arrays among them may refuse to say; then policies are asked again."""
    try:
        return bool(params == others)
    except Exception:  # noqa: BLE001 - whatever an engine's objects raise
        return False
