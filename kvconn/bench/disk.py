"""``put`` and ``get`` of a disk store beside the raw disk, cold and with checksums.

Every round writes new objects over the blocks of those of the round before, as a cache that is full
does, and reads them back in another order past the page cache.  The raw file's objects have the
same size and take turns with them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from kvconn.bench.raw import DEPTHS, RawFile, fio_gbps
from kvconn.blockstore import BlockStoreBackend
from kvconn.blockstore.jobs import Job, Pending
from kvconn.blockstore.operations import Operations
from kvconn.blockstore.seal import object_bytes
from kvconn.config import PluginChoice, build_backend
from kvconn.errors import ConfigurationError, KvconnError
from kvconn.identity import Namespace, Shard, content_key, object_id
from kvconn.memory import HostPool
from kvconn.types import Transfer, TransferKind, new_transfer_id

__all__ = ["CHUNK_BYTES", "measure_disk"]

CHUNK_BYTES = (256 << 10, 1 << 20, 4 << 20)
_WAVE = 16
"""The objects of one call are at most half of these."""
_OVERLAP = 5
"""Calls at once, twice as many where a call moves one object after the other."""


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
    """What a worker's threads do: seal and put, get and check, some calls at a time."""

    def __init__(self, choice: PluginChoice, chunk_bytes: int, total_bytes: int) -> None:
        self._name = choice.name
        self._directory = str(getattr(choice.options, "path"))  # noqa: B009 - only some have it
        self._chunk_bytes = chunk_bytes
        self._size = object_bytes(chunk_bytes)
        self._count = max(_WAVE, total_bytes // self._size)
        self._namespace = Namespace("bench", extra=(("chunk_bytes", chunk_bytes),))
        backend = build_backend(choice)
        if not isinstance(backend, BlockStoreBackend):
            msg = f"{choice.name} is no block store: bench measures those, and cpu"
            raise ConfigurationError(msg)
        self._store = backend.Store(choice.options)
        self._store.open(self._namespace)
        self._operations = Operations(self._store)
        parallel = self._store.capabilities.parallel
        self._lanes, self._wave = (_OVERLAP, _WAVE // 2) if parallel else (2 * _OVERLAP, 1)
        self._pool = HostPool(self._size, self._lanes * self._wave)
        self._pool.tensor.fill_(1)
        self._ids: list[bytes] = []
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        self._random = random.Random(0)  # noqa: S311 - reproducible, not secret

    def __enter__(self) -> Self:
        self._raw = RawFile(self._directory, self._size, self._count)
        self._raw.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._raw.__exit__(None, None, None)
        self._store.delete(self._ids)
        self._store.close()
        self._pool.close()

    def round(self, number: int, *, warm_up: bool) -> None:
        """Everything once, in turn."""
        order = list(range(self._count))
        self._random.shuffle(order)
        seconds = {f"write {d}": self._raw.write(d, order) for d in DEPTHS}
        old, digest = self._ids, self._namespace.digest
        self._ids = [
            object_id(digest, 0, Shard(), content_key(number, i)) for i in range(self._count)
        ]
        seconds["put"] = self._move(TransferKind.STORE, order, old)
        seconds |= {f"read {d}": self._raw.read(d, order) for d in DEPTHS}
        self._random.shuffle(order)
        seconds["get"] = self._move(TransferKind.LOAD, order, [])
        if not warm_up:
            for name, taken in seconds.items():
                self._seconds[name].append(taken)

    def _move(self, kind: TransferKind, order: Sequence[int], old: Sequence[bytes]) -> float:
        """Seconds to move every object; ``old`` goes meanwhile, as many at a time."""
        waves = [order[at : at + self._wave] for at in range(0, self._count, self._wave)]
        began = time.perf_counter()
        with ThreadPoolExecutor(self._lanes) as threads:
            lanes = [
                threads.submit(self._lane, kind, waves[lane :: self._lanes], old, lane)
                for lane in range(self._lanes)
            ]
            moved = sum(lane.result() for lane in lanes)
        if moved != self._count:
            msg = f"{self._name} moved {moved} of {self._count} objects: is there room?"
            raise KvconnError(msg)
        return time.perf_counter() - began

    def _lane(
        self, kind: TransferKind, waves: Sequence[Sequence[int]], old: Sequence[bytes], lane: int
    ) -> int:
        slots = list(range(lane * self._wave, (lane + 1) * self._wave))
        buffers = [self._pool.buffer(slot) for slot in slots]
        moved = 0
        for wave in waves:
            names = [self._ids[i] for i in wave]
            transfer = Transfer(new_transfer_id(), kind, "bench", tuple(names))
            job = Job(
                Pending(transfer, [], names, math.inf), range(len(wave)),
                slots[: len(wave)], buffers[: len(wave)], self._chunk_bytes,
                [old[i] for i in wave] if old else [],
            )  # fmt: skip
            job.run(self._operations)
            moved += sum(job.verdicts)
        return moved

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
