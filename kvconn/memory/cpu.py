"""Copies between pages and slots where both are host memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvconn.memory.intraop import one_intraop_thread
from kvconn.memory.parts import Part, parts_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvconn.memory.caches import KVCaches
    from kvconn.memory.pool import HostPool

    Ids = NDArray[np.int64]

__all__ = ["CpuCopies"]

TOUCH_BELOW = 32 << 10
"""Page bytes.  For smaller pages the time goes into address translation, one walk at a time; see
:func:`_pieces`."""
TOUCH_BYTES = 1 << 20
PIECE_BYTES = 4 << 20
"""Most that one call moves, since a call may keep the interpreter lock: a third of a millisecond."""
SPLIT_BYTES = 4 << 20
"""Least that is worth a second thread."""


class CpuCopies:
    """Copies that are finished when the call returns; ids are checked by the caller."""

    def __init__(self, pool: HostPool, caches: KVCaches, threads: int) -> None:
        self._parts = list(parts_of(caches, pool))
        self._chunk_bytes = caches.chunk_bytes
        self._threads = threads
        self._others = ThreadPoolExecutor(threads - 1, "kvconn-copy") if threads > 1 else None

    def gather(self, blocks: Ids, slots: Ids) -> None:
        """Pages of ``blocks [n, blocks_per_chunk]`` into ``slots [n]``."""
        self._run(self._gather_whole, _gather_some, blocks, slots)

    def scatter(self, blocks: Ids, slots: Ids) -> None:
        """``slots [n]`` into the pages of ``blocks [n, blocks_per_chunk]``."""
        self._run(self._scatter_whole, _scatter_some, blocks, slots)

    def _run(
        self,
        whole: Callable[[Ids, Ids], None],
        some: Callable[[Part, Ids, Ids, int], None],
        blocks: Ids,
        slots: Ids,
    ) -> None:
        full = (blocks >= 0).all(1)
        if full.all():
            self._split(whole, blocks, slots)
            return
        self._split(whole, blocks[full], slots[full])
        for row in np.flatnonzero(~full):  # one a load at most: the chunk the engine has half of
            for part in self._parts:
                here = part.index(blocks[row : row + 1])[0]
                wanted = np.tile(blocks[row] >= 0, part.pages // blocks.shape[1])
                some(part, here[wanted], np.flatnonzero(wanted), int(slots[row]))

    def _split(self, whole: Callable[[Ids, Ids], None], blocks: Ids, slots: Ids) -> None:
        shares = min(self._threads, len(slots), len(slots) * self._chunk_bytes // SPLIT_BYTES)
        if self._others is None or shares < 2:  # noqa: PLR2004 - one share is this thread's
            whole(blocks, slots)
            return
        work = list(
            zip(np.array_split(blocks, shares), np.array_split(slots, shares), strict=True)
        )
        others = [self._others.submit(whole, *share) for share in work[1:]]
        try:
            whole(*work[0])
        finally:
            for other in others:  # no page may be in use after the call, whatever was raised
                other.exception()
        for other in others:
            other.result()

    def _gather_whole(self, blocks: Ids, slots: Ids) -> None:
        for part in self._parts:
            index = part.index(blocks).reshape(-1)
            if part.aligned:
                for at, count, slot, first in _pieces(part, index, slots):
                    rows = index[at : at + count]
                    # "clip" lets numpy write straight into ``out``; the ids were checked.
                    part.rows.take(rows, 0, part.span(slot, first, count), "clip")
            else:
                rows_of = torch.from_numpy(index)
                with one_intraop_thread():
                    for at, count, slot, first in _pieces(part, index, slots):
                        out = part.word_span(slot, first, count)
                        torch.index_select(part.word_rows, 0, rows_of[at : at + count], out=out)

    def _scatter_whole(self, blocks: Ids, slots: Ids) -> None:
        for part in self._parts:
            index = part.index(blocks).reshape(-1)
            for at, count, slot, first in _pieces(part, index, slots):
                part.rows[index[at : at + count]] = part.span(slot, first, count)


def _gather_some(part: Part, rows: Ids, pages: Ids, slot: int) -> None:
    part.span(slot, 0, part.pages)[pages] = part.rows[rows]


def _scatter_some(part: Part, rows: Ids, pages: Ids, slot: int) -> None:
    part.rows[rows] = part.span(slot, 0, part.pages)[pages]


def _pieces(part: Part, index: Ids, slots: Ids) -> Iterator[tuple[int, int, int, int]]:
    """``(at, count, slot, first)``: rows ``index[at:at + count]`` belong to page ``first`` of
    ``slot`` and those after it.

    Before a piece of small pages is given out, one byte of each of its pages is read, all in one
    call: those reads wait for memory and for address translation together, where the copies
    would wait one after the other.  At 4 KiB that is a third faster than one ``memcpy`` a page.
    """  # noqa: D205
    small = part.page_bytes < TOUCH_BELOW
    step = max(1, (TOUCH_BYTES if small else PIECE_BYTES) // part.page_bytes)
    ready = 0
    at = 0
    for slot, slots_in_run in _runs(slots, dense=part.dense):
        start, end = at, at + slots_in_run * part.pages
        while at < end:
            if at == ready:
                ready += step
                if small:
                    part.heads[index[at:ready]]
            stop = min(end, ready)
            yield at, stop - at, slot, at - start
            at = stop


def _runs(slots: Ids, *, dense: bool) -> Iterator[tuple[int, int]]:
    """``(slot, how many slots follow each other from there)``, one each where gaps are between."""
    if not dense:
        for slot in slots.tolist():
            yield slot, 1
        return
    cuts = (np.flatnonzero(np.diff(slots) != 1) + 1).tolist()
    for start, end in zip([0, *cuts], [*cuts, len(slots)], strict=True):
        yield int(slots[start]), end - start
