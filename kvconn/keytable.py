"""Which key an entry stands for."""

from __future__ import annotations

from kvconn.identity import Key

__all__ = ["KeyTable"]

SPAN_BITS = 10


class KeyTable:
    """From small integers to keys, in dicts of 1,024 consecutive integers.

    A list would do the same, but the garbage collector follows every element of a list and none
    of a dict of ``int`` and ``bytes``; with a million keys that is a pause of 20 ms.
    """

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[dict[int, Key]] = []
        """``spans[entry >> SPAN_BITS][entry]``; hot loops read it without a call."""

    def __getitem__(self, entry: int) -> Key:
        return self.spans[entry >> SPAN_BITS][entry]

    def reach(self, entries: int) -> None:
        """Make room for all entries below ``entries``."""
        while len(self.spans) << SPAN_BITS < entries:
            self.spans.append({})
