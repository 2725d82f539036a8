"""Engine tensors of any layout, seen as pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from kvconn.errors import CannotPage
from kvconn.memory.overlap import check_disjoint
from kvconn.memory.segments import Segment, block_dim_of, segments_of

__all__ = ["KVCaches"]


class KVCaches:
    """The registered tensors of one KV-cache group on one rank.  Immutable; keeps them alive.

    A block is one page in each of :attr:`segments`.  Their order is the stored format: tensors in
    the order of ``tensors``, runs inside a tensor in memory order, a run that goes on where the
    one before it ends merged into it.  It depends on shapes and strides, never on addresses, so
    that processes with equal tensors read each other's chunks.  Tensors that are exactly the same
    memory (layers that share a cache) are moved once.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        num_blocks: int,
        block_dims: Mapping[str, int] | int | None = None,
        blocks_per_chunk: int = 1,
    ) -> None:
        """Register ``tensors``, each with one dimension of ``num_blocks`` entries.

        ``block_dims`` names that dimension, for all or by name, where it is not the only one of
        that size.  Raises :class:`~kvconn.errors.CannotPage`, here and never later, for tensors
        whose blocks cannot be copied apart from each other.
        """
        if num_blocks < 1 or blocks_per_chunk < 1 or not tensors:
            msg = (
                f"{len(tensors)} tensors of {num_blocks} blocks in chunks of {blocks_per_chunk}: "
                f"register at least one of each"
            )
            raise CannotPage(msg)
        self.tensors = dict(tensors)
        self.num_blocks = num_blocks
        self.blocks_per_chunk = blocks_per_chunk
        self.device = _device_of(self.tensors)
        found: dict[tuple[int, int, int], Segment] = {}
        for name, tensor in self.tensors.items():
            given = block_dims.get(name) if isinstance(block_dims, Mapping) else block_dims
            dim = block_dim_of(name, tensor, num_blocks, given)
            for segment in segments_of(name, tensor, dim):
                found.setdefault((segment.base, segment.stride, segment.page_bytes), segment)
        check_disjoint(list(found.values()), num_blocks)
        self.segments: tuple[Segment, ...] = tuple(_merged(found.values()))
        self.block_bytes = sum(segment.page_bytes for segment in self.segments)

    @property
    def page_bytes(self) -> tuple[int, ...]:
        """Bytes of a block's page in each segment: with ``blocks_per_chunk``, the stored layout."""
        return tuple(segment.page_bytes for segment in self.segments)

    @property
    def chunk_bytes(self) -> int:
        """Payload bytes of one chunk on this rank."""
        return self.block_bytes * self.blocks_per_chunk


def _device_of(tensors: Mapping[str, torch.Tensor]) -> torch.device:
    """The one device of all tensors, each of which must be plain memory."""
    for name, tensor in tensors.items():
        if (
            tensor.layout is not torch.strided
            or tensor.is_quantized
            or tensor.device.type not in ("cpu", "cuda")
            or not tensor.numel()
        ):
            msg = (
                f"tensor {name} ({tensor.layout}, {tensor.dtype}, {tensor.device}, shape "
                f"{tuple(tensor.shape)}) is not plain memory: register dense tensors of cpu or cuda"
            )
            raise CannotPage(msg)
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        msg = f"tensors on {sorted(map(str, devices))}: register those of one device per worker"
        raise CannotPage(msg)
    return devices.pop()


def _merged(segments: Iterable[Segment]) -> Iterable[Segment]:
    """Join each segment to the one before it that it continues within every block."""
    last: Segment | None = None
    for segment in segments:
        if (
            last is not None
            and segment.base == last.base + last.page_bytes
            and segment.stride == last.stride
            and segment.storage == last.storage
        ):
            joined = last.page_bytes + segment.page_bytes
            last = Segment(last.base, last.stride, joined, last.name, last.storage)
            continue
        if last is not None:
            yield last
        last = segment
    if last is not None:
        yield last
