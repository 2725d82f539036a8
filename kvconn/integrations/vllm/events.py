"""What kvconn's tiers hold, in the events that vLLM publishes for routers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm.distributed.kv_events import (
    MEDIUM_CPU,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
)
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from kvconn.types import EventKind, KVEvent

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest

    from kvconn.geometry import Geometry
    from kvconn.identity import Key

__all__ = ["EventTranslator"]

_STORAGE = "STORAGE"


@dataclass(slots=True)
class _Chunk:
    """What a chunk's key stands for: vLLM names blocks, kvconn whole chunks."""

    hashes: list[bytes]
    parent: bytes | None
    tokens: list[int]
    lora: str | None
    group: int
    tiers: set[str] = field(default_factory=set)


class EventTranslator:
    """Keeps a chunk's meaning from its offer until no tier holds it.  Scheduler thread.

    Chunks that an earlier process stored have none here and are told of by nobody.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._chunks: dict[Key, _Chunk] = {}

    def offered(
        self, request: VllmRequest, first: int, keys: Sequence[Key], accepted: Sequence[Key]
    ) -> None:
        """``keys`` are those of the request's chunks from ``first`` on; some were accepted."""
        size, tokens = self._geometry.blocks_per_chunk, self._geometry.chunk_tokens
        hashes = request.block_hashes
        lora = getattr(request.lora_request, "lora_name", None)
        wanted = {key for key in accepted if key not in self._chunks}
        for at, key in enumerate(keys):
            if key in wanted:
                chunk, group = divmod(at, self._geometry.groups)
                i = first + chunk
                self._chunks[key] = _Chunk(
                    list(hashes[i * size : (i + 1) * size]),
                    hashes[i * size - 1] if i else None,
                    list(request.all_token_ids[i * tokens : (i + 1) * tokens]),
                    lora,
                    group,
                )

    def failed(self, keys: Iterable[Key]) -> None:
        """Their stores came to nothing."""
        for key in keys:
            chunk = self._chunks.get(key)
            if chunk is not None and not chunk.tiers:
                del self._chunks[key]

    def translate(self, events: Iterable[KVEvent]) -> Iterator[KVCacheEvent]:
        """One of vLLM's events per stored chunk, one per removal."""
        for event in events:
            if event.kind is EventKind.CLEARED:
                yield from self._cleared(event.tier)
            elif event.kind is EventKind.STORED:
                for key in event.keys:
                    if (chunk := self._chunks.get(key)) is not None:
                        chunk.tiers.add(event.tier)
                        yield self._stored(chunk, event.tier)
            else:
                hashes = [h for key in event.keys for h in self._gone(key, event.tier)]
                if hashes:
                    yield _removed(hashes, event.tier)

    def _stored(self, chunk: _Chunk, tier: str) -> BlockStored:
        parent = chunk.parent
        return BlockStored(
            block_hashes=[maybe_convert_block_hash(h) for h in chunk.hashes],
            parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
            token_ids=chunk.tokens,
            block_size=self._geometry.block_tokens,
            lora_id=None,
            lora_name=chunk.lora,
            group_idx=chunk.group,
            medium=_medium(tier),
            ownership=tier,
        )

    def _gone(self, key: Key, tier: str) -> list[bytes]:
        chunk = self._chunks.get(key)
        if chunk is None or tier not in chunk.tiers:
            return []
        chunk.tiers.discard(tier)
        if not chunk.tiers:
            del self._chunks[key]
        return chunk.hashes

    def _cleared(self, tier: str) -> Iterator[KVCacheEvent]:
        """VLLM's own event of that kind clears every medium, so the blocks are named."""
        held = [key for key, chunk in self._chunks.items() if tier in chunk.tiers]
        hashes = [h for key in held for h in self._gone(key, tier)]
        if hashes:
            yield _removed(hashes, tier)


def _removed(hashes: list[bytes], tier: str) -> BlockRemoved:
    named = [maybe_convert_block_hash(h) for h in hashes]
    return BlockRemoved(block_hashes=named, medium=_medium(tier), ownership=tier)


def _medium(tier: str) -> str:
    return MEDIUM_CPU if tier.startswith("cpu") else _STORAGE
