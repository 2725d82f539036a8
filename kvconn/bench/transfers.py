"""Stores and loads through a backend's worker, beside a contiguous copy of the same bytes.

The limit is one ``memcpy`` of all the bytes into warm memory by one thread.  It and the transfers
take turns, so that a machine that slows down slows all of them; medians are compared.  Blocks lie
in random order, as they do in an engine that has run for a while.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvconn.backend import WorkerSide
from kvconn.config import build_backend, load_config
from kvconn.geometry import Geometry
from kvconn.identity import DIGEST_BYTES, Namespace, Shard
from kvconn.memory import HostPool, KVCaches
from kvconn.memory.measure import engine_tensors, take_turns
from kvconn.types import BlockRows, Transfer, TransferKind, new_transfer_id

__all__ = ["measure_transfers"]

_LAYERS = 32


def measure_transfers(
    backend: str,
    page_bytes: int,
    *,
    threads: int = 1,
    layers: int = _LAYERS,
    blocks_per_chunk: int = 1,
    total_bytes: int = 256 << 20,
    rounds: int = 7,
) -> list[dict[str, object]]:
    """Two rows, ``store`` and ``load``: ``gbps`` (1e9 bytes a second) and ``ratio`` to the limit.

    One page a layer, ``total_bytes`` moved by each timed transfer.  Takes three times that memory.
    """
    geometry = Geometry(16, page_bytes * layers, blocks_per_chunk)
    chunks = max(1, total_bytes // geometry.chunk_bytes)
    blocks = chunks * blocks_per_chunk
    caches = KVCaches(
        engine_tensors("separate", layers, blocks, page_bytes),
        num_blocks=blocks,
        block_dims=0,
        blocks_per_chunk=blocks_per_chunk,
    )
    capacity = chunks * geometry.slot_bytes
    opened = build_backend(
        load_config(f"{backend}://?capacity={capacity}&copy_threads={threads}").backend
    )
    slots, slot_bytes = opened.pool_size(geometry)
    pool = HostPool(slot_bytes, slots)
    pool.tensor.fill_(1)
    side = opened.open_worker(pool, caches, Namespace("bench"), Shard())
    order = np.random.default_rng(0)
    rows = order.permutation(blocks).reshape(chunks, blocks_per_chunk).tolist()
    places = tuple(order.permutation(chunks).tolist())
    moved = chunks * geometry.chunk_bytes
    source, target = (np.ones(moved, np.uint8) for _ in range(2))
    seconds = take_turns(
        {
            "memcpy": lambda: np.copyto(target, source),
            "store": lambda: _move(side, TransferKind.STORE, places, rows),
            "load": lambda: _move(side, TransferKind.LOAD, places, rows),
        },
        rounds,
    )
    side.close(5.0)
    pool.close()
    return [
        {
            "backend": backend,
            "op": op,
            "page_bytes": page_bytes,
            "chunk_bytes": geometry.chunk_bytes,
            "threads": threads,
            "gbps": round(moved / seconds[op] / 1e9, 2),
            "memcpy_gbps": round(moved / seconds["memcpy"] / 1e9, 2),
            "ratio": round(seconds["memcpy"] / seconds[op], 3),
        }
        for op in ("store", "load")
    ]


def _move(side: WorkerSide, kind: TransferKind, places: Sequence[int], rows: BlockRows) -> None:
    keys = (bytes(DIGEST_BYTES),) * len(places)
    transfer = Transfer(new_transfer_id(), kind, "bench", keys, tuple(places))
    side.submit(transfer, rows)
    while not side.poll():
        side.wait([transfer.id], 1.0)
