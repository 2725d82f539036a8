"""Finds, in the background, what an earlier process left in a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kvconn.threads import Background

if TYPE_CHECKING:
    from kvconn.guard import Guard
    from kvconn.identity import Key

__all__ = ["Recovery"]


class Recovery:
    """One scan.  Scheduler thread, but for the scan itself.

    A chunk is whole when every shard of it is there; only then is it a hit.
    """

    def __init__(
        self,
        scan: Callable[[], Iterable[bytes]],
        key_of: Callable[[bytes], Key | None],
        shards: int,
        guard: Guard,
    ) -> None:
        """``key_of`` answers ``None`` for an object that is none of ours."""
        self._scan = scan
        self._key_of = key_of
        self._shards = shards
        self._guard = guard
        self._cancelled = False
        self._whole: list[Key] = []
        self.partial: list[Key] = []
        """Chunks of which a shard is missing; known once the scan has ended."""
        self._thread = Background(self._run, "scan")

    def _run(self) -> None:
        shards: Counter[Key] = Counter()
        try:
            for name in dict.fromkeys(self._scan()):
                if self._cancelled:
                    return
                key = self._key_of(name)
                if key is not None:
                    shards[key] += 1
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("scan", error, "what it did not come to is not found")
        if not self._cancelled:
            self.partial = [key for key, count in shards.items() if count < self._shards]
            self._whole = [key for key, count in shards.items() if count == self._shards]

    @property
    def scanning(self) -> bool:
        """Whether the scan has not ended."""
        return self._thread.running

    @property
    def left(self) -> int:
        """Chunks that were found and not taken."""
        return 0 if self.scanning else len(self._whole)

    def take(self, count: int) -> list[Key]:
        """Up to ``count`` whole chunks, those that the store named last first."""
        if self._cancelled or not count:
            return []
        taken = self._whole[-count:]
        del self._whole[-count:]
        return taken[::-1]

    def cancel(self) -> None:
        """Forget what was found; it is no longer there."""
        self._cancelled = True
        self._whole, self.partial = [], []

    def join(self, deadline: float) -> None:
        """Wait for the scan to end, ``deadline`` seconds at most."""
        self._thread.join(deadline)
