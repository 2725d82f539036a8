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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kvconn.backend import Verdicts
from kvconn.blockstore.jobs import Job, Pending
from kvconn.blockstore.loads import Loads
from kvconn.blockstore.seal import layout_digest
from kvconn.guard import Guard
from kvconn.identity import object_id
from kvconn.memory import Copier
from kvconn.threads import Lanes
from kvconn.types import BlockRows, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.blockstore.operations import Operations
    from kvconn.identity import Shard
    from kvconn.memory import HostPool, KVCaches

__all__ = ["StoreWorker"]

_LARGEST_BATCH = 16
"""Objects of one call, so that no load waits long behind a store, and checksums of one batch are
made while another moves."""
_OVERLAP = 6
"""Calls of a store that moves a batch in parallel by itself: while one moves, what another one
brought is checked and copied."""


class StoreWorker:
    """Loads go before stores, on threads of which some take nothing else."""

    def __init__(
        self,
        operations: Operations,
        pool: HostPool,
        caches: KVCaches,
        namespace: bytes,
        shard: Shard,
        *,
        readers: int,
        writers: int,
        stores: bool = True,
    ) -> None:
        """``stores``: ``False`` where another worker stores the same objects there."""
        self._stores = stores
        self._operations = operations
        self._pool = pool
        self._copier = Copier(pool, caches)
        self._payload_bytes = caches.block_bytes * caches.blocks_per_chunk
        self._layout = layout_digest(caches.page_bytes, caches.blocks_per_chunk)
        self._namespace = namespace
        self._shard = shard
        self._guard = Guard("block store", passes_exit_on=False)
        self._threads = Lanes(readers, writers, "store")
        parallel = operations.store.capabilities.parallel
        self._spread = min(_OVERLAP, readers + writers) if parallel else readers + writers
        """Over how many calls a transfer is spread."""
        self._largest = max(1, min(_LARGEST_BATCH, pool.slots // 4))
        self._pending: dict[int, Pending] = {}
        self._loads = Loads()
        self._jobs: set[Job] = set()
        self._late: dict[Job, None] = {}
        """Abandoned stores whose call has not returned; the youngest is the last."""
        self._done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._verdict = threading.Lock()
        """Held to decide whether a job ended in time: either both threads think so or neither."""
        self._ended: list[tuple[int, Verdicts]] = []

    # -- the engine's thread ---------------------------------------------------------------

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        if transfer.kind is TransferKind.STORE and not self._stores:
            self._ended.append((transfer.id, [True] * len(transfer.keys)))
            return
        names = self._names(transfer, transfer.keys)
        pending = Pending(transfer, blocks, names, time.monotonic() + transfer.timeout_s)
        self._pending[transfer.id] = pending
        if pending.storing:
            self._start_store(pending)
        else:
            self._loads.add(pending, range(len(names)))
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
        size = self._batch(len(keys))
        jobs = [
            self._job(pending, keys[at : at + size], slots[at : at + size])
            for at in range(0, len(keys), size)
        ]
        deletions = self._names(pending.transfer, pending.transfer.evictions)
        if deletions:
            first = self._job(pending, (), [])
            first.deletions, first.then = deletions, jobs
            self._start(first)
        else:
            for job in jobs:
                self._start_after_late(job)
        if pending.over:
            self._end(pending)

    def _start_after_late(self, job: Job) -> None:
        """What an abandoned store of the same object leaves is taken back first, not after."""
        names = set(job.names)
        with self._verdict:
            late = [old for old in self._late if not names.isdisjoint(old.names)]
            if late:
                late[-1].then.append(job)
        if not late:
            self._start(job)

    def _batch(self, count: int) -> int:
        """Keys of one call, when a transfer has ``count``."""
        return max(1, min(-(-count // self._spread), self._largest))

    def _start_loads(self) -> None:
        while (waiting := self._loads.first()) is not None:
            pending, keys = waiting
            count = min(self._batch(len(pending.names)), len(keys), self._pool.free)
            slots = self._pool.acquire(count) if count else None
            if slots is None:
                return
            job = self._job(pending, keys[:count], slots)
            self._loads.started(job)
            self._start(job)

    def _job(self, pending: Pending, keys: Sequence[int], slots: list[int]) -> Job:
        buffers = [self._pool.buffer(slot) for slot in slots]
        job = Job(pending, keys, slots, buffers, self._payload_bytes, layout=self._layout)
        self._jobs.add(job)
        pending.jobs.add(job)
        return job

    def _start(self, job: Job) -> None:
        self._threads.put(partial(self._run, job), urgent=not job.pending.storing)

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
        if pending.storing:
            moved = [(pending, list(job.keys), job.verdicts)]
        else:
            moved = self._scattered(job)
        for owner, keys, verdicts in moved:
            if not owner.expired:
                owner.decide(keys, verdicts)
        for owner in dict.fromkeys((pending, *(owner for owner, _, _ in moved))):
            if owner.over and not owner.expired:
                self._end(owner)
        self._pool.release(job.slots)

    def _scattered(self, job: Job) -> list[tuple[Pending, list[int], list[bool]]]:
        """Copy what was loaded to everybody who waits for it; per transfer, keys and verdicts."""
        answers = []
        for owner, wanted in self._loads.ended(job).items():
            if owner.expired:
                continue
            good = [(key, at) for key, at in wanted if job.verdicts[at]]
            failed = bool(good) and not self._scatter(owner, good, job)
            verdicts = [job.verdicts[at] and not failed for _, at in wanted]
            answers.append((owner, [key for key, _ in wanted], verdicts))
        return answers

    def _scatter(self, owner: Pending, good: Sequence[tuple[int, int]], job: Job) -> bool:
        try:
            rows = [owner.rows[key] for key, _ in good]
            self._copier.scatter(rows, [job.slots[at] for _, at in good]).wait()
        except Exception as error:  # noqa: BLE001 - F2: a failed transfer
            self._guard.failed("scatter", error, "the load failed")
            return False
        return True

    def _expire(self) -> None:
        """Fail the transfers whose time has passed; their slots wait for the hung call."""
        now = time.monotonic()
        if all(pending.deadline > now for pending in self._pending.values()):
            return
        for pending in self._mark_expired(now):
            for job in pending.jobs:
                self._pool.quarantine(job.slots)
            self._loads.expired(pending)
            self._end(pending)

    def _mark_expired(self, now: float) -> list[Pending]:
        with self._verdict:
            self._settle_done()
            late = [p for p in self._pending.values() if p.deadline <= now]
            for pending in late:
                pending.expired = True
                if pending.storing:
                    self._late.update(dict.fromkeys(pending.jobs))
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
        self._loads.clear()
        in_time = self._threads.close(deadline)
        # Loads expire before the queue is drained: nothing is copied into pages from here (L8).
        with self._verdict:
            for pending in self._pending.values():
                pending.expired = not pending.storing
        self._mark_expired(math.inf)  # what ends after this was abandoned
        if in_time:
            self._operations.store.close()
        return sorted({*self._pending, *(job.pending.transfer.id for job in self._jobs)})

    def figures(self) -> Mapping[str, float]:
        """What each operation of the store took, and the slots."""
        slots = {"slots_free": self._pool.free, "slots_quarantined": self._pool.quarantined}
        return {**self._operations.figures(), **slots}

    # -- I/O threads -----------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        """Whatever a store raises is a failed job (F2); foreign runtimes raise no ``Exception``."""
        try:
            job.run(self._operations)
        except BaseException as error:  # noqa: BLE001
            self._guard.failed("put" if job.pending.storing else "get", error, "the keys failed")
            proceed = self._give
        else:
            proceed = self._start
        self._discard(job.broken)
        self._give(job)
        with self._verdict:
            self._late.pop(job, None)
            then, job.then = job.then, []
        for after in then:
            proceed(after)

    def _give(self, job: Job) -> None:
        """Back to the engine's thread."""
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
                self._operations.delete(names)
        except BaseException as error:  # noqa: BLE001 - as above
            self._guard.failed("delete", error, "bytes are left")
