"""Pages of one size as rows of raw memory, so that one call moves many of them.

A view whose rows *overlap* (a row of ``page_bytes`` bytes every ``unit`` bytes) has a row for
every page of every segment, whatever lies between them; which row is arithmetic.  Numpy's and
torch's row copies are loops of one ``memcpy`` per row, and never touch a row that is not named.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvconn.memory.caches import KVCaches
    from kvconn.memory.pool import HostPool
    from kvconn.memory.segments import Segment

__all__ = ["Part", "parts_of"]

_WORDS: dict[int, torch.dtype] = {
    8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8,
}  # fmt: skip


_P = TypeVar("_P", int, "NDArray[np.int64]")


class Part:
    """Consecutive segments of one page size: ``pages`` pages at one offset in every slot.

    ``rows`` are the engine's pages and ``slots`` the pool's, as elements of one page each;
    ``word_rows`` and ``word_slots`` are the same memory with one more dimension, of words.
    """

    def __init__(
        self, segments: Sequence[Segment], caches: KVCaches, pool: HostPool, slot_offset: int
    ) -> None:
        nbytes = segments[0].page_bytes
        self.page_bytes = nbytes
        self.pages = len(segments) * caches.blocks_per_chunk
        self.dense = self.pages * nbytes == pool.slot_bytes
        """Nothing lies between the pages of one slot and those of the next."""
        low = min(s.base for s in segments)
        span = max(s.end(caches.num_blocks) for s in segments) - low
        shared = math.gcd(nbytes, *(s.base - low for s in segments), *(s.stride for s in segments))
        self.aligned = shared == nbytes
        """Every page lies a whole number of pages after the first: rows need no overlap."""
        word = math.gcd(shared, low, slot_offset, 8)
        unit = nbytes if self.aligned else word
        self._bases = np.array([(s.base - low) // unit for s in segments], np.int64)[:, None]
        self._strides = np.array([s.stride // unit for s in segments], np.int64)[:, None]

        memory = memoryview((ctypes.c_uint8 * span).from_address(low)).cast("B")
        count, page = (span - nbytes) // unit + 1, np.dtype((np.void, nbytes))
        self.rows: NDArray[np.void] = np.ndarray((count,), page, memory, 0, (unit,))
        self.heads: NDArray[np.uint8] = np.ndarray((count,), np.uint8, memory, 0, (unit,))
        """The first byte of each row."""
        words = torch.frombuffer(memory, dtype=_WORDS[word], count=span // word)
        self.word_rows = words.as_strided((count, nbytes // word), (unit // word, 1))

        slots = pool.tensor.view(_WORDS[word])
        whole = slots.as_strided(
            (pool.slots, self.pages, nbytes // word),
            (pool.slot_bytes // word, nbytes // word, 1),
            slots.storage_offset() + slot_offset // word,
        )
        self.word_slots = whole.view(1, -1, nbytes // word) if self.dense else whole
        """``[slots, pages, words]``; if :attr:`dense`, one row of all pages of all slots."""
        pages: Any = self.word_slots.numpy().view(page)
        self.slots: NDArray[np.void] = pages[:, :, 0]

    def place(self, slot: int, pages: _P) -> tuple[int, _P]:
        """Where ``pages`` of ``slot`` (a number or an array) are in :attr:`slots`."""
        return (0, slot * self.pages + pages) if self.dense else (slot, pages)

    def index(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of the pages of ``blocks [n, blocks_per_chunk]``, flat, in the slots' order."""
        return (self._bases + blocks[:, None, :] * self._strides).reshape(-1)


def parts_of(caches: KVCaches, pool: HostPool) -> Iterator[Part]:
    """The segments in the slot's order, cut where a :class:`Part` must end."""
    pool_at = pool.address(0) if pool.slots else 0
    run: list[Segment] = []
    offset = 0
    for segment in caches.segments:
        if run and not _alike(run[-1], segment, pool_at):
            yield Part(run, caches, pool, offset)
            offset += sum(s.page_bytes for s in run) * caches.blocks_per_chunk
            run = []
        run.append(segment)
    yield Part(run, caches, pool, offset)


def _alike(one: Segment, other: Segment, pool_at: int) -> bool:
    """Whether two segments may share a view.

    None may span the pool: numpy would take the two sides of a copy for overlapping and copy
    twice.
    """
    same_side = (one.base < pool_at) == (other.base < pool_at)
    return one.page_bytes == other.page_bytes and same_side
