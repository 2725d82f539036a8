"""A store into the fast tier and its copy into the slow one: good only where both are."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvconn.identity import Key

__all__ = ["Pairs"]


class Pairs:
    """Holds the verdicts of whichever ends first.

    The slow tier reads the same pages.  What the engine takes back of its store (pages that were
    written over, a rank that failed) must not be found there either, and neither before the store
    is known to be good (L3).
    """

    def __init__(self) -> None:
        self._store_of: dict[int, int] = {}
        self._move_of: dict[int, int] = {}
        self._said: dict[int, Mapping[Key, bool]] = {}

    def bind(self, store: int, move: int) -> None:
        """By their transfers' ids."""
        self._move_of[store] = move
        self._store_of[move] = store

    def ended(
        self, transfer: int, said: Mapping[Key, bool]
    ) -> list[tuple[int, Mapping[Key, bool]]]:
        """The transfers whose verdicts are known now, each with them."""
        if (move := self._move_of.get(transfer)) is not None:
            if move in self._said:
                return [(transfer, said), (move, self._both(transfer, move, said))]
            self._said[transfer] = said
        elif (store := self._store_of.get(transfer)) is not None:
            if store not in self._said:
                self._said[transfer] = said
                return []
            return [(transfer, self._both(store, transfer, said))]
        return [(transfer, said)]

    def _both(self, store: int, move: int, said: Mapping[Key, bool]) -> dict[Key, bool]:
        del self._move_of[store], self._store_of[move]
        other = self._said.pop(store if store in self._said else move)
        return {key: good and other[key] for key, good in said.items() if key in other}
