"""``kvconn doctor``: whether this machine and this configuration are fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvconn.cli.outcome import without_secrets
from kvconn.config import redact
from kvconn.doctor import Finding, Serve, Verdict, examine
from kvconn.doctor.vllm import configuration_to_paste

__all__ = ["doctor"]

_MARKS = {
    Verdict.GOOD: Text("✔", "green"),
    Verdict.DOUBT: Text("!", "yellow"),
    Verdict.BAD: Text("✘", "bold red"),
}


def doctor(
    *,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="A backend's URL; several are tiers.")
    ] = None,
    vllm: Annotated[
        str | None,
        typer.Option(
            "--vllm", metavar="ARGUMENTS", help="What will follow `vllm serve`, in quotes."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Look at versions, plugins, memory and disks, and move one block; 1 if something is bad."""
    serve = Serve.of(vllm) if vllm is not None else None
    backends = backend or (serve.backends if serve is not None else [])
    found = [_clean(finding) for finding in examine(backends, serve)]
    pasted = configuration_to_paste([redact(url) for url in backends]) if backends else ""
    bad = any(finding.verdict is Verdict.BAD for finding in found)
    if as_json:
        document = {"good": not bad, "findings": [asdict(f) for f in found], "vllm": pasted}
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(found, pasted, Console(highlight=False))
    return int(bad)


def _clean(finding: Finding) -> Finding:
    return Finding(finding.about, finding.verdict, without_secrets(finding.says))


def _show(found: list[Finding], pasted: str, console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in found:
        table.add_row(_MARKS[finding.verdict], finding.about, finding.says)
    console.print(table)
    if pasted:
        console.print("\nvllm serve MODEL --kv-transfer-config \\")
        print(f"  '{pasted}'")  # noqa: T201 - one line, however wide: it is copied
