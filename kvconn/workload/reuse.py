"""How much of a workload could be re-used by a cache that never evicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvconn.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Counts over a workload; blocks are whole blocks."""

    requests: int
    blocks: int
    """Asked for by all requests together."""
    distinct_blocks: int
    prefix_hits: int
    """Blocks that an earlier request had, while all blocks before them were hits too."""

    @property
    def hit_rate(self) -> float:
        """Share of ``blocks`` that are hits, 0 to 1: no cache of prompts alone does better."""
        return self.prefix_hits / self.blocks if self.blocks else 0.0


def summary(requests: Iterable[TraceRequest]) -> PrefixReuse:
    """Count ``requests`` in one pass; holds the set of distinct ids."""
    count = blocks = hits = 0
    seen: set[int] = set()
    for request in requests:
        whole = request.whole_blocks
        count += 1
        blocks += len(whole)
        hits += next((i for i, block in enumerate(whole) if block not in seen), len(whole))
        seen.update(whole)
    return PrefixReuse(count, blocks, len(seen), hits)
