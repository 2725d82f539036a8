"""One rank: the memory, the model that fills it, and the connector's worker half."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from kvconn.engine.content import BlockContent
from kvconn.engine.figures import BusyTime
from kvconn.engine.plan import Move
from kvconn.types import ABSENT, Transfer, TransferKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvconn.backend import Verdicts
    from kvconn.engine.paged import PagedKV
    from kvconn.engine.plan import Work
    from kvconn.identity import Key
    from kvconn.worker import WorkerConnector

__all__ = ["EngineWorker"]


class EngineWorker:
    """Executes what the scheduler planned, and checks every block that a load brings."""

    def __init__(self, kv: PagedKV, connector: WorkerConnector, rank: int) -> None:
        self.connector = connector
        self.wrong_blocks = 0
        """Blocks found to hold other bytes than their key's, after a load or by a request."""
        self.checked_blocks = 0
        self.loading, self.storing = BusyTime(), BusyTime()
        self._content = BlockContent(kv.pages, first_page=rank * len(kv.pages))
        self._running: dict[int, tuple[Transfer, Move]] = {}
        self._ended: list[tuple[int, Verdicts]] = []

    def execute(self, work: Work) -> None:
        """One step.  A store is submitted after the computation that it depends on."""
        for wire in work.tier_moves:
            self._move(wire)
        for move in work.loads:
            # Pages are used again: a load that wrote nothing could find the right bytes there.
            self._content.spoil([b for row in move.rows for b in row if b != ABSENT])
        for move in work.loads:
            self._submit(move, self.loading)
        self._hear()
        self._content.write(work.blocks, work.keys)
        self._content.spoil(work.nameless)
        for move in work.stores:
            self._submit(move, self.storing)
        self._hear()

    def _move(self, wire: bytes) -> None:
        """A transfer between tiers: begin it, and report it like any other."""
        transfer = Transfer.from_bytes(wire)
        self._running[transfer.id] = transfer, Move(wire, [], [])
        self.connector.submit(transfer, [])

    def poll(self) -> list[tuple[int, Verdicts]]:
        """``(transfer id, verdicts)`` of what ended since the last call."""
        self._hear()
        ended, self._ended = self._ended, []
        return ended

    def read(self, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """Compare ``blocks`` with what they should hold, bit for bit."""
        self.checked_blocks += len(blocks)
        self.wrong_blocks += self._content.wrong(blocks, keys)

    def _submit(self, move: Move, busy: BusyTime) -> None:
        transfer = Transfer.from_bytes(move.wire)
        self._running[transfer.id] = transfer, move
        busy.start()
        self.connector.submit(transfer, move.rows)

    def _hear(self) -> None:
        """Take verdicts as soon as they are there: rates are measured by it."""
        loaded: list[tuple[Move, Verdicts]] = []
        for transfer_id, verdicts in self.connector.poll():
            transfer, move = self._running.pop(transfer_id)
            if transfer.kind is TransferKind.LOAD:
                self.loading.end()
                loaded.append((move, verdicts))
            elif transfer.kind is TransferKind.STORE:
                self.storing.end()
            self._ended.append((transfer_id, verdicts))
        for move, verdicts in loaded:
            self._check(move, verdicts)

    def _check(self, move: Move, verdicts: Verdicts) -> None:
        """Check what is said to have been loaded, before anybody can write over it."""
        good = [i for i, moved in enumerate(verdicts) if moved]
        pairs = [
            (block, key)
            for block, key in zip(
                chain.from_iterable(move.rows[i] for i in good),
                chain.from_iterable(move.block_keys[i] for i in good),
                strict=True,
            )
            if block != ABSENT
        ]
        self.read([block for block, _ in pairs], [key for _, key in pairs])
