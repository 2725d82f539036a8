"""The engine's KV memory on one rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvconn.errors import ConfigurationError
from kvconn.geometry import Geometry
from kvconn.identity import Namespace
from kvconn.memory import KVCaches

__all__ = ["KVShape", "PagedKV"]

_WORD_BYTES = 8


@dataclass(frozen=True, slots=True)
class KVShape:
    """The sizes of a model's KV, alike on every rank."""

    num_blocks: int
    """Blocks that the engine's own memory holds."""
    block_tokens: int = 4
    layers: int = 2
    page_bytes: int = 64
    """Bytes of one layer of one block; a multiple of 8."""
    blocks_per_chunk: int = 1
    ranks: int = 1
    split: bool = False
    """Keys and values apart, ``[2, num_blocks, ...]``: two pages a layer, each half as large."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        unit = _WORD_BYTES * self.halves
        if self.page_bytes < unit or self.page_bytes % unit:
            msg = f"pages of {self.page_bytes} bytes: give a multiple of {unit}"
            raise ConfigurationError(msg)
        if self.num_blocks < 1 or self.layers < 1:
            msg = f"{self.num_blocks} blocks of {self.layers} layers: give at least one of each"
            raise ConfigurationError(msg)

    @property
    def halves(self) -> int:
        """Pages of one layer of one block."""
        return 2 if self.split else 1

    @property
    def geometry(self) -> Geometry:
        """What both halves of a connector are told."""
        return Geometry(
            block_tokens=self.block_tokens,
            block_bytes=self.layers * self.page_bytes,
            blocks_per_chunk=self.blocks_per_chunk,
            ranks=self.ranks,
        )

    @property
    def namespace(self) -> Namespace:
        """All that decides what the bytes mean; engines of another shape share nothing."""
        return Namespace(
            model="kvconn reference engine",
            dtype="int64",
            layout="split" if self.split else "joined",
            block_tokens=self.block_tokens,
            blocks_per_chunk=self.blocks_per_chunk,
            groups=((self.layers, self.page_bytes),),
        )


class PagedKV:
    """One tensor a layer, registered with the connector and never moved afterwards."""

    def __init__(self, shape: KVShape) -> None:
        words = shape.page_bytes // _WORD_BYTES // shape.halves
        sizes = (2, shape.num_blocks, words) if shape.split else (shape.num_blocks, words)
        self.tensors = {
            f"layer{i}": torch.zeros(sizes, dtype=torch.int64, device=shape.device)
            for i in range(shape.layers)
        }
        self.pages: list[torch.Tensor] = [
            page
            for tensor in self.tensors.values()
            for page in (tensor if shape.split else [tensor])
        ]
        """One view ``[num_blocks, words]`` per page of a block."""
        self.caches = KVCaches(
            self.tensors,
            num_blocks=shape.num_blocks,
            block_dims=int(shape.split),
            blocks_per_chunk=shape.blocks_per_chunk,
        )
