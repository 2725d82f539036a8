"""Copies between engine pages and slots: the only code that touches engine memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from kvconn.memory.cpu import CpuCopies
from kvconn.memory.cuda import CudaCopies
from kvconn.memory.rows import block_array, slot_array

if TYPE_CHECKING:
    from kvconn.memory.caches import KVCaches
    from kvconn.memory.pool import HostPool
    from kvconn.types import BlockRows

__all__ = ["Copier", "Copy"]


class Copy(Protocol):
    """A copy that was started.  Any thread may ask."""

    def done(self) -> bool:
        """Whether it has ended: pages that it read may be re-used, those it wrote are there."""

    def wait(self) -> None:
        """Return when it has."""


class _Finished:
    """A copy that ended before the call returned, as all do in host memory."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


_FINISHED = _Finished()


class Copier:
    """Moves whole chunks between the pages of ``caches`` and the slots of ``pool``.

    One thread at a time: the worker's own, the only one that touches engine pages.  On a CUDA
    device a copy runs on a stream of its own, after everything that the calling thread's current
    stream was given before; in host memory it has ended when the call returns.
    """

    def __init__(self, pool: HostPool, caches: KVCaches, *, threads: int = 1) -> None:
        """``threads``: how many CPU threads a large copy in host memory may use.

        Raises :class:`ValueError` when a chunk does not fit a slot.
        """
        if caches.chunk_bytes > pool.slot_bytes or threads < 1:
            msg = (
                f"chunks of {caches.chunk_bytes} bytes, slots of {pool.slot_bytes}, {threads} "
                f"threads: a chunk must fit a slot and one thread is the least"
            )
            raise ValueError(msg)
        self._pool = pool
        self._caches = caches
        self._cpu = CpuCopies(pool, caches, threads) if caches.device.type == "cpu" else None
        self._cuda = CudaCopies(pool, caches) if self._cpu is None else None

    def gather(self, rows: BlockRows, slots: Sequence[int]) -> Copy:
        """Start copying pages into slots: row ``i`` of ``rows`` into ``slots[i]``.

        A block that is ``ABSENT`` leaves its part of the slot as it was.  Each slot at most once.
        Raises :class:`~kvconn.errors.MisuseError`, before a byte moves, for ids that do not exist.
        """
        return self._copy("gather", rows, slots)

    def scatter(self, rows: BlockRows, slots: Sequence[int]) -> Copy:
        """Start copying slots into pages, the other way round; each block at most once."""
        return self._copy("scatter", rows, slots)

    def _copy(self, direction: str, rows: BlockRows, slots: Sequence[int]) -> Copy:
        caches = self._caches
        blocks = block_array(
            rows, blocks_per_chunk=caches.blocks_per_chunk, num_blocks=caches.num_blocks
        )
        places = slot_array(slots, count=len(blocks), of=self._pool.slots)
        if self._cuda is not None:
            started: Copy = getattr(self._cuda, direction)(blocks, places)
            return started
        getattr(self._cpu, direction)(blocks, places)
        return _FINISHED
