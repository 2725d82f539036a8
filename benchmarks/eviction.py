"""Hits of each installed eviction policy on a trace, by capacity.

A request looks its whole blocks up, touches them, and stores what is missing; a hit counts only
while the prefix before it hit too.  No bytes move: this is the index alone.

Usage: ``python benchmarks/eviction.py TRACE``
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from kvconn.identity import Key, content_key
from kvconn.index import ChunkIndex
from kvconn.registry import EVICTION, available, load_eviction_class
from kvconn.workload import read_trace

SHARES = (0.01, 0.05, 0.10, 0.25)


def hit_share(prompts: list[list[Key]], policy: str, capacity: int) -> float:
    """Hits as a share of the blocks asked for."""
    index = ChunkIndex(capacity, load_eviction_class(policy)(capacity))
    asked = hits = 0
    for keys in prompts:
        found = index.lookup("request", keys)
        asked += len(keys)
        hits += found
        index.touch(keys)
        accepted, entries, _ = index.reserve(keys[found:])
        index.stored(accepted, entries, [True] * len(accepted))
        index.touch(keys, again=True)
        index.release("request")
    return hits / asked


def main(trace: str) -> None:
    """Print a table: a row per capacity, a column per policy."""
    names: dict[int, Key] = {}
    prompts = [
        [names.setdefault(id_, content_key(id_)) for id_ in request.whole_blocks]
        for request in read_trace(trace)
    ]
    policies = sorted(available(EVICTION))
    table = Table(title=f"hits, {len(names):,} distinct blocks")
    for column in ("capacity", *policies):
        table.add_column(column, justify="right")
    for share in SHARES:
        cells = [f"{hit_share(prompts, p, int(len(names) * share)):.3f}" for p in policies]
        table.add_row(f"{share:.0%}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1])
