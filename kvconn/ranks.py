"""Several ranks, one verdict per key: good only if it was good on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvconn.types import Transfer

__all__ = ["RankVerdicts"]


@dataclass(slots=True)
class _Waiting:
    transfer: Transfer
    verdicts: list[bool]
    heard: set[int] = field(default_factory=set)


class RankVerdicts:
    """Collects what ranks report, in any order and in different steps, and combines it."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._waiting: dict[int, _Waiting] = {}

    def expect(self, transfer: Transfer) -> None:
        """``transfer`` was handed to every rank."""
        self._waiting[transfer.id] = _Waiting(transfer, [True] * len(transfer.keys))

    def report(
        self, rank: int, transfer_id: int, verdicts: Sequence[bool] | None
    ) -> tuple[Transfer, list[bool]] | None:
        """Rank ``rank`` ended a transfer; the whole, once the last rank has reported.

        A missing verdict has failed, all of them if there are none; a rank that reports twice or
        does not exist, or a transfer that nobody expects, changes nothing.
        """
        waiting = self._waiting.get(transfer_id)
        if waiting is None or rank in waiting.heard or not 0 <= rank < self._ranks:
            return None
        waiting.heard.add(rank)
        verdicts = verdicts or ()
        for i in range(len(waiting.verdicts)):
            if i >= len(verdicts) or not verdicts[i]:
                waiting.verdicts[i] = False
        if len(waiting.heard) < self._ranks:
            return None
        del self._waiting[transfer_id]
        return waiting.transfer, waiting.verdicts

    @property
    def waiting(self) -> int:
        """Transfers that at least one rank has not reported."""
        return len(self._waiting)
