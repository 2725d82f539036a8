"""What every block holds: words decided by its key and its place, so that any wrong one is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from kvconn.memory.intraop import one_intraop_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvconn.identity import Key

__all__ = ["JUNK", "BlockContent"]

JUNK = 0x0BAD_B10C
"""The word of a block that holds nothing anyone may use: even, and content is odd."""

_BATCH_BYTES = 1 << 19
"""Content is made in batches that stay in a core's cache, and by one thread: on a busy machine
threads that wait for each other after every operator made a replay ten times slower."""


class BlockContent:
    """Word ``w`` of page ``p`` of the block named ``key`` is ``seed(key, p) * multiplier(w)``.

    Seeds and multipliers are odd and arithmetic is modulo 2**64: a block, page or word that was
    mixed up with another differs in every word.
    """

    def __init__(self, pages: Sequence[torch.Tensor], *, first_page: int = 0) -> None:
        """``pages`` are views ``[num_blocks, words]`` of int64, one per page of a block.

        ``first_page`` numbers the first of them: ranks that hold other pages hold other bytes.
        """
        self._pages = pages
        self._device = pages[0].device
        words = pages[0].shape[1]
        self._batch = max(1, _BATCH_BYTES // (8 * words))
        self._multipliers = self._tensor(_mixed(np.arange(words, dtype=np.uint64)) | np.uint64(1))
        self._salts = _mixed(np.arange(first_page, first_page + len(pages), dtype=np.uint64))

    @one_intraop_thread()
    def write(self, blocks: Sequence[int], keys: Sequence[Key]) -> None:
        """Fill ``blocks[i]`` with the content of ``keys[i]``."""
        for ids, seeds in self._batches(blocks, keys):
            for page, seed in zip(self._pages, seeds, strict=True):
                page.index_copy_(0, ids, seed * self._multipliers)

    @one_intraop_thread()
    def spoil(self, blocks: Sequence[int]) -> None:
        """Fill ``blocks`` with :data:`JUNK`: bytes that should be overwritten, or never read."""
        if blocks:
            ids = torch.tensor(blocks, device=self._device)
            for page in self._pages:
                page.index_fill_(0, ids, JUNK)

    @one_intraop_thread()
    def wrong(self, blocks: Sequence[int], keys: Sequence[Key]) -> int:
        """How many ``blocks[i]`` differ in any bit from the content of ``keys[i]``."""
        return sum(self._count_wrong(ids, seeds) for ids, seeds in self._batches(blocks, keys))

    def _count_wrong(self, ids: torch.Tensor, seeds: torch.Tensor) -> int:
        wrong: torch.Tensor | None = None
        for page, seed in zip(self._pages, seeds, strict=True):
            found, expected = page.index_select(0, ids), seed * self._multipliers
            if not torch.equal(found, expected):
                differing = (found != expected).any(1)
                wrong = differing if wrong is None else wrong | differing
        return 0 if wrong is None else int(wrong.sum())

    def _batches(
        self, blocks: Sequence[int], keys: Sequence[Key]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """``(ids [n], seeds [pages, n, 1])``, a few blocks at a time."""
        if not blocks:
            return
        if len(blocks) != len(keys):
            msg = f"{len(blocks)} blocks and {len(keys)} keys: give one key per block"
            raise ValueError(msg)
        ids = torch.tensor(blocks, device=self._device)
        names = np.frombuffer(b"".join(keys), np.uint64).reshape(len(keys), -1)[:, 0]
        mixed = _mixed(names[None, :] ^ self._salts[:, None]) | np.uint64(1)
        seeds = self._tensor(mixed).unsqueeze(-1)
        for at in range(0, len(blocks), self._batch):
            yield ids[at : at + self._batch], seeds[:, at : at + self._batch]

    def _tensor(self, words: NDArray[np.uint64]) -> torch.Tensor:
        return torch.from_numpy(words.view(np.int64)).to(self._device)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood 2014): one to one, and every bit depends on every other."""
    words = (words + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
