"""``kvconn new``: a backend distribution that works, to be made one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvconn.scaffold import generate

__all__ = ["new"]


def new(
    name: Annotated[str, typer.Argument(help="Of the backend, as in its URL: my-store.")],
    *,
    into: Annotated[Path, typer.Option(help="Where its folder is made.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Write a new backend distribution: package, tests that run the kit, tox matrix, CI."""
    folder, *files = generate(name, into)
    relative = [str(file.relative_to(folder)) for file in files]
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "files": relative}, indent=2))
        return
    console = Console(highlight=False)
    console.print(f"[bold]{folder}[/]")
    for file in sorted(relative):
        console.print(f"  {file}")
    package = next(file for file in relative if file.endswith("store.py"))
    console.print(
        f"\nIt works as it is.  Put your storage into [bold]{package}[/], then\n\n"
        f"  cd {folder}\n"
        "  pip install --editable '.\\[testing]'\n"
        "  pytest                  # the conformance kit\n"
        "  kvconn plugins --check  # is it found"
    )
