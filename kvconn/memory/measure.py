"""How fast blocks move, beside the fastest that this machine copies memory, in one run.

The limit is one contiguous copy of the same bytes into memory that is warm (written before), by
one thread.  It and every copy under test take turns, so that a machine that slows down slows both;
medians are compared.  Tensors, slots and the limit's two buffers are each larger than any cache.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvconn.geometry import SLOT_ALIGNMENT
from kvconn.memory.caches import KVCaches
from kvconn.memory.copies import Copier
from kvconn.memory.pool import HostPool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["LAYOUTS", "engine_tensors", "measure_copies", "take_turns"]

LAYOUTS = ("separate", "one allocation", "K and V")
"""A tensor per layer; one tensor ``[layers, num_blocks, page]``; a tensor ``[2, num_blocks, page]``
for each two pages of a block."""


def measure_copies(
    page_bytes: int,
    layers: int = 32,
    *,
    blocks_per_chunk: int = 1,
    total_bytes: int = 256 << 20,
    threads: int = 1,
    layout: str = "separate",
    scattered_slots: bool = True,
    rounds: int = 7,
) -> list[dict[str, object]]:
    """Gather and scatter ``total_bytes`` in random block order; two rows of figures.

    Keys: ``op`` (``gather``: pages to slots; ``scatter``: slots to pages), ``page_bytes``,
    ``chunk_bytes``, ``threads``, ``layout``, ``scattered_slots`` (slots in random order, as they
    are after some evictions, else ascending), ``gbps`` and ``memcpy_gbps`` (1e9 bytes a second,
    medians of ``rounds``) and ``ratio``, the one over the other.  Takes three times
    ``total_bytes`` of memory and more.
    """
    pages = page_bytes * layers
    chunks = max(1, total_bytes // (pages * blocks_per_chunk))
    num_blocks = chunks * blocks_per_chunk
    caches = KVCaches(
        engine_tensors(layout, layers, num_blocks, page_bytes),
        num_blocks=num_blocks,
        block_dims=0 if layout == "separate" else 1,
        blocks_per_chunk=blocks_per_chunk,
    )
    moved = num_blocks * caches.block_bytes
    slot_bytes = -(-caches.chunk_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
    pool = HostPool(slot_bytes, chunks)
    pool.tensor.fill_(1)
    source, target = (np.ones(moved, np.uint8) for _ in range(2))
    copier = Copier(pool, caches, threads=threads)
    random = np.random.default_rng(0)
    rows = random.permutation(num_blocks).reshape(chunks, blocks_per_chunk).tolist()
    slots = (random.permutation(chunks) if scattered_slots else np.arange(chunks)).tolist()
    seconds = take_turns(
        {
            "memcpy": lambda: np.copyto(target, source),
            "gather": lambda: copier.gather(rows, slots),
            "scatter": lambda: copier.scatter(rows, slots),
        },
        rounds,
    )
    limit = moved / seconds["memcpy"] / 1e9
    return [
        {
            "op": op,
            "page_bytes": page_bytes,
            "chunk_bytes": caches.chunk_bytes,
            "threads": threads,
            "layout": layout,
            "scattered_slots": scattered_slots,
            "gbps": moved / seconds[op] / 1e9,
            "memcpy_gbps": limit,
            "ratio": seconds["memcpy"] / seconds[op],
        }
        for op in ("gather", "scatter")
    ]


def engine_tensors(
    layout: str, layers: int, num_blocks: int, page_bytes: int
) -> Mapping[str, torch.Tensor]:
    """Written, so that no first touch is measured."""
    if layout == "one allocation":
        return {"kv": torch.ones(layers, num_blocks, page_bytes, dtype=torch.uint8)}
    if layout == "separate":
        shape: tuple[int, ...] = (num_blocks, page_bytes)
    elif layout == "K and V":
        shape, layers = (2, num_blocks, page_bytes), layers // 2
    else:
        msg = f"layout {layout!r}: choose one of {', '.join(LAYOUTS)}"
        raise ValueError(msg)
    return {f"layer {i}": torch.ones(shape, dtype=torch.uint8) for i in range(layers)}


def take_turns(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each call, all of them once a round; the first round warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in seconds.items()}
