"""The scheduler's time: each operation through the whole connector, beside a bare ``dict.get``.

Every timed call gets key objects that nobody has hashed before, as an engine's are when a
request arrives; the reference loops ``dict.get`` over fresh copies of the same keys, in a dict of
as many entries, in turn with the operation.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import TypeVar

from kvconn.config import build_backend, build_policies, load_config
from kvconn.geometry import SLOT_ALIGNMENT, Geometry
from kvconn.identity import DIGEST_BYTES, Key, Namespace
from kvconn.scheduler import SchedulerConnector
from kvconn.types import Request, Transfer

__all__ = ["OPERATIONS", "measure_scheduler"]

OPERATIONS = (
    "lookup",
    "touch",
    "prepare_load",
    "complete_transfer",
    "prepare_store",
    "prepare_store_evict",
)
_GEOMETRY = Geometry(block_tokens=16, block_bytes=SLOT_ALIGNMENT)

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class _Timings:
    """Nanoseconds per call."""

    operation: list[int] = field(default_factory=list)
    reference: list[int] = field(default_factory=list)
    processor: list[int] = field(default_factory=list)
    """Processor time, which leaves out the moments when another process ran."""

    def row(self, op: str, entries: int, keys: int) -> dict[str, object]:
        us = statistics.median(self.operation) / 1000 / keys
        reference = statistics.median(self.reference) / 1000 / keys
        calls = sorted(self.operation)
        return {
            "op": op,
            "entries": entries,
            "keys": keys,
            "us_per_key": round(us, 4),
            "dict_get_us": round(reference, 4),
            "ratio": round(us / reference, 2),
            "call_us_p99": round(calls[int(len(calls) * 0.99)] / 1000, 1),
            "call_us_max": round(calls[-1] / 1000, 1),
            "call_cpu_us_max": round(max(self.processor) / 1000, 1),
        }


class _Bench:
    """One connector over ``cpu`` that holds ``entries`` chunks, and a dict that does."""

    def __init__(self, entries: int, keys_per_call: int, rounds: int, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - reproducible, not secret
        self.entries, self.size, self.rounds = entries, keys_per_call, rounds
        room = keys_per_call * (rounds + 1)
        self.connector = _connector(entries + room)
        self.known = [self.random.randbytes(DIGEST_BYTES) for _ in range(entries)]
        for start in range(0, entries, keys_per_call):
            self._store(self.known[start : start + keys_per_call])
        self.reference = dict.fromkeys(self.known, 0)
        self.random.shuffle(self.known)
        self.timings = {op: _Timings() for op in OPERATIONS}
        self.requests = map(Request, map(str, range(10**9)))

    def _store(self, keys: list[Key]) -> None:
        plan = self.connector.prepare_store(Request("fill"), keys)
        if plan.transfer is not None:
            self.connector.complete_transfer(plan.transfer, [True] * len(plan.accepted))

    def _batches(self) -> Iterator[list[Key]]:
        """Known keys at random, a call's worth at a time, each key object new."""
        for _ in range(self.rounds):
            start = self.random.randrange(self.entries - self.size)
            yield _fresh(self.known[start : start + self.size])

    def _refer(self, keys: list[Key]) -> int:
        """Nanoseconds of a bare ``dict.get`` over fresh copies of ``keys``."""
        get, copies = self.reference.get, _fresh(keys)
        began = perf_counter_ns()
        for key in copies:
            get(key)
        return perf_counter_ns() - began

    def _time(self, op: str, reference: int, call: Callable[[], _Answer]) -> _Answer:
        busy = thread_time_ns()
        began = perf_counter_ns()
        answer = call()
        ended = perf_counter_ns()
        timings = self.timings[op]
        timings.processor.append(thread_time_ns() - busy)
        timings.operation.append(ended - began)
        timings.reference.append(reference)
        return answer

    def read(self) -> None:
        """Lookup, load and its completion, as a request does them."""
        connector = self.connector
        for keys in self._batches():
            request = next(self.requests)
            connector.request_started(request)
            reference = self._refer(keys)
            hits = self._time("lookup", reference, partial(connector.lookup, request, keys))
            if hits != len(keys):
                raise AssertionError(hits)
            load = partial(connector.prepare_load, request, keys)
            self._complete(self._time("prepare_load", reference, load), reference)
            connector.request_finished(request)

    def touch(self) -> None:
        """Touches of keys that nothing has looked at before."""
        request = next(self.requests)
        for keys in self._batches():
            reference = self._refer(keys)
            self._time("touch", reference, partial(self.connector.touch, request, keys))
        self.connector.request_finished(request)

    def write(self, op: str) -> None:
        """Stores of new keys and their completion."""
        connector = self.connector
        for _ in range(self.rounds):
            request = next(self.requests)
            connector.request_started(request)
            keys = [self.random.randbytes(DIGEST_BYTES) for _ in range(self.size)]
            reference = self._refer(keys)
            plan = self._time(op, reference, partial(connector.prepare_store, request, keys))
            self._complete(plan.transfer, reference)
            connector.request_finished(request)

    def _complete(self, transfer: Transfer | None, reference: int) -> None:
        if transfer is None or len(transfer.keys) != self.size:
            raise AssertionError(transfer)
        verdicts = [True] * len(transfer.keys)
        complete = partial(self.connector.complete_transfer, transfer, verdicts)
        self._time("complete_transfer", reference, complete)


def _connector(chunks: int) -> SchedulerConnector:
    config = load_config(f"cpu://?capacity={chunks * _GEOMETRY.slot_bytes}")
    return SchedulerConnector(
        build_backend(config.backend), build_policies(config), _GEOMETRY, Namespace("bench")
    )


def _fresh(keys: list[Key]) -> list[Key]:
    return [bytes(bytearray(key)) for key in keys]


def measure_scheduler(
    entries: int, keys_per_call: int = 64, rounds: int = 300, seed: int = 0
) -> list[dict[str, object]]:
    """One row per operation: medians, their ratio to ``dict.get``, and the longest calls.

    ``complete_transfer`` covers loads and stores.  ``prepare_store`` finds free room,
    ``prepare_store_evict`` a full cache.
    """
    bench = _Bench(entries, keys_per_call, rounds, seed)
    bench.read()
    bench.touch()
    bench.write("prepare_store")
    while bench.connector.stats.evicted == 0:
        bench._store([bench.random.randbytes(DIGEST_BYTES) for _ in range(keys_per_call)])  # noqa: SLF001 - same module
    bench.write("prepare_store_evict")
    bench.connector.close()
    return [bench.timings[op].row(op, entries, keys_per_call) for op in OPERATIONS]
