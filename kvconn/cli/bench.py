"""``kvconn bench``: a backend beside this machine's limits, in one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from kvconn.bench.disk import CHUNK_BYTES, measure_disk
from kvconn.bench.scheduler import measure_scheduler
from kvconn.bench.transfers import measure_transfers
from kvconn.config import PluginChoice, load_config
from kvconn.errors import ConfigurationError

__all__ = ["bench"]

Row = dict[str, Any]

PAGE_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10)
ENTRIES = (10_000, 1_000_000)
KEYS_PER_CALL = (64, 8)
DISK_WAYS = {"put": "write_gbps", "get": "read_gbps"}
REACH = {
    "lookup": 3.5,
    "touch": 3.0,
    "prepare_load": 5.0,
    "complete_transfer": 5.0,
    "prepare_store": 10.0,
    "prepare_store_evict": 15.0,
}
"""Multiples of a ``dict.get`` that an operation may take, at 64 keys a call."""


def bench(
    *,
    backend: Annotated[
        str, typer.Option(help="The backend, as a URL: cpu, or one that takes a path.")
    ] = "cpu://",
    total_mib: Annotated[
        int, typer.Option("--total-mib", min=1, help="MiB moved by each timed copy.")
    ] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are printed.")] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes: half a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Measure a backend beside this machine's limits, in one run.

    Blocks of memory beside memcpy and scheduler calls beside dict.get; a disk beside the raw disk.
    """
    choice = _choice(backend)
    disk = hasattr(choice.options, "path")
    memory = choice.name if choice.name == "cpu" else None
    if memory is None and not disk:
        msg = f"bench knows no limit for {choice.name!r}: use --backend cpu:// or a disk"
        raise ConfigurationError(msg)
    total = total_mib << 20
    jobs = _disk_jobs(choice, total, rounds, quick) if disk else _memory_jobs(total, rounds, quick)
    found: dict[str, list[Row]] = {"transfers": [], "scheduler": []}
    for kind, measure in _progress(jobs):
        found[kind] += measure()
    document = {"limits": _limits(found["transfers"]), **found}
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(found, Console(highlight=False))
    return 0


Measure = Callable[[], list[Row]]


def _memory_jobs(total: int, rounds: int, quick: bool) -> list[tuple[str, Measure]]:
    """The scheduler first: what copies leave in the caches and the allocator would count for it."""
    entries, keys = (ENTRIES[:1], KEYS_PER_CALL[:1]) if quick else (ENTRIES, KEYS_PER_CALL)
    return [
        *(
            ("scheduler", partial(measure_scheduler, size, count))
            for size in entries
            for count in keys
        ),
        *(
            ("transfers", partial(_apart, "cpu", page, threads, total, rounds))
            for page in (PAGE_BYTES[1:2] if quick else PAGE_BYTES)
            for threads in (1, 2)
        ),
    ]


def _disk_jobs(
    choice: PluginChoice,
    total: int,
    rounds: int,
    quick: bool,
) -> list[tuple[str, Measure]]:
    return [
        ("transfers", partial(measure_disk, choice, chunk, total_bytes=total, rounds=rounds))
        for chunk in (CHUNK_BYTES[1:2] if quick else CHUNK_BYTES)
    ]


def _limits(transfers: list[Row]) -> Row:
    """The best that this machine did, beside which transfers are judged."""
    limits: Row = {}
    for row in transfers:
        if "memcpy_gbps" in row:
            name, value = "memcpy_gbps", row["memcpy_gbps"]
        else:
            name, value = DISK_WAYS[row["op"]], row["limit_gbps"]
        limits[name] = max(limits.get(name, 0.0), value)
    return limits


def _apart(name: str, page: int, threads: int, total_bytes: int, rounds: int) -> list[Row]:
    """Measure in a process of its own, as an engine allocates its tensors: once, at the start.

    Tensors in memory that an earlier measurement gave back lie on scattered physical pages, and
    every copy of small pages is a third slower for it.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        measured = process.submit(
            measure_transfers,
            name,
            page,
            threads=threads,
            total_bytes=total_bytes,
            rounds=rounds,
        )
        return measured.result()


def _choice(url: str) -> PluginChoice:
    """``cpu`` may be named without a capacity: each size is measured with one of its own."""
    name = url.partition(":")[0]
    bare = name == "cpu" and url in {name, f"{name}://"}
    return load_config("cpu://?capacity=1MiB" if bare else url).backend


def _progress(jobs: list[tuple[str, Measure]]) -> Iterator[tuple[str, Measure]]:
    terminal = Console(stderr=True)
    yield from track(
        jobs, "measuring", console=terminal, transient=True, disable=not terminal.is_terminal
    )


def _show(found: dict[str, list[Row]], console: Console) -> None:
    if found["transfers"]:
        console.print(_moves(found["transfers"]))
    if found["scheduler"]:
        console.print(_calls(found["scheduler"]))
        console.print("longest: processor time of the longest call, in µs")


def _moves(rows: list[Row]) -> Table:
    limit = "memcpy" if "memcpy_gbps" in rows[0] else "disk"
    moves = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"Moving blocks, beside {limit}")
    for title in ("backend", "op"):
        moves.add_column(title)
    for title in ("page", "chunk", "threads", "GB/s", limit, "ratio"):
        moves.add_column(title, justify="right")
    for row in rows:
        moves.add_row(
            row["backend"],
            row["op"],
            f"{row['page_bytes'] >> 10:,} KiB",
            f"{row['chunk_bytes'] >> 10:,} KiB",
            str(row["threads"]),
            f"{row['gbps']:.2f}",
            f"{row.get('memcpy_gbps', row.get('limit_gbps')):.2f}",
            _judged(row["ratio"], _wanted(row), more=True),
        )
    return moves


def _wanted(row: Row) -> float:
    """The ratio to reach."""
    if "limit_gbps" in row:
        return 0.9
    return 0.45 if row["page_bytes"] < PAGE_BYTES[1] else 0.6


def _calls(rows: list[Row]) -> Table:
    calls = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title="Scheduler calls, beside dict.get",
    )
    calls.add_column("op", no_wrap=True)
    for title in ("entries", "keys", "µs/key", "dict.get", "ratio", "reach", "longest"):
        calls.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        reach = REACH[row["op"]]
        told = row["keys"] == KEYS_PER_CALL[0]
        calls.add_row(
            row["op"],
            f"{row['entries'] // 1000:,}k",
            str(row["keys"]),
            f"{row['us_per_key']:.3f}",
            f"{row['dict_get_us']:.3f}",
            _judged(row["ratio"], reach, more=False) if told else f"{row['ratio']:.2f}",
            f"{reach:g}" if told else "-",
            f"{row['call_cpu_us_max']:.0f}",
        )
    return calls


def _judged(ratio: float, reach: float, *, more: bool) -> Text:
    good = ratio >= reach if more else ratio <= reach
    return Text(f"{ratio:.2f}", "green" if good else "bold red")
