"""A backend that fails for a moment every few seconds, and works in between."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

from kvconn.testing.counting import CountingBackend

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvconn.backend import Backend, Verdicts, WorkerSide
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches
    from kvconn.types import BlockRows, BlockState, Request, StorePlan, Transfer

__all__ = ["FaultyBackend"]

_SHARE = 0.25
"""Of the time that it fails."""


class FaultyBackend(CountingBackend):
    """In bad moments every hook that reads or writes raises, and every transfer fails."""

    def __init__(self, inner: Backend, every_s: float) -> None:
        super().__init__(inner)
        self._every_s = every_s
        self._began = time.monotonic()

    @property
    def is_bad(self) -> bool:
        """Whether it fails now."""
        turn = (time.monotonic() - self._began) % self._every_s
        return turn > (1 - _SHARE) * self._every_s

    def _check(self) -> None:
        if self.is_bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def lookup(self, request: Request, keys: list[Key]) -> Sequence[BlockState] | bytes:
        """Raises in bad moments."""
        self._check()
        return super().lookup(request, keys)

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        """Raises in bad moments."""
        self._check()
        return super().prepare_load(request, keys)

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        """Raises in bad moments."""
        self._check()
        return super().prepare_store(request, keys)

    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        """The inner worker, whose transfers fail in bad moments."""
        return _FaultyWorker(super().open_worker(pool, caches, namespace, shard), self)


class _FaultyWorker:
    def __init__(self, inner: WorkerSide, backend: FaultyBackend) -> None:
        self._inner = inner
        self._backend = backend

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        if self._backend.is_bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._inner.submit(transfer, blocks)

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        bad = self._backend.is_bad
        return [(id_, [good and not bad for good in said]) for id_, said in self._inner.poll()]

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:
        return self._inner.flush(transfer_ids, deadline)

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        self._inner.wait(transfer_ids, deadline)

    def close(self, deadline: float) -> Sequence[int]:
        return self._inner.close(deadline)
