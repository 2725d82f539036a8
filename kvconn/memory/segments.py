"""One engine tensor, of whatever shape and strides, as equally spaced pages."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from kvconn.errors import CannotPage

__all__ = ["MIN_RUN_BYTES", "Segment", "block_dim_of", "segments_of"]

MIN_RUN_BYTES = 64
"""A block that is scattered in its tensor must still have runs of one cache line.  Shorter ones
would cost more in addresses than in bytes.  A block that is whole may be as small as it likes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One page of every block: page ``b`` is ``page_bytes`` bytes at ``base + b * stride``."""

    base: int
    stride: int
    """Bytes from one block's page to the next block's."""
    page_bytes: int
    name: str = ""
    """The tensor it was found in, for messages."""
    storage: int = 0
    """The address of the allocation it lies in; pages merge only inside one."""

    def end(self, num_blocks: int) -> int:
        """The address after the last block's page."""
        return self.base + (num_blocks - 1) * self.stride + self.page_bytes


def block_dim_of(name: str, tensor: torch.Tensor, num_blocks: int, given: int | None) -> int:
    """Which dimension counts blocks: the given one, else the only one of ``num_blocks`` entries."""
    shape = tuple(tensor.shape)
    if given is not None:
        if not -len(shape) <= given < len(shape) or shape[given] != num_blocks:
            msg = (
                f"tensor {name} of shape {shape} has no dimension {given} of {num_blocks} entries: "
                f"correct block_dims or num_blocks"
            )
            raise CannotPage(msg)
        return given % len(shape)
    fitting = [dim for dim, size in enumerate(shape) if size == num_blocks]
    if len(fitting) != 1:
        msg = (
            f"tensor {name} of shape {shape} has {len(fitting)} dimensions of {num_blocks} "
            f"entries: say which one counts blocks with block_dims={{{name!r}: ...}}"
        )
        raise CannotPage(msg)
    return fitting[0]


def segments_of(name: str, tensor: torch.Tensor, block_dim: int) -> list[Segment]:
    """The runs of one block in memory order, each with the stride to the next block's.

    Raises :class:`CannotPage` for memory that one block uses twice and for runs below
    :data:`MIN_RUN_BYTES`.
    """
    item = tensor.element_size()
    inner = sorted(
        (stride * item, size)
        for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True))
        if dim != block_dim and size > 1
    )
    run = item
    outer: list[tuple[int, int]] = []
    for stride, size in inner:
        if stride == run and not outer:
            run *= size
        else:
            outer.append((stride, size))
    _check_runs(name, run, outer)
    base = tensor.data_ptr()
    storage = tensor.untyped_storage().data_ptr()
    block_stride = tensor.stride(block_dim) * item
    steps = [range(0, stride * size, stride) for stride, size in reversed(outer)]
    return [
        Segment(base + sum(at), block_stride, run, name, storage)
        for at in itertools.product(*steps)
    ]


def _check_runs(name: str, run: int, outer: list[tuple[int, int]]) -> None:
    extent = run
    for stride, size in outer:
        if stride < extent:
            msg = (
                f"tensor {name} uses the same bytes more than once inside a block (stride {stride} "
                f"below extent {extent}): register the tensor it was expanded from"
            )
            raise CannotPage(msg)
        extent += stride * (size - 1)
    if outer and run < MIN_RUN_BYTES:
        msg = (
            f"tensor {name} has runs of {run} contiguous bytes inside a block, below "
            f"{MIN_RUN_BYTES}: register it in a layout that keeps a block's bytes together"
        )
        raise CannotPage(msg)
