"""The verbs, and what is common to all of them."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module, metadata
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kvconn.cli.outcome import run

__all__ = ["VERBS", "app", "main", "verb"]

VERBS = {
    "plugins": "List every backend, policy and eviction policy that is installed.",
    "replay": "Run a workload through the reference engine and check every loaded block.",
    "check": "Prove with the conformance kit that a backend keeps the contract.",
    "bench": "Measure a backend beside this machine's limits.",
    "doctor": "Say whether this machine and this configuration are fit.",
    "new": "Write a new backend distribution that passes its own tests.",
    "inspect": "Count, verify and repair a disk store.",
}
"""Verb ``v`` is the function ``v`` of the module ``kvconn.cli.v``; it answers its exit status.

The help stands here so that listing the verbs imports none of them.
"""


class _Verbs(TyperGroup):
    """A group whose commands are imported when they are called."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's signature
        super().__init__(**settings)
        for name, help_text in VERBS.items():
            self.add_command(TyperCommand(name, help=help_text))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's
        """The real command in place of the one that stands in the listing."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, verb(name) if name else listed, rest

    def main(self, *args: Any, **settings: Any) -> NoReturn:  # noqa: ANN401 - typer's signature
        """Here, so that the exit status is ours for the console script and in tests alike."""
        given = args[0] if args else settings.pop("args", None)
        argv = list(sys.argv[1:] if given is None else given) or ["--help"]
        settings["standalone_mode"] = False
        sys.exit(run(partial(super().main, argv, **settings), as_json="--json" in argv))


def verb(name: str) -> Any:  # noqa: ANN401 - typer's own command class moved between releases
    """The command behind a verb; its module is imported now."""
    alone = typer.Typer(add_completion=False)
    alone.command(name, help=VERBS[name])(getattr(import_module(f"kvconn.cli.{name}"), name))
    return get_command(alone)


app = typer.Typer(cls=_Verbs, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvconn {metadata.version('kvconn')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Pluggable KV-cache connectors for LLM inference engines."""


def main() -> None:
    """Run the console script ``kvconn``; ends the process."""
    app()
