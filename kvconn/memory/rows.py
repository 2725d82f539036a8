"""Block ids and slots as arrays, checked before a byte moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvconn.errors import MisuseError
from kvconn.types import ABSENT, BlockRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["block_array", "slot_array"]


def block_array(rows: BlockRows, *, blocks_per_chunk: int, num_blocks: int) -> NDArray[np.int64]:
    """``int64 [len(rows), blocks_per_chunk]``; each is a block of the engine or ``ABSENT``."""
    blocks = _whole_numbers(rows, "block ids", "one row of them per slot, all of one length")
    if not len(blocks):
        return np.empty((0, blocks_per_chunk), np.int64)
    if blocks.shape[1:] != (blocks_per_chunk,):
        msg = f"block ids of shape {blocks.shape}: give rows of {blocks_per_chunk}, one per slot"
        raise MisuseError(msg)
    if blocks.min() < ABSENT or blocks.max() >= num_blocks:
        msg = f"block ids {blocks.min()} to {blocks.max()}: they go from 0 to {num_blocks - 1}"
        raise MisuseError(msg)
    return blocks


def slot_array(slots: Sequence[int], *, count: int, of: int) -> NDArray[np.int64]:
    """``int64 [count]``; each is one of the ``of`` slots of the pool."""
    array = _whole_numbers(slots, "slots", "a flat sequence of them")
    if array.shape != (count,):
        msg = f"slots of shape {array.shape} for {count} rows: give one slot per row"
        raise MisuseError(msg)
    if count and (array.min() < 0 or array.max() >= of):
        msg = f"slots {array.min()} to {array.max()}: this pool's go from 0 to {of - 1}"
        raise MisuseError(msg)
    return array


def _whole_numbers(values: object, what: str, wanted: str) -> NDArray[np.int64]:
    try:
        array = np.asarray(values)
    except ValueError as error:  # numpy's word for rows of different lengths
        msg = f"{what} are ragged: give {wanted}"
        raise MisuseError(msg) from error
    if array.size and array.dtype.kind not in "iu":
        msg = f"{what} are {array.dtype}: give whole numbers, {wanted}"
        raise MisuseError(msg)
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        msg = f"{what} reach {array.max()}: give {wanted}, none so large"
        raise MisuseError(msg)
    return array.astype(np.int64, copy=False)
