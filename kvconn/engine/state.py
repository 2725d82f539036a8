"""What the parts of the engine's scheduler share."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from kvconn.engine.figures import Figures
from kvconn.engine.request import EngineRequest, Phase
from kvconn.types import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvconn.engine.prefix_cache import LocalBlocks
    from kvconn.engine.transfers import TransfersInFlight
    from kvconn.identity import Key
    from kvconn.scheduler import SchedulerConnector

__all__ = ["EngineState", "Limits"]

_arrival = attrgetter("arrival")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the engine does at once."""

    requests: int = 8
    """Running and loading."""
    blocks_per_step: int = 64
    """Blocks' worth of tokens that one step computes."""
    storing_bytes: int = 16 << 20
    """The engine waits while more than this is on its way to the backend: computing real blocks
    takes longer than storing them, computing these does not."""
    patience_s: float = 1.0
    """How long a request waits for a backend that does not know yet, and a step for stores (F3)."""


@dataclass(slots=True, eq=False)
class EngineState:
    """The requests by phase, each in order of arrival, and where their blocks are."""

    connector: SchedulerConnector
    blocks: LocalBlocks
    transfers: TransfersInFlight
    limits: Limits
    flush: Callable[[EngineRequest], None]
    """Called before the blocks of a request are let go of."""
    figures: Figures = field(default_factory=Figures)
    waiting: list[EngineRequest] = field(default_factory=list)
    loading: list[EngineRequest] = field(default_factory=list)
    running: list[EngineRequest] = field(default_factory=list)

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self.waiting) + len(self.loading) + len(self.running)

    def enter(self, request: EngineRequest, phase: Phase) -> None:
        """Put ``request``, which is in no queue, into that of ``phase``."""
        request.phase = phase
        insort(self._queue(phase), request, key=_arrival)

    def leave(self, request: EngineRequest) -> None:
        """Take ``request`` out of its queue."""
        self._queue(request.phase).remove(request)

    def preempt(self, request: EngineRequest) -> None:
        """Take the blocks of ``request``, running or loading; it starts again when it can."""
        self.leave(request)
        self._let_go(request)
        self.enter(request, Phase.WAITING)
        self.figures.preemptions += 1

    def end(self, request: EngineRequest) -> None:
        """``request`` is complete, or aborted, in whatever phase; its transfers go on."""
        self.leave(request)
        self._let_go(request)
        request.phase = Phase.ENDED
        self.connector.request_finished(request.context)

    def rows(
        self, request: EngineRequest, chunks: Iterable[int], held: int = 0
    ) -> tuple[list[list[int]], list[list[Key]]]:
        """Engine blocks and their keys, a row per chunk; the first ``held`` blocks are absent."""
        size = self.connector.geometry.blocks_per_chunk
        rows, keys = [], []
        for at in (chunk * size for chunk in chunks):
            row = request.block_ids[at : at + size]
            absent = max(0, min(size, held - at))
            rows.append([ABSENT] * absent + row[absent:])
            keys.append(request.block_keys[at : at + size])
        return rows, keys

    def _let_go(self, request: EngineRequest) -> None:
        self.flush(request)
        self.blocks.release(request.give_up_blocks())

    def _queue(self, phase: Phase) -> list[EngineRequest]:
        queues = {
            Phase.WAITING: self.waiting,
            Phase.LOADING: self.loading,
            Phase.RUNNING: self.running,
        }
        return queues[phase]
