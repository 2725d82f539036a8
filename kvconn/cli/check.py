"""``kvconn check``: the conformance kit over a backend, from the command line."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from kvconn.cli.outcome import without_secrets
from kvconn.errors import ConfigurationError
from kvconn.hookspecs import CONTRACT_VERSION
from kvconn.testing import KIT_VERSION
from kvconn.testing.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvconn.testing.checking import Findings, Outcome

__all__ = ["check"]

_ENDS = ("passed", "failed", "skipped")


class ProfileName(StrEnum):
    """How long it may take."""

    quick = "quick"
    full = "full"
    soak = "soak"


class WriteName(StrEnum):
    """How several backends are composed."""

    write_through = "write_through"
    write_back = "write_back"


def check(
    *,
    backend: Annotated[
        list[str], typer.Option("--backend", help="A backend's URL; several are tiers.")
    ],
    profile: Annotated[
        ProfileName, typer.Option(help="Under a minute, minutes, or an hour.")
    ] = ProfileName.quick,
    write: Annotated[
        WriteName, typer.Option(help="With several backends.")
    ] = WriteName.write_through,
    only: Annotated[
        str, typer.Option("--only", "-k", help="Tests whose names match, as pytest's -k.")
    ] = "",
    junit: Annotated[Path | None, typer.Option("--junit", help="Write a JUnit file there.")] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show skips and whole tracebacks.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Prove that a backend keeps the contract; 1 if a rule is broken."""
    run, choices = _kit()
    names = [choice.name for choice in choices(backend)]
    with _progress() as on_test:
        found = run(
            backend, write=write.value, profile=profile.value, only=only, junit=junit,
            on_test=on_test,
        )  # fmt: skip
    if only and not found.outcomes and not found.broken:
        msg = f"no test of the kit matches {only!r}: try --only L1"
        raise ConfigurationError(msg)
    if as_json:
        typer.echo(json.dumps(_document(found, names, profile.value), indent=2))
    else:
        _show(found, names, profile.value, Console(highlight=False), verbose=verbose)
    return int(not found.good)


def _kit() -> tuple[Any, Any]:
    try:
        from kvconn.testing.checked import choices  # noqa: PLC0415 - they need pytest
        from kvconn.testing.checking import check as run  # noqa: PLC0415
    except ImportError as error:
        name = getattr(error, "name", None)
        if name not in {"pytest", "hypothesis"} and "kvconn[testing]" not in str(error):
            raise
    else:
        return run, choices
    msg = "the conformance kit runs on pytest and hypothesis: pip install 'kvconn[testing]'"
    raise ConfigurationError(msg)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error where that is a terminal, and nothing elsewhere."""
    console = Console(stderr=True)
    columns = TextColumn("checking"), BarColumn(), MofNCompleteColumn()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("checking", total=None)

        def on_test(done: int, everything: int) -> None:
            bar.update(task, completed=done - 1, total=everything)

        yield on_test


def _rules(found: Findings) -> list[str]:
    there = {outcome.rule for outcome in found.outcomes}
    return [rule for rule in RULES if rule in there]


def _document(found: Findings, names: list[str], profile: str) -> dict[str, Any]:
    def rule(name: str) -> dict[str, Any]:
        counts = {o: found.count(o, name) for o in _ENDS}
        tests = [_without_rule(o) for o in found.outcomes if o.rule == name]
        return {"rule": name, "says": RULES[name], **counts, "tests": tests}

    return {
        "backend": names,
        "kit": KIT_VERSION,
        "contract": CONTRACT_VERSION,
        "profile": profile,
        "good": found.good,
        **{o: found.count(o) for o in _ENDS},
        "seconds": round(found.seconds, 3),
        "broken": [without_secrets(text) for text in found.broken],
        "rules": [rule(name) for name in _rules(found)],
    }


def _without_rule(outcome: Outcome) -> dict[str, Any]:
    said = asdict(outcome)
    del said["rule"]
    said["details"] = without_secrets(said["details"])
    said["seconds"] = round(said["seconds"], 3)
    return said


def _show(
    found: Findings, names: list[str], profile: str, console: Console, *, verbose: bool
) -> None:
    title = f"{' over '.join(names)} · kit {KIT_VERSION} · {profile}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title)
    table.title_justify = "left"
    for column in ("", "rule"):
        table.add_column(column, no_wrap=True)
    table.add_column("says")
    for column in _ENDS:
        table.add_column(column, justify="right", no_wrap=True)
    for rule in _rules(found):
        counts = [found.count(end, rule) for end in _ENDS]
        passed, failed, _ = counts
        told = (f"{count:,}" if count else "" for count in counts)
        style = "" if passed or failed else "dim"
        table.add_row(_mark(passed, failed), rule, RULES[rule], *told, style=style)
    console.print(table)
    for outcome in found.outcomes:
        if outcome.outcome == "failed":
            console.print(f"[bold red]✘[/] {outcome.test}")
            console.print(Text(f"    {without_secrets(outcome.reason)}", "red"))
            if verbose:
                console.print(Text(without_secrets(outcome.details), "dim"))
        elif verbose and outcome.outcome == "skipped":
            console.print(Text(f"- {outcome.test}: {outcome.reason}", "dim"))
    for text in found.broken:
        console.print(Text(without_secrets(text), "red"))
    for reason, count in _skips(found).items():
        console.print(Text(f"{count} skipped: {reason}", "dim"))
    verdict = "keeps the contract" if found.good else "[bold red]breaks the contract[/]"
    console.print(
        f"{found.count('passed')} passed, {found.count('failed')} failed, "
        f"{found.count('skipped')} skipped in {found.seconds:.0f} s: it {verdict}"
    )


def _mark(passed: int, failed: int) -> Text:
    if failed:
        return Text("✘", "bold red")
    return Text("✔", "green") if passed else Text("-", "dim")


def _skips(found: Findings) -> dict[str, int]:
    counts: dict[str, int] = {}
    for outcome in found.outcomes:
        if outcome.outcome == "skipped":
            counts[outcome.reason] = counts.get(outcome.reason, 0) + 1
    return counts
