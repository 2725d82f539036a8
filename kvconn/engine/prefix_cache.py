"""The engine's own blocks: who uses which, and which prefixes they still hold."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvconn.identity import Key

__all__ = ["LocalBlocks"]


class LocalBlocks:
    """Reference-counted blocks; one that nobody refers to keeps its content until it is needed.

    Requests refer to blocks, and so do transfers: memory under a transfer is never handed out,
    whatever becomes of the request (L4).
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        """Blocks that nobody refers to, the first to be handed out first."""
        self._key_of: list[Key | None] = [None] * num_blocks
        self._block_of: dict[Key, int] = {}

    @property
    def free(self) -> int:
        """Blocks that can be handed out."""
        return len(self._idle)

    def leading(self, keys: Iterable[Key]) -> list[int]:
        """The blocks of the leading run of ``keys`` that are here; the caller refers to them."""
        block_of = self._block_of
        found: list[int] = []
        for key in keys:
            block = block_of.get(key)
            if block is None:
                break
            found.append(block)
        self.hold(found)
        return found

    def allocate(self, count: int) -> list[int]:
        """``count`` blocks for the caller, at most :attr:`free`; what they held is forgotten."""
        blocks = [self._idle.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
            self._forget(block)
        return blocks

    def hold(self, blocks: Iterable[int]) -> None:
        """Refer to ``blocks`` once more each."""
        references, idle = self._references, self._idle
        for block in blocks:
            if not references[block]:
                del idle[block]
            references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Refer to ``blocks`` once less each; of a prefix, the deepest are handed out first."""
        references, idle = self._references, self._idle
        for block in reversed(blocks):
            references[block] -= 1
            if not references[block]:
                idle[block] = None

    def publish(self, block: int, key: Key) -> None:
        """``block`` holds (or will, before anybody reads it) the content of ``key``."""
        if self._key_of[block] is None and key not in self._block_of:
            self._key_of[block] = key
            self._block_of[key] = block

    def reset(self) -> None:
        """Forget every prefix; whoever uses a block goes on using it."""
        self._block_of.clear()
        self._key_of = [None] * self.num_blocks

    def _forget(self, block: int) -> None:
        key = self._key_of[block]
        if key is not None:
            self._key_of[block] = None
            del self._block_of[key]
