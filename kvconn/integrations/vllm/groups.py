"""The KV-cache groups of a model: layers that share a block table.

All groups lie in the same memory, and a block id belongs to one of them at a time; so a block is
the same pages whichever group it belongs to, and only the scheduler's side tells groups apart:
a chunk has one key, and is one object, in each of them.  Where attention is windowed, a chunk
before the window is neither there to be stored nor needed to be loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from kvconn.types import ABSENT

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec

    from kvconn.geometry import Geometry

__all__ = ["Groups", "block_bytes", "layer_names", "layer_specs", "unserved"]

_FULL = (FullAttentionSpec, MLAAttentionSpec)
_NULL = 0
"""The block that stands for those outside the window; vLLM takes the first one of the pool."""


def layer_specs(group: KVCacheGroupSpec) -> list[KVCacheSpec]:
    """The kinds of its layers, which may differ in size."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return list(spec.kv_cache_specs.values())
    return [spec]


def block_bytes(kv_cache_config: KVCacheConfig) -> int:
    """Of one block, over all layers of the group that has the most."""
    return max(map(_block_bytes, kv_cache_config.kv_cache_groups))


def _block_bytes(group: KVCacheGroupSpec) -> int:
    spec = group.kv_cache_spec
    layers = 1 if isinstance(spec, UniformTypeKVCacheSpecs) else len(group.layer_names)
    return int(spec.page_size_bytes) * layers


def layer_names(kv_cache_config: KVCacheConfig) -> list[str]:
    """Of all groups, the largest first: its pages are those of every block."""
    groups = sorted(kv_cache_config.kv_cache_groups, key=lambda group: -len(group.layer_names))
    return [name for group in groups for name in group.layer_names]


def unserved(
    kv_cache_config: KVCacheConfig, blocks_per_chunk: int, *, windows: bool
) -> Iterator[str]:
    """Why these groups cannot be served rightly; ``windows``: a load may fail as a whole."""
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        yield "the model keeps no KV cache: it needs no connector"
    for group in groups:
        for spec in layer_specs(group):
            if type(spec) not in (*_FULL, SlidingWindowSpec):
                yield (
                    f"its KV cache is described by {type(spec).__name__}: serve a model with full "
                    "attention, MLA or sliding windows"
                )
            elif type(spec) is SlidingWindowSpec:
                most = spec.sliding_window // spec.block_size
                if not windows:
                    yield "its attention is windowed and this vLLM is older than 0.30: upgrade it"
                elif blocks_per_chunk > most:
                    yield (
                        f"blocks_per_chunk is {blocks_per_chunk} and a sliding window holds {most} "
                        f'blocks: set "blocks_per_chunk": {max(1, most)}'
                    )
    sizes = sorted({group.kv_cache_spec.block_size for group in groups})
    if len(sizes) > 1:
        yield f"its KV-cache groups have blocks of {sizes} tokens: serve one whose are equal"


@dataclass(frozen=True, slots=True)
class Groups:
    """What the scheduler's side must know of them."""

    windows: tuple[int | None, ...] = (None,)
    """Per group, the tokens that its attention looks back; ``None``: all."""

    @classmethod
    def of(cls, kv_cache_config: KVCacheConfig) -> Groups:
        """As vLLM has laid them out."""
        return cls(
            tuple(
                getattr(layer_specs(group)[0], "sliding_window", None)
                if type(layer_specs(group)[0]) is SlidingWindowSpec
                else None
                for group in kv_cache_config.kv_cache_groups
            )
        )

    @property
    def count(self) -> int:
        """Keys per chunk."""
        return len(self.windows)

    @property
    def windowed(self) -> bool:
        """Whether blocks are given up while their request runs."""
        return any(self.windows)

    @property
    def whole(self) -> bool:
        """Whether a load that misses anything has failed altogether."""
        return self.windowed or self.count > 1

    def gone(self, computed: int) -> int:
        """The tokens before this one may have lost their blocks, once ``computed`` are done."""
        return computed - min(window for window in self.windows if window) + 1

    def rows(
        self, geometry: Geometry, tables: Sequence[Sequence[int]], chunks: range, held: int = 0
    ) -> list[list[int]]:
        """A row of block ids per key, groups side by side; the first ``held`` blocks are absent."""
        per_group = [geometry.rows(table, chunks, held) for table in tables]
        if self.windowed:
            for rows in per_group:
                for row in rows:
                    row[:] = [ABSENT if block == _NULL else block for block in row]
        return [row for rows in zip(*per_group, strict=True) for row in rows]
