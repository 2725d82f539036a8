"""Copies between pages and slots where both are host memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvconn.memory.intraop import one_intraop_thread
from kvconn.memory.parts import Part, parts_of
from kvconn.memory.runs import pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvconn.memory.caches import KVCaches
    from kvconn.memory.pool import HostPool

    Ids = NDArray[np.int64]
    Whole = Callable[[Part, Ids, Ids], None]
    Some = Callable[[Part, Ids, Ids, int], None]

__all__ = ["CpuCopies"]

SHARE_BYTES = 2 << 20
"""What a thread takes at a time, where a copy has several threads."""

THREADS_FROM_BYTES = 512 << 10
"""Chunk bytes below which one thread does all: with shorter calls the threads spend their time
handing each other the interpreter lock, and two were slower than one."""


class CpuCopies:
    """Copies that are finished when the call returns; ids are checked by the caller."""

    def __init__(self, pool: HostPool, caches: KVCaches, threads: int) -> None:
        self._parts = list(parts_of(caches, pool)) if pool.slots else []
        self._share = max(1, SHARE_BYTES // caches.chunk_bytes)
        if caches.chunk_bytes < THREADS_FROM_BYTES:
            threads = 1
        self._threads = threads
        self._others = ThreadPoolExecutor(threads - 1, "kvconn-copy") if threads > 1 else None

    def gather(self, blocks: Ids, slots: Ids) -> None:
        """Pages of ``blocks [n, blocks_per_chunk]`` into ``slots [n]``."""
        self._copy(_gather, _gather_some, blocks, slots)

    def scatter(self, blocks: Ids, slots: Ids) -> None:
        """``slots [n]`` into the pages of ``blocks [n, blocks_per_chunk]``."""
        self._copy(_scatter if self._others is None else _scatter_unlocked,
                   _scatter_some, blocks, slots)  # fmt: skip

    def _copy(self, whole: Whole, some: Some, blocks: Ids, slots: Ids) -> None:
        full = (blocks >= 0).all(1)
        if full.all():
            self._split(whole, blocks, slots)
            return
        self._split(whole, blocks[full], slots[full])
        for row in np.flatnonzero(~full):  # one a load at most: the chunk the engine has half of
            for part in self._parts:
                wanted = np.tile(blocks[row] >= 0, part.pages // blocks.shape[1])
                chosen = part.index(blocks[row : row + 1])[wanted]
                some(part, chosen, np.flatnonzero(wanted), int(slots[row]))

    def _split(self, whole: Whole, blocks: Ids, slots: Ids) -> None:
        """Have ``whole`` called for every row, by as many threads as there are."""
        step = self._share
        # Shares are taken, not dealt: a thread that gets no processor takes none.
        shares = deque(range(0, len(slots), step))
        others = self._others if len(shares) > 1 else None
        if others is None:
            for part in self._parts:
                whole(part, blocks, slots)
            return

        def work() -> None:
            with suppress(IndexError):
                while True:
                    rows = slice(start := shares.popleft(), start + step)
                    for part in self._parts:
                        whole(part, blocks[rows], slots[rows])

        futures = [others.submit(work) for _ in range(self._threads - 1)]
        try:
            work()
        finally:  # no page may be in use after the call, whatever was raised
            raised = [None if future.cancel() else future.exception() for future in futures]
        for error in raised:
            if error is not None:
                raise error


def _gather(part: Part, blocks: Ids, slots: Ids) -> None:
    index = part.index(blocks)
    if part.aligned:
        for rows, place in pieces(part, index, slots):
            # "clip" lets numpy write straight into the slots; the ids were checked before.
            part.rows.take(index[rows], 0, part.slots[place], "clip")
        return
    rows_of = torch.from_numpy(index)
    with one_intraop_thread():
        for rows, place in pieces(part, index, slots):
            torch.index_select(part.word_rows, 0, rows_of[rows], out=part.word_slots[place])


def _scatter(part: Part, blocks: Ids, slots: Ids) -> None:
    index = part.index(blocks)
    for rows, place in pieces(part, index, slots):
        part.rows[index[rows]] = part.slots[place]


def _scatter_unlocked(part: Part, blocks: Ids, slots: Ids) -> None:
    """The same, a tenth slower at 4 KiB; numpy drops the interpreter lock only for words."""
    index = part.index(blocks)
    word_rows, word_slots = part.word_rows.numpy(), part.word_slots.numpy()
    for rows, place in pieces(part, index, slots):
        word_rows[index[rows]] = word_slots[place]


def _gather_some(part: Part, rows: Ids, pages: Ids, slot: int) -> None:
    part.slots[part.place(slot, pages)] = part.rows[rows]


def _scatter_some(part: Part, rows: Ids, pages: Ids, slot: int) -> None:
    part.rows[rows] = part.slots[part.place(slot, pages)]
