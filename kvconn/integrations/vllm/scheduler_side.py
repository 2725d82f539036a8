"""The half that lives in vLLM's scheduler: it decides, and moves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvconn.integrations.vllm.adapters import Adapters
from kvconn.integrations.vllm.events import EventTranslator
from kvconn.integrations.vllm.gate import LoadGate
from kvconn.integrations.vllm.groups import Groups
from kvconn.integrations.vllm.metadata import Load, StepOrders, StepVerdicts, Store
from kvconn.integrations.vllm.releases import BlockTables
from kvconn.integrations.vllm.requests import TrackedRequest
from kvconn.ranks import RankVerdicts
from kvconn.types import ABSENT, Transfer, TransferKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request as VllmRequest

    from kvconn.guard import Guard
    from kvconn.integrations.vllm.config import VllmOptions
    from kvconn.scheduler import SchedulerConnector

__all__ = ["SchedulerSide"]


class SchedulerSide:
    """Turns vLLM's questions into kvconn's.  Scheduler thread only."""

    def __init__(
        self,
        scheduler: SchedulerConnector,
        options: VllmOptions,
        guard: Guard,
        groups: Groups | None = None,
        *,
        events: bool = False,
    ) -> None:
        """``groups``: one of full attention unless said; ``events``: somebody takes them."""
        self.scheduler = scheduler
        self._guard = guard
        self._geometry = scheduler.geometry
        self._store_generated = options.store_generated
        self._groups = groups or Groups()
        self._adapters = Adapters()
        self._tables = BlockTables()
        self._verdicts = RankVerdicts(self._geometry.workers)
        self._requests: dict[str, TrackedRequest] = {}
        self._loads: list[Load] = []
        self._flush: list[int] = []
        self.gate = LoadGate() if options.load_gate else None
        self._events = EventTranslator(self._geometry) if events else None

    def step_ended(self) -> bool:
        """VLLM has a step's output; whether no request is in the engine any more."""
        if self.gate is not None:
            self.gate.step_ended()
        return not self._requests

    def collect_stats(self) -> dict[str, float]:
        """The connector's figures, and how many requests the gate kept from loading."""
        gated = self.gate.refused if self.gate is not None else 0
        return {**self.scheduler.collect_stats(), "gated": gated}

    # -- a request's life ------------------------------------------------------------------

    def started(self, request: VllmRequest) -> None:
        """A request was added to the engine."""
        self.scheduler.request_started(self._tracked(request).context)

    def _tracked(self, request: VllmRequest) -> TrackedRequest:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = TrackedRequest.of(
                request,
                self._geometry.blocks_per_chunk,
                self._adapters.of(request.lora_request),
                self._groups.count,
            )
            self._requests[request.request_id] = tracked
        return tracked

    def matched_tokens(self, request: VllmRequest, computed: int) -> int | None:
        """How many tokens after the ``computed`` ones can be loaded; ``None``: ask again.

        Asked in every step in which the request could be scheduled; the lease is renewed by it.
        The call is made for a skipping request too: the policy answers 0 and no backend hears.
        """
        tracked = self._tracked(request)
        tracked.computed = computed
        size = self._geometry.chunk_tokens
        first = computed // size
        if tracked.refused or tracked.nameless:
            return 0
        if not tracked.named:
            return None
        # vLLM computes the last token of a prompt again, and looks back a window from there.
        end = (request.num_tokens - 1) // size if self._groups.windowed else None
        keys = tracked.keys_from(first, end)
        found = self.scheduler.lookup(tracked.context, keys, computed % size)
        if found and self.gate is not None and tracked.judged is False:
            tracked.judged = True
            tracked.refused = not self.gate.is_worth()
            if tracked.refused:
                self.scheduler.release(tracked.context)
                return 0
        if found is None:
            return None
        return max(0, (first + found // self._groups.count) * size - computed)

    def allocated(
        self, request: VllmRequest, tables: Sequence[Sequence[int]], external: int
    ) -> None:
        """Blocks were set aside; the request now waits for ``external`` tokens, if any.

        It waits until workers report, so that a load is ordered whatever happens here.
        """
        tracked = self._tracked(request)
        if not external:
            self.scheduler.release(tracked.context)
            return
        geometry = self._geometry
        held, end = (
            t // geometry.block_tokens for t in (tracked.computed, tracked.computed + external)
        )
        load = Load(request.request_id, None, [], list(tables[0][held:end]), self._groups.whole)
        self._loads.append(load)
        first = tracked.computed // geometry.chunk_tokens
        last = end // geometry.blocks_per_chunk
        rows = self._groups.rows(geometry, tables, range(first, last), held)
        wanted = {
            key: row
            for key, row in zip(tracked.keys_from(first)[: len(rows)], rows, strict=True)
            if any(block != ABSENT for block in row)
        }
        transfer = self.scheduler.prepare_load(tracked.context, list(wanted))
        if transfer is not None:
            self._verdicts.expect(transfer)
            load.rows = [wanted.pop(key) for key in transfer.keys]
            load.unnamed = [b for row in wanted.values() for b in row if b != ABSENT]
            load.transfer = transfer.to_bytes()
            if self.gate is not None:
                self.gate.load_began(transfer.id, external if not wanted else 0)

    def finished(self, request_id: str) -> None:
        """A request ended; its blocks may be used again, so its stores must let go of them."""
        tracked = self._requests.pop(request_id, None)
        self._tables.forget(request_id)
        if tracked is not None:
            self._flush += tracked.storing
            self.scheduler.request_finished(tracked.context)

    # -- an engine step --------------------------------------------------------------------

    def orders(self, output: SchedulerOutput) -> StepOrders:
        """What the workers have to do in this step, beside computing ``output``."""
        moves = self.scheduler.step()
        for move in moves:
            self._verdicts.expect(move)
        for request_id in output.preempted_req_ids or ():
            if (tracked := self._requests.get(request_id)) is not None:
                self._flush += tracked.storing
        self._guard.call(self._tables.step, output, otherwise=None, consequence="nothing is stored")
        self._flush += self._overtaken(output)
        if self.gate is not None and output.total_num_scheduled_tokens:
            self.gate.step_planned(output.total_num_scheduled_tokens)
        stores = self._stores(output)
        loads, self._loads = self._loads, []
        flush, self._flush = self._flush, []
        return StepOrders(
            loads,
            stores,
            flush,
            [move.to_bytes() for move in moves],
            idle=not output.total_num_scheduled_tokens,
        )

    def _stores(self, output: SchedulerOutput) -> list[Store]:
        stores = []
        for request_id, scheduled in output.num_scheduled_tokens.items():
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            vllm = tracked.vllm
            final = vllm.num_tokens if self._store_generated else vllm.num_prompt_tokens
            final = min(final, vllm.num_computed_tokens + scheduled)
            chunks = self._geometry.whole_chunks(final)
            if chunks > tracked.offered:
                # Each by itself: what fails here must not keep a request's load from being sent.
                store = self._guard.call(
                    self._store, tracked, chunks,
                    otherwise=None, consequence="its chunks are not stored",
                )  # fmt: skip
                if store is not None:
                    stores.append(store)
        return stores

    def _overtaken(self, output: SchedulerOutput) -> list[int]:
        """The stores that still read blocks which a running request gives up or writes again.

        A window leaves blocks behind; a streaming session writes over what it has taken back.
        """
        overtaken: list[int] = []
        for request_id in output.num_scheduled_tokens:
            tracked = self._requests.get(request_id)
            if tracked is None or not tracked.storing:
                continue
            if getattr(tracked.vllm, "resumable", False):
                overtaken += tracked.storing
            elif self._groups.windowed:
                gone = self._groups.gone(tracked.vllm.num_computed_tokens)
                overtaken += [store for store, at in tracked.storing.items() if at < gone]
        return overtaken

    def _store(self, tracked: TrackedRequest, chunks: int) -> Store | None:
        count = self._groups.count
        tables = self._tables.of(tracked.context.id)
        if tables is None or not tracked.named:
            return None  # offered with the next chunk
        keys = tracked.keys()[: chunks * count]
        first, tracked.offered = tracked.offered, len(keys) // count
        if not first:
            self.scheduler.touch(tracked.context, keys)
        rows = self._groups.rows(self._geometry, tables, range(first, tracked.offered))
        offer = dict(zip(keys[first * count :], rows, strict=True))
        if self._groups.windowed:
            offer = {key: row for key, row in offer.items() if ABSENT not in row}
        transfer = self.scheduler.prepare_store(tracked.context, list(offer)).transfer
        if transfer is None:
            return None
        self._verdicts.expect(transfer)
        if self._events is not None:
            self._events.offered(tracked.vllm, first, keys[first * count :], transfer.keys)
        tracked.storing[transfer.id] = first * self._geometry.chunk_tokens
        return Store(transfer.to_bytes(), [offer[key] for key in transfer.keys])

    def reported(self, verdicts: StepVerdicts) -> None:
        """Some ranks ended some transfers; what all of them ended is complete."""
        for rank, ended in verdicts.by_rank.items():
            for transfer_id, moved in ended:
                whole = self._verdicts.report(rank, transfer_id, moved)
                if whole is not None:
                    self._complete(*whole)

    def _complete(self, transfer: Transfer, moved: list[bool]) -> None:
        tracked = self._requests.get(transfer.request_id)
        if tracked is not None and transfer.kind is TransferKind.STORE:
            tracked.storing.pop(transfer.id, None)
        if self.gate is not None and transfer.kind is TransferKind.LOAD:
            self.gate.load_ended(transfer.id, moved=all(moved))
        self.scheduler.complete_transfer(transfer, moved)
        if self._events is not None and transfer.kind is TransferKind.STORE:
            self._events.failed(
                key for key, good in zip(transfer.keys, moved, strict=False) if not good
            )

    # -- the whole -------------------------------------------------------------------------

    def take_events(self) -> list[KVCacheEvent]:
        """What was stored and removed, tier by tier, since the last call."""
        if self._events is None:
            return []
        return list(self._events.translate(self.scheduler.take_events()))

    def reset(self) -> None:
        """Empty the cache; what running requests go on to compute is offered from the start."""
        for tracked in self._requests.values():
            tracked.offered = 0
        self.scheduler.reset()
