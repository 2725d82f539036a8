"""Whether any byte belongs to two pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kvconn.errors import CannotPage
from kvconn.memory.segments import Segment

__all__ = ["check_disjoint"]


def check_disjoint(segments: Sequence[Segment], num_blocks: int) -> None:
    """Raise :class:`CannotPage` when two pages, of whatever blocks and tensors, share a byte."""
    for segment in segments:
        if num_blocks > 1 and segment.stride < segment.page_bytes:
            msg = (
                f"tensor {segment.name} has blocks {segment.stride} bytes apart and pages of "
                f"{segment.page_bytes}: blocks overlap; register one that is not expanded"
            )
            raise CannotPage(msg)
    for cluster in _clusters(segments, num_blocks):
        if not _interleave(cluster):
            _check_each_page(cluster, num_blocks)


def _clusters(segments: Sequence[Segment], num_blocks: int) -> Iterator[list[Segment]]:
    """Segments whose address ranges touch each other, together; the rest cannot collide."""
    cluster: list[Segment] = []
    end = 0
    for segment in sorted(segments, key=lambda s: s.base):
        if cluster and segment.base >= end:
            yield cluster
            cluster = []
        cluster.append(segment)
        end = max(end, segment.end(num_blocks))
    if cluster:
        yield cluster


def _interleave(cluster: Sequence[Segment]) -> bool:
    """Whether pages of one common stride provably fit side by side, without listing them."""
    stride = cluster[0].stride
    if len(cluster) == 1:
        return True
    if not stride or any(segment.stride != stride for segment in cluster):
        return False
    start = cluster[0].base
    spots = sorted(((s.base - start) % stride, s.page_bytes) for s in cluster)
    ends = [at + nbytes for at, nbytes in spots]
    starts = [at for at, _ in spots[1:]] + [spots[0][0] + stride]
    return all(end <= following for end, following in zip(ends, starts, strict=True))


def _check_each_page(cluster: Sequence[Segment], num_blocks: int) -> None:
    """The exact answer, for layouts that :func:`_interleave` cannot decide."""
    blocks = np.arange(num_blocks, dtype=np.int64)
    starts = np.concatenate([s.base + blocks * s.stride for s in cluster])
    sizes = np.repeat(np.array([s.page_bytes for s in cluster], np.int64), num_blocks)
    order = np.argsort(starts, kind="stable")
    clash = np.flatnonzero(starts[order][:-1] + sizes[order][:-1] > starts[order][1:])
    if len(clash):
        first, second = (cluster[int(order[clash[0] + i]) // num_blocks].name for i in (0, 1))
        msg = (
            f"tensors {first} and {second} share bytes without being the same memory: "
            f"register each byte of the KV cache once"
        )
        raise CannotPage(msg)
