"""``kvconn inspect``: what lies in a disk store, whether it is whole, and away with what is not."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ByteSize
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from kvconn.errors import ConfigurationError, UnknownPlugin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["inspect"]

_MEANING = ("model", "revision", "dtype", "layout", "block_tokens", "blocks_per_chunk")


def inspect(
    directory: Annotated[Path, typer.Argument(help="A directory that disk:// was given.")],
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every object.")] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Verify, and remove what is bad.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Look into a disk store, also while engines use it; 1 if it holds a bad object afterwards."""
    look = _inspector()
    if not directory.is_dir():
        msg = f"{directory} is no directory: name the one that disk:// was given"
        raise ConfigurationError(msg)
    with _progress() as on_object:
        found = look(directory, verify=verify, repair=repair, on_object=on_object)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "bad": found.bad}, indent=2, default=str))
    else:
        _show(found, Console(highlight=False), verified=verify or repair)
    return int(found.bad > 0)


def _inspector() -> Any:  # noqa: ANN401 - the disk plugin's, which may not be there
    try:
        return import_module("kvconn_disk.inspection").inspect_directory
    except ImportError:
        msg = "a disk store is inspected by its own plugin: pip install kvconn-disk"
    raise UnknownPlugin(msg)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error where that is a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("verifying", total=None)

        def on_object(done: int, everything: int) -> None:
            progress.update(task, completed=done, total=everything)

        yield on_object


def _show(found: Any, console: Console, *, verified: bool) -> None:  # noqa: ANN401 - as above
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("namespace", no_wrap=True)
    for title in ("objects", "size", "last used", "oldest", *(["bad"] if verified else [])):
        table.add_column(title, justify="right", no_wrap=True)
    for space in found.namespaces:
        row = [
            space.digest[:12],
            f"{space.objects:,}",
            _size(space.bytes),
            _ago(space.newest_use),
            _ago(space.oldest_use),
        ]
        bad = Text(f"{len(space.bad):,}", "bold red" if space.bad else "green")
        table.add_row(*row, *([bad] if verified else []))
    console.print(table)
    for space in found.namespaces:
        console.print(f"{space.digest[:12]}  {_meaning(space.meaning)}", style="dim")
    console.print(
        f"{_size(found.bytes)} in all, {found.spares:,} spare files, "
        f"open in {found.engines:,} stores"
    )
    removed = sum(space.removed for space in found.namespaces)
    if removed:
        console.print(f"removed {removed:,} bad objects")
    elif found.bad:
        console.print(f"[bold red]{found.bad:,} bad objects[/]: remove them with --repair")


def _meaning(meaning: dict[str, object]) -> str:
    shown = [f"{name}={meaning[name]}" for name in _MEANING[1:] if meaning.get(name)]
    return " ".join([str(meaning.get("model", "?")), *shown])


def _ago(when: float | None) -> str:
    if when is None:
        return "-"
    seconds = max(0.0, time.time() - when)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _size(count: float) -> str:
    return ByteSize(count).human_readable(separator=" ")
