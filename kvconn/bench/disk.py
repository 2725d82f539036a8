"""Stores and loads of a disk backend's worker, beside the raw disk, cold and with checksums.

Every round writes new objects over the blocks of those of the round before, as a cache that is full
does, and reads them back in another order past the page cache.  The raw file's objects have the
same size and take turns with them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Self

import torch

from kvconn.backend import WorkerSide
from kvconn.bench.raw import DEPTHS, RawFile, fio_gbps
from kvconn.blockstore.seal import object_bytes
from kvconn.config import build_backend
from kvconn.config.choice import PluginChoice
from kvconn.errors import KvconnError
from kvconn.geometry import Geometry
from kvconn.identity import Key, Namespace, Shard, content_key
from kvconn.memory import HostPool, KVCaches
from kvconn.types import Transfer, TransferKind, new_transfer_id

__all__ = ["CHUNK_BYTES", "measure_disk"]

CHUNK_BYTES = (256 << 10, 1 << 20, 4 << 20)
_WAVE = 16
"""Chunks of one transfer."""
_AHEAD = 3
"""Transfers in flight."""


def measure_disk(
    choice: PluginChoice, chunk_bytes: int, *, total_bytes: int = 256 << 20, rounds: int = 5
) -> list[dict[str, object]]:
    """Two rows, ``put`` and ``get``: ``gbps``, ``limit_gbps`` and ``ratio``, medians of ``rounds``.

    ``choice`` needs the option ``path``: the raw file lies in that directory.
    """
    with _Bench(choice, chunk_bytes, total_bytes) as bench:
        for number in range(rounds + 1):
            bench.round(number, warm_up=not number)
        return bench.rows()


class _Bench:
    def __init__(self, choice: PluginChoice, chunk_bytes: int, total_bytes: int) -> None:
        self._name = choice.name
        self._directory = str(getattr(choice.options, "path"))  # noqa: B009 - only some have it
        self._chunk_bytes = chunk_bytes
        self._size = object_bytes(chunk_bytes)
        self._count = max(_WAVE, total_bytes // self._size)
        geometry = Geometry(16, chunk_bytes)
        namespace = Namespace("bench", extra=(("chunk_bytes", chunk_bytes),))
        self._backend = build_backend(choice)
        self._backend.open_scheduler(geometry, namespace)
        self._pages = torch.ones(self._count, chunk_bytes, dtype=torch.uint8)
        slots, slot_bytes = self._backend.pool_size(geometry)
        self._pool = HostPool(slot_bytes, max(slots, 2 * _WAVE))
        self._pool.tensor.fill_(1)
        caches = KVCaches({"layer": self._pages}, num_blocks=self._count)
        self._side: WorkerSide = self._backend.open_worker(self._pool, caches, namespace, Shard())
        self._keys: list[Key] = []
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._random = random.Random(0)  # noqa: S311 - reproducible, not secret

    def __enter__(self) -> Self:
        self._raw = RawFile(self._directory, self._size, self._count)
        self._raw.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.__exit__(None, None, None)
        self._backend.reset()
        self._side.close(5.0)
        self._backend.close(30.0)
        self._pool.close()

    def round(self, number: int, *, warm_up: bool) -> None:
        """Everything once, in turn."""
        order = list(range(self._count))
        self._random.shuffle(order)
        seconds = {f"write {d}": self._raw.write(d, order) for d in DEPTHS}
        old, self._keys = self._keys, [content_key(number, i) for i in range(self._count)]
        seconds["put"] = self._move(TransferKind.STORE, order, old)
        seconds |= {f"read {d}": self._raw.read(d, order) for d in DEPTHS}
        self._random.shuffle(order)
        seconds["get"] = self._move(TransferKind.LOAD, order, [])
        if not warm_up:
            for name, taken in seconds.items():
                self._seconds[name].append(taken)

    def _move(self, kind: TransferKind, order: Sequence[int], old: Sequence[Key]) -> float:
        """Seconds to move every chunk, some transfers at a time; ``old`` goes meanwhile."""
        waiting = [
            Transfer(
                new_transfer_id(), kind, "bench",
                tuple(self._keys[i] for i in order[at : at + _WAVE]),
                evictions=tuple(old[at : at + _WAVE]),
            )
            for at in range(0, self._count, _WAVE)
        ]  # fmt: skip
        rows = {key: [i] for i, key in enumerate(self._keys)}
        running: set[int] = set()
        began = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < _AHEAD:
                transfer = waiting.pop()
                running.add(transfer.id)
                self._side.submit(transfer, [rows[key] for key in transfer.keys])
            self._side.wait([min(running)], 1.0)
            for ended, verdicts in self._side.poll():
                running.discard(ended)
                if not all(verdicts):
                    msg = f"{self._name} did not {kind.name.lower()} a chunk: is there room?"
                    raise KvconnError(msg)
        return time.perf_counter() - began

    def rows(self) -> list[dict[str, object]]:
        """The figures."""
        moved = self._count * self._size
        median = {name: moved / statistics.median(s) / 1e9 for name, s in self._seconds.items()}
        fio = fio_gbps(self._directory, self._size, moved)
        rows: list[dict[str, object]] = []
        for op, way in (("put", "write"), ("get", "read")):
            limit = max(*(median[f"{way} {depth}"] for depth in DEPTHS), fio.get(way, 0.0))
            rows.append(
                {
                    "backend": self._name,
                    "op": op,
                    "page_bytes": self._chunk_bytes,
                    "chunk_bytes": self._chunk_bytes,
                    "threads": 1,
                    "gbps": round(median[op], 3),
                    "limit_gbps": round(limit, 3),
                    "ratio": round(median[op] / limit, 3),
                }
            )
        return rows
