"""Whether a backend's answer is one that the contract allows."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import islice

from kvconn.errors import KvconnError
from kvconn.identity import Key
from kvconn.types import BlockState, StorePlan, Transfer, TransferKind

__all__ = ["BrokenAnswer", "check_load", "check_moves", "check_plan", "leading_hits"]

_MISS, _PENDING = int(BlockState.MISS), int(BlockState.PENDING)
_ONLY_HITS = bytes(int(state == BlockState.HIT) for state in range(256))
"""Translates states so that whatever is not a hit, nonsense included, is a miss."""


class BrokenAnswer(KvconnError):
    """A backend answered what the contract does not allow; handled as if it had raised."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the backend answered {what}")


def leading_hits(answer: Sequence[BlockState] | bytes, count: int) -> tuple[int, bool]:
    """``(length of the leading run of hits, whether the state after it is pending)``."""
    states = answer if type(answer) is bytes else bytes(answer)
    if len(states) != count:
        raise BrokenAnswer(f"{len(states)} states for {count} keys")
    hits = states.translate(_ONLY_HITS).find(_MISS)
    if hits < 0:
        return count, False
    return hits, states[hits] == _PENDING


def check_load(transfer: Transfer, keys: list[Key]) -> None:
    """A load names a leading run of the keys that were asked for."""
    if transfer.kind is not TransferKind.LOAD:
        raise BrokenAnswer("a load that is none")
    if transfer.keys != tuple(islice(keys, len(transfer.keys))):
        raise BrokenAnswer("a load of other keys than the leading ones asked for")


def check_plan(plan: StorePlan, keys: list[Key]) -> None:
    """A plan accepts offered keys only, each once, and its transfer moves exactly these."""
    if not isinstance(plan, StorePlan) or not isinstance(plan.evicted, Sized):
        raise BrokenAnswer("something other than a StorePlan")
    if plan.transfer is None:
        if plan.accepted:
            raise BrokenAnswer("accepted keys without a transfer")
        return
    if plan.accepted != plan.transfer.keys:
        raise BrokenAnswer("a transfer of other keys than the accepted ones")
    if plan.transfer.kind is not TransferKind.STORE:
        raise BrokenAnswer("a store that is none")
    accepted = set(plan.accepted)
    if len(accepted) < len(plan.accepted) or not accepted.issubset(keys):
        raise BrokenAnswer("accepted keys that were not offered, or twice")


def check_moves(answer: Sequence[Transfer] | None) -> list[Transfer]:
    """What a step answered, as a list of moves."""
    moves = list(answer or ())
    for move in moves:
        if move.kind is not TransferKind.MOVE or not move.keys:
            raise BrokenAnswer(f"a step with a {move.kind.name} of {len(move.keys)} keys")
    return moves
