"""A backend whose transfers take a while, and whose bytes move as late as the contract allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvconn.testing.counting import CountingBackend
from kvconn.types import BlockState, Transfer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from kvconn.backend import Backend, Verdicts, WorkerSide
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches
    from kvconn.types import BlockRows, Request

__all__ = ["SlowBackend", "SlowWorker"]


class SlowBackend(CountingBackend):
    """Another backend, slower and less sure, as ``random`` decides."""

    def __init__(
        self,
        inner: Backend,
        random: Random,
        *,
        polls: int = 3,
        failures: float = 0.0,
        pending: float = 0.0,
    ) -> None:
        """A transfer takes up to ``polls`` calls of ``poll``.

        ``failures`` is the share of keys whose transfer fails, ``pending`` the share of lookups
        that are answered with *ask again*.
        """
        super().__init__(inner)
        self._random = random
        self._polls = polls
        self._failures = failures
        self._pending = pending

    def lookup(self, request: Request, keys: list[Key]) -> Sequence[BlockState] | bytes:
        """As the inner backend, or not known yet."""
        states = super().lookup(request, keys)
        if self._random.random() < self._pending:
            return bytes([BlockState.PENDING]) * len(keys)
        return states

    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        """The inner worker behind a queue."""
        inner = super().open_worker(pool, caches, namespace, shard)
        return SlowWorker(inner, self._random, self._polls, self._failures)


@dataclass(slots=True)
class _Queued:
    transfer: Transfer
    blocks: BlockRows
    polls: int


class SlowWorker:
    """Hands a transfer on some polls after it was submitted, or when it is waited for.

    Stores are late, too: an engine that uses a page again before its store was flushed or has
    ended stores wrong bytes.
    """

    def __init__(self, inner: WorkerSide, random: Random, polls: int, failures: float) -> None:
        self._inner = inner
        self._random = random
        self._polls = polls
        self._failures = failures
        self._queue: dict[int, _Queued] = {}

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        """Not yet."""
        polls = self._random.randint(0, self._polls)
        self._queue[transfer.id] = _Queued(transfer, blocks, polls)

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        """Those whose time has come, each key failing or not."""
        for queued in list(self._queue.values()):
            queued.polls -= 1
            if queued.polls < 0:
                self._start(queued.transfer.id)
        return [(id_, [v and not self._fails() for v in said]) for id_, said in self._inner.poll()]

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:
        """Read the pages now."""
        wanted = list(transfer_ids)
        for id_ in wanted:
            self._start(id_)
        return self._inner.flush(wanted, deadline)

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        """Now, then."""
        wanted = list(transfer_ids)
        for id_ in wanted:
            self._start(id_)
        self._inner.wait(wanted, deadline)

    def close(self, deadline: float) -> Sequence[int]:
        """What was never started is left behind."""
        return [*self._queue, *self._inner.close(deadline)]

    def _start(self, transfer_id: int) -> None:
        queued = self._queue.pop(transfer_id, None)
        if queued is not None:
            self._inner.submit(queued.transfer, queued.blocks)

    def _fails(self) -> bool:
        return self._random.random() < self._failures
