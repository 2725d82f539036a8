"""Takes chunks from the fast tier to the slow one over a few pages of host memory.

Both tiers see these pages as they see an engine's, through a second worker side each.  The bytes
leave the fast tier before its slots are used again, and are read by the slow tier before this
returns; the slow medium is waited for by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec
import torch

from kvconn.memory import KVCaches

if TYPE_CHECKING:
    from kvconn.backend import Verdicts, WorkerSide
    from kvconn.types import Transfer

__all__ = ["CHUNKS", "Bounce"]

CHUNKS = 16
"""The most that one move takes."""
_PATIENCE_S = 1.0
"""For a fast tier's read; memory does not take so long."""


class Bounce:
    """The worker's own thread."""

    def __init__(
        self,
        caches: KVCaches,
        open_fast: Callable[[KVCaches], WorkerSide],
        open_slow: Callable[[KVCaches], WorkerSide],
    ) -> None:
        size = caches.blocks_per_chunk
        blocks = CHUNKS * size
        pages = KVCaches(
            {
                f"page {i}": torch.empty(blocks, page_bytes, dtype=torch.uint8)
                for i, page_bytes in enumerate(caches.page_bytes)
            },
            num_blocks=blocks,
            block_dims=0,
            blocks_per_chunk=size,
        )
        self._rows = [list(range(at, at + size)) for at in range(0, blocks, size)]
        self.fast, self.slow = open_fast(pages), open_slow(pages)

    def move(self, evicted: Transfer, demoted: Transfer) -> list[int]:
        """Begin to store into the slow tier what can still be read; which of the keys that is.

        ``evicted`` and ``demoted`` name the same keys, at most :data:`CHUNKS`.
        """
        read = self._read(evicted, self._rows[: len(evicted.keys)])
        good = [i for i, there in enumerate(read) if there]
        if good:
            self.slow.submit(_some(demoted, good), [self._rows[i] for i in good])
        return good

    def _read(self, transfer: Transfer, rows: Sequence[Sequence[int]]) -> Verdicts:
        self.fast.submit(transfer, rows)
        self.fast.wait([transfer.id], _PATIENCE_S)
        for ended, verdicts in self.fast.poll():
            if ended == transfer.id:
                return verdicts
        return []

    def close(self, deadline: float) -> Sequence[int]:
        """Close both sides."""
        return [*self.fast.close(deadline), *self.slow.close(deadline)]


def _some(transfer: Transfer, keys: Sequence[int]) -> Transfer:
    """The same transfer of fewer keys."""
    return msgspec.structs.replace(
        transfer,
        keys=tuple(transfer.keys[i] for i in keys),
        locations=tuple(transfer.locations[i] for i in keys) if transfer.locations else (),
    )
