"""``kvconn bench``: a backend beside this machine's limits, in one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from kvconn.bench.scheduler import measure_scheduler
from kvconn.bench.transfers import measure_transfers
from kvconn.config import load_config
from kvconn.errors import ConfigurationError

__all__ = ["bench"]

Row = dict[str, Any]

PAGE_BYTES = (4 << 10, 16 << 10, 64 << 10, 256 << 10)
ENTRIES = (10_000, 1_000_000)
KEYS_PER_CALL = (64, 8)
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
    backend: Annotated[str, typer.Option(help="The backend, as a URL; cpu for now.")] = "cpu://",
    total_mib: Annotated[
        int, typer.Option("--total-mib", min=1, help="MiB moved by each timed copy.")
    ] = 256,
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are printed.")] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes: half a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Measure moving blocks against memcpy, and scheduler calls against dict.get."""
    name = _memory_backend(backend)
    entries, keys = (ENTRIES[:1], KEYS_PER_CALL[:1]) if quick else (ENTRIES, KEYS_PER_CALL)
    # The scheduler first: what copies leave in the caches and the allocator would count for it.
    jobs: list[tuple[str, Any]] = [
        ("scheduler", (size, count)) for size in entries for count in keys
    ]
    jobs += [
        ("transfers", (page, threads))
        for page in (PAGE_BYTES[1:2] if quick else PAGE_BYTES)
        for threads in (1, 2)
    ]
    found: dict[str, list[Row]] = {"transfers": [], "scheduler": []}
    for kind, arguments in _progress(jobs):
        if kind == "scheduler":
            found[kind] += measure_scheduler(*arguments)
        else:
            page, threads = arguments
            found[kind] += _apart(name, page, threads, total_mib << 20, rounds)
    limits = {"memcpy_gbps": max(row["memcpy_gbps"] for row in found["transfers"])}
    document = {"limits": limits, **found}
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(found, Console(highlight=False))
    return 0


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


def _memory_backend(url: str) -> str:
    name = url.partition(":")[0]
    if name != "cpu":
        msg = f"bench measures memory so far and not {name!r}: use --backend cpu://"
        raise ConfigurationError(msg)
    load_config(f"{name}://?capacity=1MiB" if url in (name, f"{name}://") else url)
    return name


def _progress(jobs: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    terminal = Console(stderr=True)
    yield from track(
        jobs, "measuring", console=terminal, transient=True, disable=not terminal.is_terminal
    )


def _show(found: dict[str, list[Row]], console: Console) -> None:
    moves = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Moving blocks, beside memcpy")
    for title in ("backend", "op"):
        moves.add_column(title)
    for title in ("page", "chunk", "threads", "GB/s", "memcpy", "ratio"):
        moves.add_column(title, justify="right")
    for row in found["transfers"]:
        moves.add_row(
            row["backend"],
            row["op"],
            f"{row['page_bytes'] >> 10} KiB",
            f"{row['chunk_bytes'] >> 10:,} KiB",
            str(row["threads"]),
            f"{row['gbps']:.1f}",
            f"{row['memcpy_gbps']:.1f}",
            _judged(row["ratio"], 0.45 if row["page_bytes"] < 16 << 10 else 0.6, more=True),
        )
    calls = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title="Scheduler calls, beside dict.get",
    )
    calls.add_column("op", no_wrap=True)
    for title in ("entries", "keys", "µs/key", "dict.get", "ratio", "reach", "longest"):
        calls.add_column(title, justify="right", no_wrap=True)
    for row in found["scheduler"]:
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
    console.print(moves)
    console.print(calls)
    console.print("longest: processor time of the longest call, in µs")


def _judged(ratio: float, reach: float, *, more: bool) -> Text:
    good = ratio >= reach if more else ratio <= reach
    return Text(f"{ratio:.2f}", "green" if good else "bold red")
