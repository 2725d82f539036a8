"""Copies between device pages and pinned slots, on a stream of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kvconn.memory.runs import slot_runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvconn.memory.caches import KVCaches
    from kvconn.memory.copies import Copy
    from kvconn.memory.pool import HostPool

    Ids = NDArray[np.int64]

__all__ = ["CudaCopies", "SideStream", "StagedCopies"]

STAGING_BYTES = 64 << 20
"""Device memory taken for each batch: long enough copies to fill the bus, little memory."""

_cuda: Any = torch.cuda  # partly untyped in torch's own annotations
_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class SideStream:
    """A stream beside the computation, and the events between the two."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _cuda.Stream(device)

    def __enter__(self) -> None:
        # After the kernels that write the pages (store) or still read them (load).
        self._stream.wait_stream(_cuda.current_stream(self._stream.device))
        self._context = _cuda.stream(self._stream)
        self._context.__enter__()

    def __exit__(self, *raised: object) -> None:
        self._context.__exit__(*raised)

    def record(self) -> Copy:
        """A handle on everything that the stream was given so far."""
        event = _cuda.Event()
        event.record(self._stream)
        return _EventCopy(event)


class _EventCopy:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event: Any = event

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()


class StagedCopies:
    """Pages are collected in one device buffer, which crosses the bus in few long copies.

    Everything runs in order on one stream, so the buffer is used again without waiting.
    """

    def __init__(self, pool: HostPool, caches: KVCaches, stream: SideStream) -> None:
        self._stream = stream
        self._device = caches.device
        self._slots = pool.tensor
        self._rows = max(1, STAGING_BYTES // pool.slot_bytes)
        # As wide as a slot, so that a run of slots is one copy; the slot's own tail means nothing.
        staging = torch.empty(self._rows, pool.slot_bytes, dtype=torch.uint8, device=self._device)
        self._staging = staging
        self._segments: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        at = 0
        for pages in _page_views(caches):
            width = pages.shape[1] * pages.element_size()
            end = at + width * caches.blocks_per_chunk
            word = math.gcd(at, pages.element_size())
            rows = pages.view(_WORDS[word])
            shape = (caches.blocks_per_chunk, width // word)
            staged, stored = (
                whole[:, at:end].view(_WORDS[word]).view(len(whole), *shape)
                for whole in (staging, self._slots)
            )
            self._segments.append((rows, staged, stored))
            at = end

    def gather(self, blocks: Ids, slots: Ids) -> Copy:
        """Pages into slots; absent blocks leave their part of the slot as it was."""
        full = (blocks >= 0).all(1)
        with self._stream:
            for ids, places in self._batches(blocks[full], slots[full]):
                device_ids = self._to_device(ids.reshape(-1))
                for pages, staged, _ in self._segments:
                    picked = pages.index_select(0, device_ids)
                    staged[: len(ids)] = picked.view(len(ids), *staged.shape[1:])
                for here, there in self._runs(places):
                    self._slots[there].copy_(self._staging[here], non_blocking=True)
            for row in np.flatnonzero(~full).tolist():  # stores are whole chunks: rare
                for j in np.flatnonzero(blocks[row] >= 0).tolist():
                    for pages, _, stored in self._segments:
                        stored[int(slots[row]), j].copy_(
                            pages[int(blocks[row, j])], non_blocking=True
                        )
        return self._stream.record()

    def scatter(self, blocks: Ids, slots: Ids) -> Copy:
        """Slots into pages; absent blocks are not written."""
        with self._stream:
            for ids, places in self._batches(blocks, slots):
                for here, there in self._runs(places):
                    self._staging[here].copy_(self._slots[there], non_blocking=True)
                flat = ids.reshape(-1)
                present = np.flatnonzero(flat >= 0)
                device_ids = self._to_device(flat[present])
                whole = len(present) == len(flat)
                chosen = None if whole else self._to_device(present)
                for pages, staged, _ in self._segments:
                    rows = staged[: len(ids)].reshape(len(flat), -1)
                    if chosen is not None:
                        rows = rows.index_select(0, chosen)
                    pages.index_copy_(0, device_ids, rows)
        return self._stream.record()

    def _batches(self, blocks: Ids, slots: Ids) -> Iterator[tuple[Ids, Ids]]:
        for at in range(0, len(slots), self._rows):
            yield blocks[at : at + self._rows], slots[at : at + self._rows]

    @staticmethod
    def _runs(slots: Ids) -> Iterator[tuple[slice, slice]]:
        """Rows of the staging buffer and the slots that follow each other and belong to them."""
        row = 0
        for slot, count in slot_runs(slots, dense=True):
            yield slice(row, row + count), slice(slot, slot + count)
            row += count

    def _to_device(self, ids: Ids) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(ids)).to(self._device)


class CudaCopies(StagedCopies):
    """Staged copies on a CUDA device."""

    def __init__(self, pool: HostPool, caches: KVCaches) -> None:
        super().__init__(pool, caches, SideStream(caches.device))


def _page_views(caches: KVCaches) -> Iterator[torch.Tensor]:
    """Each segment as ``[num_blocks, words]`` over its tensor's own storage."""
    tensors = {t.untyped_storage().data_ptr(): t for t in caches.tensors.values()}
    for segment in caches.segments:
        raw = torch.empty(0, dtype=torch.uint8, device=caches.device)
        raw.set_(tensors[segment.storage].untyped_storage())
        at = segment.base - segment.storage
        stride = segment.stride if caches.num_blocks > 1 else segment.page_bytes
        word = math.gcd(at, stride, segment.page_bytes, 8)
        usable = len(raw) // word * word
        words = raw[:usable].view(_WORDS[word])
        yield words.as_strided(
            (caches.num_blocks, segment.page_bytes // word), (stride // word, 1), at // word
        )
