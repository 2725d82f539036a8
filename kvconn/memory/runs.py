"""Which pages to copy in one call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvconn.memory.parts import Part

    Ids = NDArray[np.int64]

__all__ = ["pieces", "slot_runs"]

TOUCH_BELOW = 32 << 10
"""Page bytes below which the time goes into waiting for memory page by page; see :func:`pieces`."""
TOUCH_BYTES = 1 << 20
PIECE_BYTES = 4 << 20
"""Most that one call moves: it may keep the interpreter lock, for a third of a millisecond."""


def pieces(part: Part, index: Ids, slots: Ids) -> Iterator[tuple[slice, tuple[int, slice]]]:
    """``(which of index, where in the part's slots)``, in order, for one call each.

    Before small pages are given out, one byte of each is read, all in one call.  Those reads wait
    for memory and for address translation together, where the copies would wait one after the
    other: at 4 KiB this is a quarter to a third faster than one compiled ``memcpy`` a page.
    """
    small = part.page_bytes < TOUCH_BELOW
    step = max(1, (TOUCH_BYTES if small else PIECE_BYTES) // part.page_bytes)
    at = ready = 0
    for slot, count in slot_runs(slots, dense=part.dense):
        row, first = part.place(slot, 0)
        shift = first - at
        end = at + count * part.pages
        while at < end:
            if at == ready:
                ready += step
                if small:
                    part.heads[index[at:ready]]
            stop = min(end, ready)
            yield slice(at, stop), (row, slice(at + shift, stop + shift))
            at = stop


def slot_runs(slots: Ids, *, dense: bool) -> Iterator[tuple[int, int]]:
    """``(slot, how many follow each other from there)``; one each where gaps are between them."""
    if not dense:
        for slot in slots.tolist():
            yield slot, 1
        return
    cuts = (np.flatnonzero(np.diff(slots) != 1) + 1).tolist()
    for start, end in zip([0, *cuts], [*cuts, len(slots)], strict=True):
        if end > start:
            yield int(slots[start]), end - start
