"""A lookup that the fast of two tiers answers, beside the same lookup over that tier alone.

Both connectors hold the same chunks; they take turns, with fresh key objects each time; medians.

    python benchmarks/tiers_lookup.py [--entries 10000] [--keys 64] [--rounds 400]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter_ns

from kvconn.connector import Connector
from kvconn.geometry import SLOT_ALIGNMENT, Geometry
from kvconn.identity import Namespace
from kvconn.scheduler import SchedulerConnector
from kvconn.types import Request

GEOMETRY = Geometry(block_tokens=16, block_bytes=SLOT_ALIGNMENT)


def fill(scheduler: SchedulerConnector, keys: list[bytes], size: int) -> None:
    """Store everything, as far as the scheduler's side goes."""
    request = Request("fill")
    for start in range(0, len(keys), size):
        plan = scheduler.prepare_store(request, keys[start : start + size])
        for transfer in (plan.transfer, *scheduler.step()):
            if transfer is not None:
                scheduler.complete_transfer(transfer, [True] * len(transfer.keys))
    scheduler.request_finished(request)


def timed(call: Callable[[], object]) -> int:
    """Nanoseconds."""
    began = perf_counter_ns()
    call()
    return perf_counter_ns() - began


def main() -> None:
    """Print both medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--entries", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=400)
    told = parser.parse_args()
    draw = random.Random(0)
    keys = [draw.randbytes(16) for _ in range(told.entries)]
    fast = f"cpu://?capacity={(told.entries + 64) * SLOT_ALIGNMENT}"
    with ExitStack() as stack:
        place = stack.enter_context(tempfile.TemporaryDirectory())
        slow = f"disk://{place}/store?capacity=16GiB&staging=64MiB"
        engines = {}
        for name, backend in (("alone", fast), ("tiers", [fast, slow])):
            connector = stack.enter_context(Connector.load({"backend": backend}))
            engines[name] = connector.open_scheduler(GEOMETRY, Namespace("bench"))
            fill(engines[name], keys, told.keys)
        taken: dict[str, list[int]] = {name: [] for name in engines}
        for number in range(told.rounds):
            start = draw.randrange(told.entries - told.keys)
            for name, scheduler in engines.items():
                fresh = [bytes(bytearray(key)) for key in keys[start : start + told.keys]]
                request = Request(f"{number}")
                scheduler.request_started(request)
                taken[name].append(timed(lambda s=scheduler, r=request, k=fresh: s.lookup(r, k)))
                scheduler.request_finished(request)
    alone, tiers = (statistics.median(taken[name]) / 1000 for name in ("alone", "tiers"))
    sys.stdout.write(
        f"lookup of {told.keys} keys, {told.entries:,} entries: {alone:.1f} µs alone, "
        f"{tiers:.1f} µs in front of a disk, ratio {tiers / alone:.2f}\n"
    )


if __name__ == "__main__":
    main()
