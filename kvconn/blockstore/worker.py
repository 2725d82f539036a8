"""The worker side of a block store: pages to staging slots, staging slots to the store.

The engine's thread makes every copy from or to engine pages, in ``submit``, ``poll`` and
``wait``; the store's methods run on threads of their own and see staging slots only.  So an I/O
call that hangs past its transfer's deadline can touch nothing but slots that are quarantined
until it returns (L8).
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

from kvconn.backend import Verdicts
from kvconn.blockstore.jobs import Job, Pending
from kvconn.blockstore.seal import layout_digest
from kvconn.guard import Guard
from kvconn.identity import object_id
from kvconn.memory import Copier
from kvconn.threads import Workers
from kvconn.types import BlockRows, Transfer

if TYPE_CHECKING:
    from kvconn.blockstore.store import BlockStore
    from kvconn.identity import Shard
    from kvconn.memory import HostPool, KVCaches

__all__ = ["StoreWorker"]


class StoreWorker:
    """One writer thread, so that deletions and stores keep their order, and several readers."""

    def __init__(
        self,
        store: BlockStore,
        pool: HostPool,
        caches: KVCaches,
        namespace: bytes,
        shard: Shard,
        *,
        readers: int,
    ) -> None:
        self._store = store
        self._pool = pool
        self._copier = Copier(pool, caches)
        self._payload_bytes = caches.block_bytes * caches.blocks_per_chunk
        self._layout = layout_digest(caches.page_bytes, caches.blocks_per_chunk)
        self._namespace = namespace
        self._shard = shard
        self._guard = Guard("block store", passes_exit_on=False)
        self._writer = Workers(1, "store")
        self._readers = Workers(readers, "load")
        self._batch = max(1, pool.slots // readers)
        self._pending: dict[int, Pending] = {}
        self._waiting: deque[tuple[Pending, range]] = deque()
        """Keys to load that have no slot yet."""
        self._jobs: set[Job] = set()
        self._done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._verdict = threading.Lock()
        """Held to decide whether a job ended in time: either both threads think so or neither."""
        self._ended: list[tuple[int, Verdicts]] = []

    # -- the engine's thread ---------------------------------------------------------------

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        names = self._names(transfer, transfer.keys)
        pending = Pending(transfer, blocks, names, time.monotonic() + transfer.timeout_s)
        self._pending[transfer.id] = pending
        if pending.storing:
            self._start_store(pending)
        else:
            self._waiting.append((pending, range(len(names))))
            self._start_loads()

    def _names(self, transfer: Transfer, keys: Iterable[bytes]) -> list[bytes]:
        return [object_id(self._namespace, transfer.group, self._shard, key) for key in keys]

    def _start_store(self, pending: Pending) -> None:
        """Copy out what finds a slot; the rest is declined, as a store that cannot keep up is."""
        keys = range(min(len(pending.names), self._pool.free))
        slots = self._pool.acquire(len(keys)) if keys else []
        if slots is None:
            keys, slots = range(0), []
        if slots:
            try:
                self._copier.gather(pending.rows[: len(keys)], slots).wait()
            except BaseException:
                self._pool.release(slots)
                del self._pending[pending.transfer.id]
                raise
        late = range(len(keys), len(pending.names))
        pending.decide(late, [False] * len(late))
        deletions = self._names(pending.transfer, pending.transfer.evictions)
        self._start(self._job(pending, keys, slots, deletions), self._writer)

    def _start_loads(self) -> None:
        while self._waiting:
            pending, keys = self._waiting[0]
            count = min(len(keys), self._batch, self._pool.free)
            slots = self._pool.acquire(count) if count else None
            if slots is None:
                return
            self._waiting.popleft()
            if count < len(keys):
                self._waiting.appendleft((pending, keys[count:]))
            self._start(self._job(pending, keys[:count], slots, []), self._readers)

    def _job(self, pending: Pending, keys: range, slots: list[int], deletions: list[bytes]) -> Job:
        buffers = [self._pool.buffer(slot) for slot in slots]
        return Job(
            pending, keys, slots, buffers, self._payload_bytes, deletions, layout=self._layout
        )

    def _start(self, job: Job, workers: Workers) -> None:
        self._jobs.add(job)
        job.pending.jobs.add(job)
        workers.put(partial(self._run, job))

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        self._settle_done()
        self._expire()
        self._start_loads()
        ended, self._ended = self._ended, []
        return ended

    def _settle_done(self) -> None:
        """Never blocks: another thread that closes may take from the same queue."""
        with suppress(queue.Empty):
            while True:
                self._settle(self._done.get_nowait())

    def _settle(self, job: Job) -> None:
        """A job came back: its keys are decided and its slots free."""
        pending = job.pending
        self._jobs.discard(job)
        pending.jobs.discard(job)
        if not pending.expired:
            if not pending.storing:
                self._scatter(job)
            pending.decide(job.keys, job.verdicts)
            if not pending.undecided:
                self._end(pending)
        self._pool.release(job.slots)

    def _scatter(self, job: Job) -> None:
        slots = list(compress(job.slots, job.verdicts))
        if not slots:
            return
        try:
            rows = list(compress((job.pending.rows[i] for i in job.keys), job.verdicts))
            self._copier.scatter(rows, slots).wait()
        except Exception as error:  # noqa: BLE001 - F2: a failed transfer
            self._guard.failed("scatter", error, "the load failed")
            job.verdicts = [False] * len(job.keys)

    def _expire(self) -> None:
        """Fail the transfers whose time has passed; their slots wait for the hung call."""
        now = time.monotonic()
        if all(pending.deadline > now for pending in self._pending.values()):
            return
        for pending in self._mark_expired(now):
            for job in pending.jobs:
                self._pool.quarantine(job.slots)
            self._waiting = deque(entry for entry in self._waiting if entry[0] is not pending)
            self._end(pending)

    def _mark_expired(self, now: float) -> list[Pending]:
        with self._verdict:
            self._settle_done()
            late = [p for p in self._pending.values() if p.deadline <= now]
            for pending in late:
                pending.expired = True
        return late

    def _end(self, pending: Pending) -> None:
        del self._pending[pending.transfer.id]
        self._ended.append((pending.transfer.id, pending.verdicts))

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:  # noqa: ARG002
        """Pages are read by the time ``submit`` returns."""
        return True

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        wanted = set(transfer_ids)
        ends = time.monotonic() + deadline
        while waited := [self._pending[i].deadline for i in wanted if i in self._pending]:
            left = min(ends, *waited) - time.monotonic()
            if left <= 0:
                self._expire()
                if time.monotonic() >= ends:
                    return
                continue
            try:
                self._settle(self._done.get(timeout=left))
            except queue.Empty:
                continue
            self._start_loads()

    def close(self, deadline: float) -> Sequence[int]:
        ends = time.monotonic() + deadline
        self._waiting.clear()
        in_time = self._writer.close(deadline)
        in_time &= self._readers.close(max(0.0, ends - time.monotonic()))
        # Loads expire before the queue is drained: nothing is copied into pages from here (L8).
        with self._verdict:
            for pending in self._pending.values():
                pending.expired = not pending.storing
        self._mark_expired(math.inf)  # what ends after this was abandoned
        if in_time:
            self._store.close()
        return sorted({*self._pending, *(job.pending.transfer.id for job in self._jobs)})

    # -- I/O threads -----------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        """Whatever a store raises is a failed job (F2); foreign runtimes raise no ``Exception``."""
        try:
            job.run(self._store)
        except BaseException as error:  # noqa: BLE001
            self._guard.failed("put" if job.pending.storing else "get", error, "the keys failed")
        self._discard(job.broken)
        with self._verdict:
            late = job.pending.expired
            if not late:
                self._done.put(job)
        if late:
            if job.pending.storing:  # L3: an abandoned store leaves nothing behind
                self._discard(job.names)
            self._done.put(job)

    def _discard(self, names: list[bytes]) -> None:
        try:
            if names:
                self._store.delete(names)
        except BaseException as error:  # noqa: BLE001 - as above
            self._guard.failed("delete", error, "bytes are left")
