"""What the scheduler's side remembers of one vLLM request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvconn.identity import Key
from kvconn.types import Request

if TYPE_CHECKING:
    from vllm.v1.request import Request as VllmRequest

__all__ = ["TrackedRequest"]

_SKIP_WRITING = "skip_writing_prefix_cache"


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """From ``on_new_request`` to ``request_finished``."""

    vllm: VllmRequest
    context: Request
    blocks_per_chunk: int
    offered: int = 0
    """Leading chunks that were offered for storing."""
    computed: int = 0
    """Tokens that vLLM had itself when it last asked what could be loaded."""
    judged: bool = False
    """Whether loading was compared with computing."""
    refused: bool = False
    """Loading would take longer."""
    storing: set[int] = field(default_factory=set)
    """Stores in flight that read this request's blocks."""
    _keys: list[Key] = field(default_factory=list)
    _asked: tuple[int, list[Key]] = (0, [])

    @classmethod
    def of(cls, request: VllmRequest, blocks_per_chunk: int) -> TrackedRequest:
        """Begin to track ``request``."""
        params = request.kv_transfer_params or {}
        context = Request(
            id=request.request_id,
            skip_reading_prefix_cache=bool(request.skip_reading_prefix_cache),
            skip_writing_prefix_cache=_skips_writing(request, params),
            params=params,
        )
        return cls(request, context, blocks_per_chunk)

    def keys(self) -> list[Key]:
        """The key of each whole chunk: its last block's hash, which names all tokens before it.

        A streaming session takes its last token back; the hashes that named it are replaced.
        """
        size, keys, hashes = self.blocks_per_chunk, self._keys, self.vllm.block_hashes
        known, whole = len(keys), len(hashes) // size
        if known and (whole < known or hashes[known * size - 1] != keys[-1]):
            keys.clear()
            self._asked = 0, []
            known = 0
        if known < whole:
            keys += hashes[(known + 1) * size - 1 : whole * size : size]
        return keys

    def keys_from(self, chunk: int) -> list[Key]:
        """The keys from ``chunk`` on; the same list when asked again, as a waiting request is."""
        keys = self.keys()
        first, asked = self._asked
        if first != chunk or len(asked) != len(keys) - chunk:
            asked = keys[chunk:]
            self._asked = chunk, asked
        return asked


def _skips_writing(request: VllmRequest, params: Mapping[str, Any]) -> bool:
    """There is no such flag in vLLM 0.32: it stands among the request's own parameters."""
    sampling = request.sampling_params
    extra = getattr(sampling, "extra_args", None) or {}
    return bool(
        getattr(sampling, _SKIP_WRITING, None)
        or params.get(_SKIP_WRITING)
        or extra.get(_SKIP_WRITING)
    )
