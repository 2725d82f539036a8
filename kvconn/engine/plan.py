"""What the scheduler decided for one step, and what that means for a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvconn.engine.request import EngineRequest
    from kvconn.identity import Key

__all__ = ["Move", "Plan", "Span", "Work"]


@dataclass(frozen=True, slots=True)
class Move:
    """One transfer on its way to every worker: as bytes, since workers are other processes."""

    wire: bytes
    rows: list[list[int]]
    block_keys: list[list[Key]]
    """What each block of each row holds, or will: an engine could not know; this one checks."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens of one request to compute up to ``end``, and the blocks that become whole by it."""

    request: EngineRequest
    epoch: int
    end: int
    first: int
    """Index, in the request, of the first of ``blocks``."""
    blocks: list[int]


@dataclass(slots=True)
class Plan:
    """One step, on the scheduler side."""

    loads: list[Move] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    stores: list[Move] = field(default_factory=list)
    tier_moves: list[bytes] = field(default_factory=list)
    """Transfers of the backend's own; what they follow was part of an earlier plan."""

    @property
    def empty(self) -> bool:
        """Nothing to do."""
        return not (self.loads or self.spans or self.stores or self.tier_moves)

    def work(self) -> Work:
        """As a worker sees it, once the tokens before it are known.

        A block whose tokens never became known (its request ended, or was preempted, before they
        did) is computed all the same, and nobody reads it.
        """
        work = Work(self.loads, self.stores, self.tier_moves)
        for span in self.spans:
            keys = span.request.block_keys[span.first : span.first + len(span.blocks)]
            work.blocks += span.blocks[: len(keys)]
            work.keys += keys
            work.nameless += span.blocks[len(keys) :]
        return work


@dataclass(slots=True)
class Work:
    """One step, on the worker side: loads begin, blocks are computed, stores begin."""

    loads: list[Move]
    stores: list[Move]
    tier_moves: list[bytes] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    """Blocks to compute, with their keys."""
    keys: list[Key] = field(default_factory=list)
    nameless: list[int] = field(default_factory=list)
    """Blocks to compute that nobody will read."""
