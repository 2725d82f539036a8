"""Others' disk paths beside ours, on the same directory, in one run.

A file per key as ``diskcache`` keeps it, and the functions of vLLM's file-system tier where vLLM is
installed.  Each moves the same objects of the same size, in turn; medians of the rounds.  Ours
checks every byte and accounts for every block; the others do not.

    pip install kvconn kvconn-disk kvconn-native diskcache
    python benchmarks/disk_peers.py DIRECTORY [--total-mib 256] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import shutil
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from kvconn_disk import DiskConfig
from kvconn_disk.store import DiskStore
from rich.console import Console
from rich.table import Table

from kvconn.blockstore.seal import object_bytes, seal, seals_hold
from kvconn.identity import Namespace, Shard, content_key, object_id

SIZES = (256 << 10, 1 << 20, 4 << 20)
THREADS = 8
WAVE = 16
LANES = 5
"""Calls at once of a peer that works in parallel by itself."""

Peer = Any
Move = Callable[[Sequence[int], Sequence[memoryview]], None]


class Ours:
    """Sealed objects through the store, checked when they come back."""

    name = "kvconn-disk"

    def __init__(self, directory: Path, payload: int) -> None:
        self.payload = payload
        self.space = Namespace("peers", extra=(("payload", payload),))
        self.store = DiskStore(DiskConfig(path=directory / "kvconn", capacity=1 << 40))
        self.store.open(self.space)
        self.parallel = self.store.capabilities.parallel
        self.turn = 0

    def ids(self, numbers: Sequence[int], turn: int) -> list[bytes]:
        return [
            object_id(self.space.digest, 0, Shard(), content_key(turn, number))
            for number in numbers
        ]

    def put(self, numbers: Sequence[int], buffers: Sequence[memoryview]) -> None:
        ids = self.ids(numbers, self.turn)
        self.store.delete(self.ids(numbers, self.turn - 1))  # as a full cache does
        seal(buffers, ids, self.payload)
        _insist(self.store.put(ids, buffers))

    def get(self, numbers: Sequence[int], buffers: Sequence[memoryview]) -> None:
        ids = self.ids(numbers, self.turn)
        _insist(self.store.get(ids, buffers))
        _insist(seals_hold(buffers, ids, self.payload))

    def close(self) -> None:
        self.store.close()


def _insist(verdicts: Sequence[bool]) -> None:
    if not all(verdicts):
        raise OSError(verdicts)


class DiskCache:
    """A file per key and an SQLite index; values are copied, as its interface wants them."""

    name = "diskcache"
    parallel = False

    def __init__(self, directory: Path, payload: int) -> None:
        del payload
        from diskcache import Cache  # noqa: PLC0415 - may not be there

        self.cache = Cache(str(directory / "diskcache"), size_limit=1 << 40, eviction_policy="none")
        self.turn = 0

    def put(self, numbers: Sequence[int], buffers: Sequence[memoryview]) -> None:
        for number, buffer in zip(numbers, buffers, strict=True):
            self.cache.set(number, bytes(buffer))

    def get(self, numbers: Sequence[int], buffers: Sequence[memoryview]) -> None:
        for number, buffer in zip(numbers, buffers, strict=True):
            with self.cache.read(number) as file:
                file.readinto(buffer)

    def close(self) -> None:
        self.cache.close()


class VllmFiles:
    """``batch_store_block`` and ``batch_load_block``, in C where vLLM was built with them."""

    name = "vLLM fs tier"
    parallel = False

    def __init__(self, directory: Path, payload: int) -> None:
        from vllm.v1.kv_offload.tiering.fs import io  # noqa: PLC0415 - may not be there

        self.io = io
        self.directory = directory / "vllm"
        self.directory.mkdir()
        self.size = object_bytes(payload)
        self.turn = 0

    def paths(self, numbers: Sequence[int], turn: int) -> list[str]:
        return [str(self.directory / f"{turn}-{number}") for number in numbers]

    def put(self, numbers: Sequence[int], buffers: Sequence[memoryview]) -> None:
        for path in self.paths(numbers, self.turn - 1):
            with suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - as its manager would
        for path, buffer in zip(self.paths(numbers, self.turn), buffers, strict=True):
            self.io.batch_store_block([path], buffer, [0], self.size)

    def get(self, numbers: Sequence[int], buffers: Sequence[memoryview]) -> None:
        for path, buffer in zip(self.paths(numbers, self.turn), buffers, strict=True):
            self.io.batch_load_block([path], buffer, [0], self.size)

    def close(self) -> None:
        pass


def seconds(peer: Peer, move: Move, order: Sequence[int], buffers: Sequence[memoryview]) -> float:
    """Waves over ``THREADS`` threads; a wave is one call where a peer works in parallel itself."""
    size = WAVE if peer.parallel else 1
    waves = [order[at : at + size] for at in range(0, len(order), size)]
    lanes = LANES if peer.parallel else THREADS

    def lane(number: int) -> None:
        own = buffers[number * size : (number + 1) * size]
        for wave in waves[number::lanes]:
            move(wave, own[: len(wave)])

    began = perf_counter()
    with ThreadPoolExecutor(lanes) as pool:
        for done in [pool.submit(lane, number) for number in range(lanes)]:
            done.result()
    return perf_counter() - began


def _make_cold(directory: Path) -> None:
    """On the disk and out of the page cache, whoever wrote it how."""
    os.sync()
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(directory: Path, payload: int, total: int, rounds: int) -> list[dict[str, object]]:
    """One row per peer and way."""
    size = object_bytes(payload)
    count = max(WAVE, total // size)
    buffers = [memoryview(mmap.mmap(-1, size)) for _ in range(LANES * WAVE)]
    for number, buffer in enumerate(buffers):
        buffer[:] = bytes([number + 1]) * size
    peers = []
    for kind in (Ours, DiskCache, VllmFiles):
        with suppress(ImportError):
            peers.append(kind(directory, payload))
    taken: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    order = list(range(count))
    for turn in range(rounds + 1):
        for peer in peers:
            peer.turn += 1
            for way in ("put", "get"):
                random.shuffle(order)
                _make_cold(directory)
                spent = seconds(peer, partial(getattr(peer, way)), order, buffers)
                if turn:
                    taken[peer.name, way].append(spent)
    for peer in peers:
        peer.close()
    moved = count * size
    ours = {way: statistics.median(taken["kvconn-disk", way]) for way in ("put", "get")}
    return [
        {"peer": name, "op": way, "chunk_bytes": payload,
         "gbps": round(moved / statistics.median(spent) / 1e9, 3),
         "ours_over_it": round(statistics.median(spent) / ours[way], 2)}
        for (name, way), spent in taken.items()
    ]  # fmt: skip


def main() -> None:
    """Print a table, or a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--total-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    rows: list[dict[str, object]] = []
    for payload in SIZES:
        place = told.directory / f"peers-{os.getpid()}-{payload}"
        place.mkdir(parents=True)
        try:
            rows += measure(place, payload, told.total_mib << 20, told.rounds)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    if told.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    table = Table(title="Disk paths on one directory, in one run")
    for title in ("chunk", "op", "peer", "GB/s", "kvconn over it"):
        table.add_column(title, justify="right" if title in {"GB/s", "kvconn over it"} else "left")
    for row in rows:
        cells = (f"{int(str(row['chunk_bytes'])) >> 10:,} KiB", row["op"], row["peer"])
        table.add_row(*map(str, cells), f"{row['gbps']:.2f}", f"{row['ours_over_it']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
