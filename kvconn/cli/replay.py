"""``kvconn replay``: a workload through the reference engine, every loaded block checked."""

from __future__ import annotations

import json
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvconn.cli.replay_table import show
from kvconn.config import redact
from kvconn.engine import KVShape
from kvconn.engine.replay import replay as run_replay
from kvconn.types import WriteMode
from kvconn.workload import BLOCK_TOKENS, read_trace, sample_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvconn.engine import Engine

__all__ = ["replay"]

_DEFAULT = "cpu://?capacity=256MiB"


def replay(
    trace: Annotated[
        Path | None,
        typer.Argument(help="A trace, .jsonl or .jsonl.gz; a packaged sample if left out."),
    ] = None,
    *,
    backend: Annotated[
        list[str],
        typer.Option(help="A URL, or a .toml or .json file; several are tiers, fastest first."),
    ] = [_DEFAULT],  # noqa: B006 - typer shows it in the help and copies it
    write: Annotated[
        WriteMode,
        typer.Option(help="Slower tiers get what is stored, or what faster ones evict."),
    ] = "write_through",
    local_blocks: Annotated[
        int | None,
        typer.Option(min=1, help="Blocks in the engine; else twice what the longest prompt has."),
    ] = None,
    page_bytes: Annotated[
        int, typer.Option(min=8, help="Bytes of one block in one layer, a multiple of 8.")
    ] = 4096,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 4,
    blocks_per_chunk: Annotated[
        int, typer.Option(min=1, help="Blocks that are stored as one object.")
    ] = 1,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Replay only the first so many requests.")
    ] = None,
    skip_fraction: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of requests that must not read any cache."),
    ] = 0.0,
    async_scheduling: Annotated[
        bool, typer.Option("--async-scheduling", help="Plan each step before the last has ended.")
    ] = False,
    fault_every: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="The slowest tier fails for a quarter of every so many seconds."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides which requests skip.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Run a workload; 1 if a block was wrong, something leaked, or a skip was not kept."""
    path = sample_path() if trace is None else trace
    requests = list(islice(read_trace(path), limit))
    shape = KVShape(
        num_blocks=local_blocks or 2 * max(1, *(len(request.hash_ids) for request in requests)),
        block_tokens=BLOCK_TOKENS,
        layers=layers,
        page_bytes=page_bytes,
        blocks_per_chunk=blocks_per_chunk,
    )
    with _progress(len(requests)) as on_progress:
        report = run_replay(
            requests,
            backend[0] if len(backend) == 1 else {"backend": backend, "write": write},
            shape,
            skip_fraction=skip_fraction,
            seed=seed,
            asynchronous=async_scheduling,
            fault_every_s=fault_every,
            on_progress=on_progress,
        )
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    else:
        name = "the packaged sample" if trace is None else path.name
        shown = "  over  ".join(map(redact, backend))
        show(report, Console(highlight=False), trace=name, backend=shown)
    return 0 if report.good else 1


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, Engine], None]]:
    """A bar on standard error where that is a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("replaying"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[hit_rate]:.1%} hits"),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=total, hit_rate=0.0)

        def on_progress(ended: int, engine: Engine) -> None:
            progress.update(task, completed=ended, hit_rate=engine.figures.hit_rate)

        yield on_progress
