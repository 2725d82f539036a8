"""How tokens, blocks, pages and chunks relate, as one frozen object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvconn.identity import Shard
from kvconn.types import ABSENT

__all__ = ["SLOT_ALIGNMENT", "Geometry"]

SLOT_ALIGNMENT = 4096
"""Bytes; a slot starts and ends on it, as O_DIRECT and memory registration want."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes that a backend's scheduler side must know before any worker exists."""

    block_tokens: int
    """Tokens in one block."""
    block_bytes: int
    """Bytes of one block on one rank: the sum of its pages over all registered tensors."""
    blocks_per_chunk: int = 1
    """Consecutive blocks stored as one object."""
    ranks: int = 1
    """Workers that each hold another shard of a chunk; 1 where the KV is replicated."""
    replicas: int = 1
    """Workers that hold the same shard."""
    groups: int = 1
    """KV-cache groups.  With several, a chunk has one key in each, side by side: of a run of keys
    whole chunks count."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                msg = f"{name} is {getattr(self, name)}: it must be at least 1"
                raise ValueError(msg)

    @property
    def workers(self) -> int:
        """Each with memory of its own."""
        return self.ranks * self.replicas

    def shard(self, worker: int) -> Shard:
        """What worker ``worker`` holds, counted from 0; of replicas, neighbours hold the same."""
        index, replica = divmod(worker, self.replicas)
        return Shard(index, self.ranks, replica, self.replicas)

    @property
    def chunk_tokens(self) -> int:
        """Tokens in one chunk."""
        return self.block_tokens * self.blocks_per_chunk

    @property
    def chunk_bytes(self) -> int:
        """Payload bytes that one key names on one rank."""
        return self.block_bytes * self.blocks_per_chunk

    @property
    def slot_bytes(self) -> int:
        """Host memory that one key takes on one rank: ``chunk_bytes``, aligned up."""
        return -(-self.chunk_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT

    def whole_chunks(self, tokens: int) -> int:
        """How many whole chunks ``tokens`` tokens fill; a partial one is never stored (L7)."""
        return tokens // self.chunk_tokens

    def rows(
        self, block_ids: Sequence[int], chunks: range, computed_blocks: int = 0
    ) -> list[list[int]]:
        """Engine block ids for ``chunks`` (indices from the start of the sequence), a row each.

        ``block_ids`` is the request's whole block table.  The first ``computed_blocks`` of the
        sequence are already in the engine: in the row of a partial first chunk they are
        :data:`~kvconn.types.ABSENT` and are not written.
        """
        size = self.blocks_per_chunk
        rows = [list(block_ids[c * size : (c + 1) * size]) for c in chunks]
        if rows and (held := computed_blocks - chunks.start * size) > 0:
            held = min(held, size)
            rows[0][:held] = [ABSENT] * held
        return rows
