"""The reference engine: small, complete, and an example of how to call a connector."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kvconn.engine.admission import Admission
from kvconn.engine.plan import Plan
from kvconn.engine.planner import Planner
from kvconn.engine.prefix_cache import LocalBlocks
from kvconn.engine.request import EngineRequest, Phase
from kvconn.engine.state import EngineState, Limits
from kvconn.engine.transfers import TransfersInFlight
from kvconn.errors import ConfigurationError
from kvconn.types import TransferKind

if TYPE_CHECKING:
    from kvconn.engine.figures import Figures
    from kvconn.engine.transfers import Ended
    from kvconn.engine.worker import EngineWorker
    from kvconn.scheduler import SchedulerConnector

__all__ = ["Engine", "Observer"]

Observer = Callable[[str, str, list[int]], None]
"""Called with what happened, the request's id, and its blocks as indices in that request."""

_MOMENT_S = 0.02
"""How long an engine with nothing to compute waits for a transfer before it looks again."""


class Engine:
    """One model on one or several ranks, all in this process.

    With synchronous scheduling a step is planned, executed, and only then the next one planned;
    stores are flushed before their blocks can be used again.  With asynchronous scheduling step
    n+1 is planned before step n is executed: neither the tokens that it samples nor the verdicts
    of its transfers are known, and blocks stay with their transfers until these end.
    """

    def __init__(
        self,
        scheduler: SchedulerConnector,
        workers: Sequence[EngineWorker],
        num_blocks: int,
        *,
        asynchronous: bool = False,
        limits: Limits | None = None,
        observe: Observer | None = None,
    ) -> None:
        """``observe`` hears what was ``"loaded"``, ``"stored"`` and ``"flushed"``."""
        self.asynchronous = asynchronous
        self.scheduler = scheduler
        self.workers = workers
        self.blocks = LocalBlocks(num_blocks)
        self._transfers = TransfersInFlight(
            len(workers), self.blocks, scheduler.geometry.blocks_per_chunk
        )
        self._state = EngineState(
            scheduler, self.blocks, self._transfers, limits or Limits(), self._flush
        )
        self._admission = Admission(self._state)
        self._planner = Planner(self._state, self._admission, speculate=asynchronous)
        self._requests: dict[str, EngineRequest] = {}
        self._arrivals = itertools.count()
        self._tier_moves: list[bytes] = []
        """For the next plan."""
        self._ahead = Plan()
        """Asynchronous: the step that is planned and not yet executed."""
        self._observe = observe or (lambda _what, _request_id, _blocks: None)
        storing = self._state.limits.storing_bytes // scheduler.geometry.block_bytes
        self._storing_blocks = max(storing, scheduler.geometry.blocks_per_chunk)

    # -- requests --------------------------------------------------------------------------

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; one that could never get its blocks is a configuration error."""
        if request.blocks_at_most > self.blocks.num_blocks:
            msg = (
                f"request {request.context.id} needs {request.blocks_at_most} blocks and the "
                f"engine has {self.blocks.num_blocks}: give it more local blocks"
            )
            raise ConfigurationError(msg)
        if request.context.id in self._requests or request.length < 1:
            msg = f"request {request.context.id} is empty or there already: give it another id"
            raise ValueError(msg)
        request.arrival = next(self._arrivals)
        self._requests[request.context.id] = request
        self._state.enter(request, Phase.WAITING)
        self._state.figures.requests += 1
        self.scheduler.request_started(request.context)

    def abort(self, request_id: str) -> None:
        """End a request at any time; an unknown or ended one is no error."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self._state.end(request)

    def preempt(self, request_id: str) -> None:
        """Take a request's blocks at any time, also while its load or store is in flight."""
        request = self._requests.get(request_id)
        if request is not None and request.phase is not Phase.WAITING:
            self._state.preempt(request)

    def reset_prefix_cache(self) -> None:
        """Forget the local prefix cache; the backend's is reset by the connector."""
        self.blocks.reset()

    # -- steps -----------------------------------------------------------------------------

    def step(self) -> None:
        """Plan one step, execute one, hear what ended."""
        self._begin_step()
        plan = self._planner.plan()
        plan.tier_moves, self._tier_moves = self._tier_moves, []
        if self.asynchronous:
            plan, self._ahead = self._ahead, plan
        if not plan.empty:
            work = plan.work()
            for worker in self.workers:
                worker.execute(work)
            self._sample(plan)
        self._hear()
        if plan.empty and self._ahead.empty:
            self._pause()
        self._let_stores_catch_up()

    def drain(self, deadline: float) -> bool:
        """Step until every request and transfer has ended; ``False`` after ``deadline`` seconds."""
        ends = time.monotonic() + deadline
        while True:
            while self.busy:
                if time.monotonic() > ends:
                    return False
                self.step()
            self._begin_step()
            if not self.busy:
                return True

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return self._state.unfinished

    @property
    def busy(self) -> bool:
        """Whether another step has something to do."""
        return bool(
            self._state.unfinished
            or not self._ahead.empty
            or len(self._transfers)
            or self.scheduler.has_pending_work()
        )

    @property
    def figures(self) -> Figures:
        """What was counted so far."""
        return self._state.figures

    @property
    def wrong_blocks(self) -> int:
        """Blocks that held other bytes than their key's, over all ranks."""
        return sum(worker.wrong_blocks for worker in self.workers)

    def leaks(self) -> dict[str, int]:
        """What is still held; all zero once :meth:`drain` answered ``True`` (L2)."""
        stats = self.scheduler.collect_stats()
        at_workers = max(worker.connector.transfers_running for worker in self.workers)
        return {
            "leases": int(stats.get("leases", 0)),
            "reservations": int(stats.get("reservations", 0)),
            "transfers": max(self.scheduler.transfers_in_flight, at_workers),
            "requests": self.unfinished,
            "local_blocks": self.blocks.num_blocks - self.blocks.free,
        }

    # -- inside ----------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """The backend's own moves go to every worker, and no block of ours takes part."""
        for transfer in self.scheduler.step():
            self._transfers.start(transfer, [], [])
            self._tier_moves.append(transfer.to_bytes())

    def _sample(self, plan: Plan) -> None:
        """Every request whose known tokens are all computed samples one more, or is complete."""
        for span in plan.spans:
            request = span.request
            if span.epoch == request.epoch and span.end >= request.length and not request.sample():
                self._complete(request)

    def _complete(self, request: EngineRequest) -> None:
        seen = min(request.written, len(request.block_keys))
        for worker in self.workers:
            worker.read(request.block_ids[:seen], request.block_keys[:seen])
        self.scheduler.touch(request.context, request.chunk_keys)
        del self._requests[request.context.id]
        self._state.end(request)

    def _hear(self) -> None:
        """Verdicts of all ranks, and what they mean for the requests that wait for them."""
        for rank, worker in enumerate(self.workers):
            for transfer_id, verdicts in worker.poll():
                ended = self._transfers.report(rank, transfer_id, verdicts)
                if ended is None:
                    continue
                self.scheduler.complete_transfer(ended.transfer, ended.verdicts)
                if ended.transfer.kind is TransferKind.LOAD:
                    self._loaded(ended)
                elif ended.transfer.kind is TransferKind.STORE:
                    self.figures.stored += len(ended.moved)
                    self._observe("stored", ended.transfer.request_id, ended.moved)

    def _loaded(self, ended: Ended) -> None:
        transfer = ended.transfer
        self.figures.loaded += len(ended.moved)
        self._observe("loaded", transfer.request_id, ended.moved)
        request = self._requests.get(transfer.request_id)
        if request is not None and request.loading == transfer.id:
            self._admission.loaded(request, ended)

    def _flush(self, request: EngineRequest) -> None:
        """Before the blocks of ``request`` are let go of: its stores must have read them."""
        if self.asynchronous:
            return  # the blocks stay with the stores
        stores = self._transfers.stores_of(request.context.id)
        if stores:
            for worker in self.workers:
                worker.connector.flush(stores)
            self._observe("flushed", request.context.id, self._transfers.flushed(stores))

    def _pause(self) -> None:
        """Nothing to compute: wait a moment for whatever is going on."""
        oldest = self._transfers.oldest()
        if oldest is not None:
            self._wait_for(oldest)
        elif self.busy:
            time.sleep(_MOMENT_S / 20)

    def _let_stores_catch_up(self) -> None:
        ends = time.monotonic() + self._state.limits.patience_s
        while self._transfers.blocks_storing > self._storing_blocks and time.monotonic() < ends:
            self._wait_for(self._transfers.oldest(TransferKind.STORE, TransferKind.MOVE))

    def _wait_for(self, transfer_id: int | None) -> None:
        if transfer_id is not None:
            for worker in self.workers:
                worker.connector.wait([transfer_id], _MOMENT_S)
        self._hear()
