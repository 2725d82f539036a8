"""What running requests do in the next step: compute, publish, offer; or give way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvconn.engine.plan import Move, Plan, Span
from kvconn.engine.request import Phase

if TYPE_CHECKING:
    from kvconn.engine.admission import Admission
    from kvconn.engine.request import EngineRequest
    from kvconn.engine.state import EngineState

__all__ = ["Planner"]


class Planner:
    """Decides, asks the connector, and touches no tensor."""

    def __init__(self, state: EngineState, admission: Admission, *, speculate: bool) -> None:
        """``speculate``: plan one token beyond the known ones, as asynchronous scheduling must."""
        self._state = state
        self._admission = admission
        self._geometry = state.connector.geometry
        self._speculate = speculate

    def plan(self) -> Plan:
        """The next step."""
        plan = Plan()
        budget = self._state.limits.blocks_per_step * self._geometry.block_tokens
        for request in list(self._state.running):
            if request.phase is Phase.RUNNING:  # else it gave way to an earlier one just now
                budget = self._advance(request, plan, budget)
        for request in self._admission.admit(plan):
            budget = self._advance(request, plan, budget)
        return plan

    def _advance(self, request: EngineRequest, plan: Plan, budget: int) -> int:
        """Plan the next step of ``request``; answers what is left of ``budget``, in tokens."""
        goal = request.length
        if self._speculate and request.scheduled >= goal:
            goal = min(goal + 1, request.ceiling)  # the step ahead will sample it
        end = min(goal, request.scheduled + budget)
        if end > request.scheduled and self._make_room(request, end):
            budget -= end - request.scheduled
            self._compute(request, end, plan)
        self._publish_and_offer(request, plan)
        return budget

    def _make_room(self, request: EngineRequest, tokens: int) -> bool:
        """Let the block table reach ``tokens``, if need be at the cost of later requests."""
        state = self._state
        needed = -(-tokens // self._geometry.block_tokens) - len(request.block_ids)
        while state.blocks.free < needed:
            last = state.running[-1]
            if last is request:
                return False  # earlier requests, loads and stores have the rest: they will end
            state.preempt(last)
        if needed > 0:
            request.block_ids += state.blocks.allocate(needed)
        return True

    def _compute(self, request: EngineRequest, end: int, plan: Plan) -> None:
        first, whole = request.written, end // self._geometry.block_tokens
        blocks = request.block_ids[first:whole]
        plan.spans.append(Span(request, request.epoch, end, first, blocks))
        self._state.figures.computed += len(blocks)
        request.scheduled = end
        request.written = max(first, whole)

    def _publish_and_offer(self, request: EngineRequest, plan: Plan) -> None:
        """Whole blocks of known tokens, and nothing else, become known to the caches (L7)."""
        state = self._state
        final = min(request.scheduled, request.length) // self._geometry.block_tokens
        for index in range(request.published, final):
            state.blocks.publish(request.block_ids[index], request.block_keys[index])
        request.published = max(request.published, final)
        chunks = range(request.offered, final // self._geometry.blocks_per_chunk)
        places = {request.chunk_keys[i]: i for i in chunks if i not in request.loaded}
        request.offered = max(request.offered, chunks.stop)
        if not places:
            return
        store = state.connector.prepare_store(request.context, list(places))
        state.figures.evicted += len(store.evicted) * self._geometry.blocks_per_chunk
        if store.transfer is not None:
            accepted = [places[key] for key in store.accepted]
            rows, keys = state.rows(request, accepted)
            state.transfers.start(store.transfer, rows, accepted)
            plan.stores.append(Move(store.transfer.to_bytes(), rows, keys))
