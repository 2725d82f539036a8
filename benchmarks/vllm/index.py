"""kvconn's scheduler side beside vLLM's own in-memory index, call by call in one run.

vLLM's ``CPUOffloadingManager`` answers one key a lookup and pins in ``prepare_load``; kvconn
leases in ``lookup``, asks its policies and goes through the whole connector.  Both get key objects
that nobody has hashed before.

Usage, in an environment with vLLM: ``python benchmarks/vllm/index.py [ENTRIES ...]``
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from time import perf_counter_ns

from rich.console import Console
from rich.table import Table
from vllm.v1.kv_offload.base import OffloadKey, ReqContext
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from kvconn.config import build_backend, build_policies, load_config
from kvconn.geometry import SLOT_ALIGNMENT, Geometry
from kvconn.identity import Namespace
from kvconn.scheduler import SchedulerConnector
from kvconn.types import Request

KEYS, ROUNDS, KEY_BYTES = 64, 200, 32
Call = Callable[[list[bytes]], object]


class Kvconn:
    """The whole connector over ``cpu``."""

    def __init__(self, entries: int) -> None:
        config = load_config(f"cpu://?capacity={entries * SLOT_ALIGNMENT}")
        geometry = Geometry(block_tokens=16, block_bytes=SLOT_ALIGNMENT)
        self._connector = SchedulerConnector(
            build_backend(config.backend), build_policies(config), geometry, Namespace("bench")
        )
        self._request = Request("")
        self.start("fill")

    def start(self, name: str) -> None:
        self._connector.request_finished(self._request)
        self._request = Request(name)
        self._connector.request_started(self._request)

    def lookup(self, keys: list[bytes]) -> None:
        self._connector.lookup(self._request, keys)

    def touch(self, keys: list[bytes]) -> None:
        self._connector.touch(self._request, keys)

    def prepare_load(self, keys: list[bytes]) -> None:
        self._transfer = self._connector.prepare_load(self._request, keys)

    def prepare_store(self, keys: list[bytes]) -> None:
        self._transfer = self._connector.prepare_store(self._request, keys).transfer

    def complete_load(self, keys: list[bytes]) -> None:
        self._connector.complete_transfer(self._transfer, [True] * len(keys))

    complete_store = complete_load


class Vllm:
    """vLLM's manager with its default policy."""

    def __init__(self, entries: int) -> None:
        self._manager = CPUOffloadingManager(entries)
        self._context = ReqContext("")
        self.start("fill")

    def start(self, name: str) -> None:
        self._manager.on_request_finished(self._context)
        self._context = ReqContext(name)
        self._manager.on_new_request(self._context)

    def lookup(self, keys: list[OffloadKey]) -> None:
        lookup, context = self._manager.lookup, self._context
        for key in keys:
            lookup(key, context)

    def touch(self, keys: list[OffloadKey]) -> None:
        self._manager.touch(keys, self._context)

    def prepare_load(self, keys: list[OffloadKey]) -> None:
        self._manager.prepare_load(keys, self._context)

    def prepare_store(self, keys: list[OffloadKey]) -> None:
        self._manager.prepare_store(keys, self._context)

    def complete_load(self, keys: list[OffloadKey]) -> None:
        self._manager.complete_load(keys, self._context)

    def complete_store(self, keys: list[OffloadKey]) -> None:
        self._manager.complete_store(keys, self._context)


def measure(entries: int, seed: int = 0) -> dict[str, dict[str, float]]:  # noqa: C901 - one script
    """Median microseconds a key, by operation and system."""
    rng = random.Random(seed)
    room = KEYS * (ROUNDS + 1)
    systems = {"kvconn": Kvconn(entries + room), "vLLM": Vllm(entries + room)}
    known = [rng.randbytes(KEY_BYTES) for _ in range(entries)]
    for system in systems.values():
        for start in range(0, entries, KEYS):
            system.prepare_store(keys := known[start : start + KEYS])
            system.complete_store(keys)
    taken: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    reference = dict.fromkeys(known, 0)

    def time(op: str, method: str, keys: list[bytes]) -> None:
        # In turn, since the first of them brings the stored keys into the processor's cache.
        for name in sorted(systems, reverse=len(taken[op]["dict.get"]) % 2 == 0):
            fresh = [bytes(bytearray(key)) for key in keys]
            call: Call = getattr(systems[name], method)
            began = perf_counter_ns()
            call(fresh)
            taken[op][name].append(perf_counter_ns() - began)

    def refer(op: str, keys: list[bytes]) -> None:
        get, fresh = reference.get, [bytes(bytearray(key)) for key in keys]
        began = perf_counter_ns()
        for key in fresh:
            get(key)
        taken[op]["dict.get"].append(perf_counter_ns() - began)

    def run(ops: tuple[str, ...], keys: list[bytes], suffix: str = "") -> None:
        for op in ops:
            time(op + suffix, op, keys)
            refer(op + suffix, reference_keys())

    def reference_keys() -> list[bytes]:
        return rng.sample(known, KEYS)

    for i in range(ROUNDS):
        for system in systems.values():
            system.start(f"read {i}")
        run(("touch",), rng.sample(known, KEYS))
        run(("lookup", "prepare_load", "complete_load"), rng.sample(known, KEYS))
    for suffix in ("", " (evicting)"):
        for i in range(ROUNDS):
            for system in systems.values():
                system.start(f"write {i} {suffix}")
            keys = [rng.randbytes(KEY_BYTES) for _ in range(KEYS)]
            run(("prepare_store", "complete_store"), keys, suffix)
    return {
        op: {name: statistics.median(ns) / 1000 / KEYS for name, ns in by.items()}
        for op, by in taken.items()
    }


def main(arguments: list[str]) -> None:
    """Print a table for each number of entries."""
    for entries in [int(a) for a in arguments] or [10_000, 1_000_000]:
        table = Table(title=f"µs per key, {KEYS} keys a call, {entries:,} entries")
        for column in ("operation", "dict.get", "kvconn", "vLLM", "vLLM / kvconn"):
            table.add_column(column, justify="left" if column == "operation" else "right")
        for op, us in measure(entries).items():
            ratio = us["vLLM"] / us["kvconn"]
            cells = [f"{us[name]:.3f}" for name in ("dict.get", "kvconn", "vLLM")]
            table.add_row(op, *cells, f"{ratio:.1f}")
        Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
