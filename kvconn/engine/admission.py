"""How a waiting request starts: what is here, what the backend has, and room for the rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kvconn.engine.plan import Move
from kvconn.engine.request import Phase

if TYPE_CHECKING:
    from kvconn.engine.plan import Plan
    from kvconn.engine.request import EngineRequest
    from kvconn.engine.state import EngineState
    from kvconn.engine.transfers import Ended

__all__ = ["Admission"]


class Admission:
    """Admits in order of arrival.  A prompt gets all of its blocks at once."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._geometry = state.connector.geometry

    def admit(self, plan: Plan) -> list[EngineRequest]:
        """Start what can start; those that need not wait for a load are answered."""
        state = self._state
        started: list[EngineRequest] = []
        for request in list(state.waiting):
            if len(state.running) + len(state.loading) >= state.limits.requests:
                break
            local = self._local_hits(request)
            needed = -(-request.length // self._geometry.block_tokens) - len(local)
            if state.blocks.free < needed:
                state.blocks.release(local)
                break  # a later request that is smaller must not overtake it for ever
            found = self._look_up(request, len(local))
            if found is None:
                state.blocks.release(local)
                continue
            request.block_ids = local + state.blocks.allocate(needed)
            self._start(request, len(local), found, plan)
            if request.phase is Phase.RUNNING:
                started.append(request)
        return started

    def loaded(self, request: EngineRequest, ended: Ended) -> None:
        """The load that ``request`` waited for ended: what did not come is computed (F1)."""
        state, geometry = self._state, self._geometry
        good = (*ended.verdicts, False).index(False)
        first = request.loaded.start
        request.loaded, request.loading = range(first, first + good), None
        state.figures.failed_loads += len(ended.verdicts) - good
        if good:
            held = request.written
            request.written = (first + good) * geometry.blocks_per_chunk
            state.figures.external_hits += request.written - held
            request.scheduled = self._computed_tokens(request)
        state.leave(request)
        state.enter(request, Phase.RUNNING)

    def _local_hits(self, request: EngineRequest) -> list[int]:
        """Blocks of the local prefix cache; a request that must not read has none there either."""
        if request.context.skip_reading_prefix_cache:
            return []
        # The last token is always computed: its logits are what the request came for.
        readable = (request.length - 1) // self._geometry.block_tokens
        return self._state.blocks.leading(request.block_keys[:readable])

    def _look_up(self, request: EngineRequest, local: int) -> int | None:
        """Chunks that the backend has from the first that is not whole here; ``None``: ask again.

        Asked for a request that must not read, too: the connector answers for it.
        """
        connector, figures = self._state.connector, self._state.figures
        first, rest = divmod(local, self._geometry.blocks_per_chunk)
        keys = request.chunk_keys[first:]
        began = time.perf_counter_ns()
        found = connector.lookup(request.context, keys, rest * self._geometry.block_tokens)
        if not request.context.skip_reading_prefix_cache:
            figures.lookup_ns.append(time.perf_counter_ns() - began)
        if found is not None:
            return found
        now = time.monotonic()
        if request.patience is None:
            request.patience = now + self._state.limits.patience_s
        if now < request.patience:
            return None
        connector.release(request.context)
        return 0

    def _start(self, request: EngineRequest, local: int, found: int, plan: Plan) -> None:
        state = self._state
        request.written = request.published = local
        request.scheduled = self._computed_tokens(request)
        figures, whole = state.figures, len(request.block_keys)
        if request.context.skip_reading_prefix_cache:
            figures.bypassed += whole
        else:
            figures.queried += whole
            figures.local_hits += local
        if found:
            self._load(request, found, plan)
        state.connector.touch(request.context, request.chunk_keys)
        state.leave(request)
        state.enter(request, Phase.RUNNING if request.loading is None else Phase.LOADING)

    def _load(self, request: EngineRequest, found: int, plan: Plan) -> None:
        state = self._state
        first = request.written // self._geometry.blocks_per_chunk
        wanted = request.chunk_keys[first : first + found]
        transfer = state.connector.prepare_load(request.context, wanted)
        if transfer is None:
            return
        request.loading = transfer.id
        request.loaded = range(first, first + len(transfer.keys))
        rows, keys = state.rows(request, request.loaded, held=request.written)
        state.transfers.start(transfer, rows, request.loaded)
        plan.loads.append(Move(transfer.to_bytes(), rows, keys))

    def _computed_tokens(self, request: EngineRequest) -> int:
        return min(request.written * self._geometry.block_tokens, request.length - 1)
