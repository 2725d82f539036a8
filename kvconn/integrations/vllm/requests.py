"""What the scheduler's side remembers of one vLLM request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from kvconn.identity import Key, content_key
from kvconn.types import Request

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest

    from kvconn.integrations.vllm.adapters import Adapter

__all__ = ["TrackedRequest"]

_SKIP_WRITING = "skip_writing_prefix_cache"


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """From ``on_new_request`` to ``request_finished``."""

    vllm: VllmRequest
    context: Request
    blocks_per_chunk: int
    adapter: Adapter | None = None
    groups: int = 1
    """A chunk has as many keys."""
    offered: int = 0
    """Leading chunks that were offered for storing."""
    computed: int = 0
    """Tokens that vLLM had itself when it last asked what could be loaded."""
    judged: bool = False
    """Whether loading was compared with computing."""
    refused: bool = False
    """Loading would take longer."""
    storing: dict[int, int] = field(default_factory=dict)
    """Stores in flight that read this request's blocks: the first token of each."""
    _hashes: list[bytes] = field(default_factory=list)
    _keys: list[Key] = field(default_factory=list)
    _asked: tuple[int, int, list[Key]] = (0, 0, [])

    @classmethod
    def of(
        cls,
        request: VllmRequest,
        blocks_per_chunk: int,
        adapter: Adapter | None = None,
        groups: int = 1,
    ) -> TrackedRequest:
        """Begin to track ``request``."""
        params = request.kv_transfer_params or {}
        context = Request(
            id=request.request_id,
            skip_reading_prefix_cache=bool(request.skip_reading_prefix_cache),
            skip_writing_prefix_cache=_skips_writing(request, params),
            params=params,
        )
        return cls(request, context, blocks_per_chunk, adapter, groups)

    @property
    def named(self) -> bool:
        """Whether everything that its keys are made of is known."""
        return self.adapter is None or self.adapter.weights is not None

    @property
    def nameless(self) -> bool:
        """Whether it is not worth waiting for that."""
        return self.adapter is not None and self.adapter.late

    def keys(self) -> list[Key]:
        """The keys of each whole chunk, made of its last block's hash, which names all before it.

        A streaming session takes its last token back; the hashes that named it are replaced.
        """
        size, hashes, blocks = self.blocks_per_chunk, self._hashes, self.vllm.block_hashes
        known, whole = len(hashes), len(blocks) // size
        if known and (whole < known or blocks[known * size - 1] != hashes[-1]):
            known = self._forget_taken_back(blocks[size - 1 :: size])
        if known < whole:
            new = blocks[(known + 1) * size - 1 : whole * size : size]
            hashes += new
            self._keys += self._named(new)
        return self._keys

    def _forget_taken_back(self, hashes: list[bytes]) -> int:
        """How many leading chunks are as they were; the others are offered again."""
        pairs = zip(self._hashes, hashes, strict=False)
        kept = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        del self._hashes[kept:], self._keys[kept * self.groups :]
        self._asked = 0, 0, []
        self.offered = min(self.offered, kept)
        return kept

    def _named(self, hashes: list[bytes]) -> list[Key]:
        if self.adapter is not None:
            hashes = [content_key(h, *self.adapter.identity) for h in hashes]
        if self.groups == 1:
            return hashes
        return [h + bytes([group]) for h in hashes for group in range(self.groups)]

    def keys_from(self, chunk: int, end: int | None = None) -> list[Key]:
        """The keys of the chunks from ``chunk`` to ``end``, or to the last.

        The same list when asked again, as a waiting request is.
        """
        keys = self.keys()
        last = len(keys) if end is None else min(len(keys), end * self.groups)
        first, until, asked = self._asked
        if (first, until) != (chunk, last):
            asked = keys[chunk * self.groups : last]
            self._asked = chunk, last, asked
        return asked


def _skips_writing(request: VllmRequest, params: Mapping[str, Any]) -> bool:
    """There is no such flag in vLLM: it stands among the request's own parameters."""
    sampling = request.sampling_params
    extra = getattr(sampling, "extra_args", None) or {}
    return bool(
        getattr(sampling, _SKIP_WRITING, None)
        or params.get(_SKIP_WRITING)
        or extra.get(_SKIP_WRITING)
    )
