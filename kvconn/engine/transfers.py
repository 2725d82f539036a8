"""Transfers in flight, and the engine blocks that each of them keeps from being handed out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, compress
from typing import TYPE_CHECKING

from kvconn.ranks import RankVerdicts
from kvconn.types import ABSENT, Transfer, TransferKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvconn.engine.prefix_cache import LocalBlocks

__all__ = ["Ended", "TransfersInFlight"]


@dataclass(frozen=True, slots=True)
class Ended:
    """A transfer that ended on every rank."""

    transfer: Transfer
    verdicts: list[bool]
    moved: list[int]
    """The blocks that moved, as indices in their request; those that were absent left out."""


@dataclass(slots=True)
class _Running:
    transfer: Transfer
    indices: list[list[int]]
    """Blocks of each key as indices in their request; those that are absent left out."""
    held: list[int]
    """Engine blocks that it keeps."""


class TransfersInFlight:
    """From ``prepare_load`` or ``prepare_store`` to the last rank's verdict (L4)."""

    def __init__(self, ranks: int, blocks: LocalBlocks, blocks_per_chunk: int) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._verdicts = RankVerdicts(ranks)
        self._blocks = blocks
        self._running: dict[int, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, transfer: Transfer, rows: list[list[int]], chunks: Sequence[int]) -> None:
        """``transfer`` will be handed to every rank with ``rows``, which are these ``chunks``."""
        held = [block for row in rows for block in row if block != ABSENT]
        indices = [
            [i for i, block in enumerate(row, chunk * len(row)) if block != ABSENT]
            for chunk, row in zip(chunks, rows, strict=True)
        ]
        self._blocks.hold(held)
        self._running[transfer.id] = _Running(transfer, indices, held)
        self._verdicts.expect(transfer)

    def stores_of(self, request_id: str) -> list[int]:
        """The stores of a request that still keep its blocks."""
        return [
            id_ for id_, running in self._running.items()
            if running.held and running.transfer.request_id == request_id
            and running.transfer.kind is TransferKind.STORE
        ]  # fmt: skip

    def flushed(self, transfer_ids: Iterable[int]) -> list[int]:
        """These stores no longer read engine memory: let go of their blocks.

        Answers which they were, as indices in their request.
        """
        let_go: list[int] = []
        for id_ in transfer_ids:
            running = self._running[id_]
            let_go += chain.from_iterable(running.indices)
            self._blocks.release(running.held)
            running.held = []
        return let_go

    def oldest(self, *kinds: TransferKind) -> int | None:
        """The transfer (of one of ``kinds``, if any are given) that has run longest."""
        running = self._running.items()
        return next((i for i, r in running if not kinds or r.transfer.kind in kinds), None)

    @property
    def blocks_storing(self) -> int:
        """Blocks on their way to the backend, or from one tier of it to another."""
        return sum(
            len(running.transfer.keys) * self._blocks_per_chunk
            for running in self._running.values()
            if running.transfer.kind is not TransferKind.LOAD
        )

    def report(self, rank: int, transfer_id: int, verdicts: Sequence[bool]) -> Ended | None:
        """A rank ended a transfer; the whole once all have, its blocks let go of."""
        whole = self._verdicts.report(rank, transfer_id, verdicts)
        if whole is None:
            return None
        running = self._running.pop(transfer_id)
        self._blocks.release(running.held)
        moved = compress(running.indices, whole[1])
        return Ended(*whole, list(chain.from_iterable(moved)))
