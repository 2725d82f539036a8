"""``kvconn plugins``: what is installed, and with ``--check`` whether it can be used."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from kvconn.registry import GROUPS, Found, installed, is_forbidden
from kvconn.registry.probe import Verdict, probe_all

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["plugins"]

Row = dict[str, int | str | None]

_STYLES = {"ok": "green", "broken": "bold red", "forbidden": "yellow", "found": "dim"}


def plugins(
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Import each one in a process of its own.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that one of these imports may take.")
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """List what is installed; 1 if something that was checked is broken."""
    found = [plugin for group in GROUPS for plugin in installed(group)]
    verdicts = _checked(found, timeout) if check else {}
    rows = [_row(plugin, verdicts.get(plugin)) for plugin in found]
    if as_json:
        typer.echo(json.dumps({"plugins": rows}, indent=2))
    else:
        _show(rows, Console(highlight=False))
    return int(any(row["error"] for row in rows))


def _checked(found: Sequence[Found], timeout_s: float) -> dict[Found, Verdict]:
    allowed = [plugin for plugin in found if not is_forbidden(plugin.name)]
    terminal = Console(stderr=True)
    return dict(
        track(
            probe_all(allowed, timeout_s),
            "checking",
            total=len(allowed),
            console=terminal,
            transient=True,
            disable=not terminal.is_terminal,
        )
    )


def _row(plugin: Found, verdict: Verdict | None) -> Row:
    if verdict is None:
        state = "forbidden" if is_forbidden(plugin.name) else "found"
        verdict = Verdict()
    else:
        state = "broken" if verdict.error else "ok"
    return {
        "kind": plugin.kind,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "contract_version": verdict.contract_version,
        "state": state,
        "error": verdict.error,
    }


def _show(rows: Sequence[Row], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("kind", "name", "distribution", "version", "contract", "state"):
        table.add_column(title, overflow="fold")
    kind = None
    for row in rows:
        if kind not in (None, row["kind"]):
            table.add_section()
        state = Text(str(row["state"]), _STYLES[str(row["state"])])
        shown = ("name", "distribution", "version", "contract_version")
        cells = ["-" if row[field] is None else str(row[field]) for field in shown]
        table.add_row("" if kind == row["kind"] else str(row["kind"]), *map(Text, cells), state)
        kind = row["kind"]
    console.print(table)
    for row in rows:
        if row["error"]:
            console.print(Text(f"{row['error']}\n"))
