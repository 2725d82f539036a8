"""Pages of one size as rows of raw memory, so that one call moves many of them.

A view whose rows *overlap* (a row of ``page_bytes`` bytes every ``unit`` bytes) has a row for
every page of every segment, whatever lies between them; which row is arithmetic.  Numpy's and
torch's row copies are loops of one ``memcpy`` per row, and never touch a row that is not named.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvconn.memory.segments import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvconn.memory.caches import KVCaches
    from kvconn.memory.pool import HostPool

__all__ = ["Part", "parts_of"]

_WORDS: dict[int, torch.dtype] = {
    8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8,
}  # fmt: skip


class Part:
    """Consecutive segments of one page size: ``pages`` pages at one offset in every slot."""

    def __init__(
        self, segments: Sequence[Segment], caches: KVCaches, pool: HostPool, slot_offset: int
    ) -> None:
        nbytes = segments[0].page_bytes
        self.page_bytes = nbytes
        self.pages = len(segments) * caches.blocks_per_chunk
        low = min(s.base for s in segments)
        span = max(s.end(caches.num_blocks) for s in segments) - low
        shared = math.gcd(nbytes, *(s.base - low for s in segments), *(s.stride for s in segments))
        self.aligned = shared == nbytes
        """Every page lies a whole number of pages after the first: the rows need no overlap."""
        word = math.gcd(shared, low, slot_offset, 8)
        unit = nbytes if self.aligned else word
        memory = (ctypes.c_uint8 * span).from_address(low)
        rows = (span - nbytes) // unit + 1
        page: np.dtype[Any] = np.dtype((np.void, nbytes))
        self.rows: NDArray[np.void] = np.ndarray((rows,), page, memory, 0, (unit,))
        self.heads: NDArray[np.uint8] = np.ndarray((rows,), np.uint8, memory, 0, (unit,))
        """The first byte of each row."""
        words = torch.frombuffer(memory, dtype=_WORDS[word], count=span // word)
        self.word_rows = words.as_strided((rows, nbytes // word), (unit // word, 1))
        self._bases = np.array([(s.base - low) // unit for s in segments], np.int64)[:, None]
        self._strides = np.array([s.stride // unit for s in segments], np.int64)[:, None]
        shape, strides = (pool.slots, self.pages), (pool.slot_bytes, nbytes)
        slots = pool.tensor.numpy().reshape(-1)
        self.slots: NDArray[np.void] = (
            np.ndarray(shape, page, slots.data, slot_offset, strides)
            if pool.slots
            else np.empty(shape, page)
        )
        """``[slots, pages]``, the same pages in the pool; one row of all if :attr:`dense`."""
        self.word_slots = (
            torch.from_numpy(slots)
            .view(_WORDS[word])
            .as_strided(
                (pool.slots, self.pages, nbytes // word),
                (pool.slot_bytes // word, nbytes // word, 1),
                slot_offset // word,
            )
        )
        self.dense = self.pages * nbytes == pool.slot_bytes
        """Nothing lies between the pages of one slot and those of the next."""
        if self.dense:
            self.slots = self.slots.reshape(1, -1)
            self.word_slots = self.word_slots.view(1, -1, nbytes // word)

    def span(self, slot: int, first: int, count: int) -> NDArray[np.void]:
        """``[count]`` pages of the pool from page ``first`` of ``slot`` on; past it if dense."""
        if self.dense:
            slot, first = 0, first + slot * self.pages
        return self.slots[slot, first : first + count]

    def word_span(self, slot: int, first: int, count: int) -> torch.Tensor:
        """The same as ``[count, words]``."""
        if self.dense:
            slot, first = 0, first + slot * self.pages
        return self.word_slots[slot, first : first + count]

    def index(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """``[n, blocks_per_chunk]`` block ids to ``[n, pages]`` rows, in the slot's order."""
        rows = self._bases + blocks[:, None, :] * self._strides
        return rows.reshape(len(blocks), self.pages)


def parts_of(caches: KVCaches, pool: HostPool) -> Iterator[Part]:
    """The segments in the slot's order, cut where a :class:`Part` must end."""
    pool_at = pool.address(0) if pool.slots else 0
    run: list[Segment] = []
    offset = 0
    for segment in (*caches.segments, None):
        if run and (segment is None or not _alike(run[-1], segment, pool_at)):
            yield Part(run, caches, pool, offset)
            offset += sum(s.page_bytes for s in run) * caches.blocks_per_chunk
            run = []
        if segment is not None:
            run.append(segment)


def _alike(one: Segment, other: Segment, pool_at: int) -> bool:
    """Whether two segments may share a view.

    None may span the pool: numpy would take the two sides of a copy for overlapping and copy
    twice.
    """
    same_side = (one.base < pool_at) == (other.base < pool_at)
    return one.page_bytes == other.page_bytes and same_side
