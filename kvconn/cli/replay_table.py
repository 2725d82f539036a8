"""A replay for people: where the blocks came from, how fast, and whether all was right."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from kvconn.engine.report import ReplayReport

__all__ = ["show"]

Part = tuple[str, int, str]
"""A name, a number of blocks, a style."""

_FULL, _HALF = "━", "╸"


def show(report: ReplayReport, console: Console, *, trace: str, backend: str) -> None:
    """Print ``report``."""
    width = min(console.width, 100)
    console.print(Rule(Text.assemble(("kvconn replay", "bold")), style="dim"), width=width)
    console.print(Padding(Text.assemble(trace, ("  →  ", "dim"), (backend, "bold")), (0, 1)))
    console.print()
    parts = _parts(report)
    console.print(Padding(_bar(parts, width - 2), (0, 1)))
    console.print(Padding(_legend(parts), (0, 1)))
    console.print()
    console.print(Padding(_figures(report), (0, 1)))
    console.print()
    for good, line in _checks(report):
        mark = ("✔ ", "bold green") if good else ("✘ ", "bold red")
        console.print(Padding(Text.assemble(mark, line), (0, 1)))
    console.print(Rule(style="dim"), width=width)


def _parts(report: ReplayReport) -> list[Part]:
    blocks = report.blocks
    tiers = [(tier.name, tier.hits, "bold green") for tier in report.tiers]
    return [
        ("engine", blocks.local_hits, "bold cyan"),
        *tiers,
        ("computed", blocks.computed, "bright_black"),
    ]


def _bar(parts: Sequence[Part], width: int) -> Text:
    """One line as wide as the screen, shared out among ``parts``; what is there at all shows."""
    total = sum(count for _, count, _ in parts) or 1
    bar, shown, end = Text(), 0, 0
    for _, count, style in parts:
        end += count
        cells = max(round(width * end / total) - shown, int(count > 0))
        bar.append(_FULL * cells, style)
        shown += cells
    return bar[:width]


def _legend(parts: Sequence[Part]) -> Text:
    total = sum(count for _, count, _ in parts) or 1
    legend = Text()
    for name, count, style in parts:
        legend.append(f"{_FULL}{_FULL} ", style)
        legend.append(f"{name} {count / total:.1%}    ")
    return legend


def _figures(report: ReplayReport) -> Table:
    """Two columns of figures, the ones people ask for first on top."""
    blocks, loads, stores = report.blocks, report.load_gbps, report.store_gbps
    loaded = sum(tier.loaded_bytes for tier in report.tiers)
    stored = sum(tier.stored_bytes for tier in report.tiers)
    left = [
        ("hit rate", f"{report.hit_rate:.1%}", "hits / queried"),
        ("queried", f"{blocks.queried:,}", "blocks"),
        ("  in the engine", f"{blocks.local_hits:,}", "hits"),
        ("  in the backend", f"{blocks.external_hits:,}", "hits"),
        ("computed", f"{blocks.computed:,}", "blocks"),
        ("accepted", f"{blocks.accepted:,}", "to store"),
        ("evicted", f"{blocks.evicted:,}", "for them"),
    ]
    right = [
        ("requests", f"{report.requests:,}", f"in {report.seconds:.1f} s"),
        ("loaded", _size(loaded), f"at {loads:.2f} GB/s"),
        ("stored", _size(stored), f"at {stores:.2f} GB/s"),
        ("lookup, median", f"{report.lookup_us.p50:,.1f}", "µs"),
        ("lookup, 99th", f"{report.lookup_us.p99:,.1f}", "µs"),
        ("failed loads", f"{report.failures.loads:,}", "chunks"),
        ("failed stores", f"{report.failures.stores:,}", "chunks"),
    ]
    grid = Table.grid(padding=(0, 1))
    for _ in range(2):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(justify="right", style="bold", no_wrap=True)
        grid.add_column(style="dim", no_wrap=True, min_width=9)
    for row in zip(left, right, strict=True):
        grid.add_row(*row[0], *row[1])
    return grid


def _checks(report: ReplayReport) -> list[tuple[bool, str]]:
    skip, leaks = report.skip, report.leaks
    held = {
        "leases": leaks.leases,
        "reservations": leaks.reservations,
        "transfers": leaks.transfers,
        "requests": leaks.requests,
        "engine blocks": leaks.local_blocks,
    }
    left = ", ".join(f"{count:,} {what}" for what, count in held.items() if count)
    compared = (
        f"{report.blocks.checked:,} blocks compared bit for bit, {report.wrong_blocks:,} wrong"
    )
    skipped = (
        f"{skip.requests:,} requests skip reading: {skip.backend_lookups:,} lookups, "
        f"{skip.backend_loads:,} loads, {skip.accepted:,} blocks accepted"
    )
    return [
        (not report.wrong_blocks, compared),
        (not (skip.backend_lookups or skip.backend_loads), skipped),
        (not left, f"still held at the end: {left}" if left else "nothing left behind"),
    ]


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:  # noqa: PLR2004
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"
