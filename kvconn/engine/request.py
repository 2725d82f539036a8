"""One request, as the engine follows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kvconn.identity import Key, chain_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvconn.geometry import Geometry
    from kvconn.types import Request

__all__ = ["EngineRequest", "Phase"]


class Phase(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    LOADING = "loading"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, eq=False)
class EngineRequest:
    """Its known tokens are named once, as they become known; the rest is where it stands."""

    context: Request
    geometry: Geometry
    answer: Sequence[int] = ()
    """The tokens that the model will sample, after which it ends by itself."""
    max_answer: int = 0
    """Tokens that the scheduler must expect to be sampled, if more than ``answer`` has."""
    salt: object = None
    """Mixed into every key: tenant, LoRA id and the like (K3)."""

    length: int = 0
    """Known tokens: the prompt, and the answer so far."""
    block_keys: list[Key] = field(default_factory=list)
    """One per whole block of known tokens, each naming all tokens up to the end of that block."""
    chunk_keys: list[Key] = field(default_factory=list)
    """One per whole chunk: the key of its last block."""
    prompt_length: int = 0
    sampled: int = 0

    arrival: int = 0
    phase: Phase = Phase.WAITING
    block_ids: list[int] = field(default_factory=list)
    """The block table: engine blocks in order."""
    scheduled: int = 0
    """Tokens whose KV is there once everything planned so far has been executed."""
    written: int = 0
    """Whole blocks whose content is there or planned."""
    published: int = 0
    """Whole blocks that the local prefix cache knows."""
    offered: int = 0
    """Chunks that were offered for storing, or came from the backend."""
    loaded: range = range(0)
    """Chunks that came from the backend, and need not go there."""
    loading: int | None = None
    """The transfer it waits for."""
    patience: float | None = None
    """When to stop asking a backend that does not know yet."""
    epoch: int = 0
    """Counts preemptions and the end: a step planned in an earlier one no longer advances it."""
    _tail: list[int] = field(default_factory=list)
    """Known tokens of the last, partial block."""

    @classmethod
    def of_tokens(
        cls, context: Request, geometry: Geometry, tokens: Sequence[int], *,
        answer: Sequence[int] = (), max_answer: int = 0, salt: object = None,
    ) -> EngineRequest:  # fmt: skip
        """A request whose prompt is ``tokens``."""
        request = cls(context, geometry, answer=answer, max_answer=max_answer, salt=salt)
        request._append(tokens)
        request.prompt_length = request.length
        return request

    @classmethod
    def of_blocks(
        cls, context: Request, geometry: Geometry, block_keys: Sequence[Key], length: int
    ) -> EngineRequest:
        """A prompt of ``length`` tokens whose whole blocks somebody named already; no answer."""
        request = cls(context, geometry, length=length, prompt_length=length)
        request._name(block_keys)
        return request

    @property
    def ceiling(self) -> int:
        """Tokens that it may come to have."""
        return self.prompt_length + max(len(self.answer), self.max_answer)

    @property
    def blocks_at_most(self) -> int:
        """Engine blocks that it may come to need."""
        return -(-self.ceiling // self.geometry.block_tokens)

    def sample(self) -> bool:
        """Take the model's next token; ``False`` when the answer is complete."""
        if self.sampled >= len(self.answer):
            return False
        self._append(self.answer[self.sampled : self.sampled + 1])
        self.sampled += 1
        return True

    def give_up_blocks(self) -> list[int]:
        """Stand where it began, for ever or to start again; answers the blocks that it had."""
        blocks, self.block_ids = self.block_ids, []
        self.scheduled = self.written = self.published = self.offered = 0
        self.loaded, self.loading, self.patience = range(0), None, None
        self.epoch += 1
        return blocks

    def _append(self, tokens: Sequence[int]) -> None:
        self.length += len(tokens)
        known, size = [*self._tail, *tokens], self.geometry.block_tokens
        whole = len(known) // size * size
        self._tail = known[whole:]
        contents = [tuple(known[at : at + size]) for at in range(0, whole, size)]
        parent = self.block_keys[-1] if self.block_keys else b""
        self._name(chain_keys(contents, parent=parent, salt=self.salt))

    def _name(self, block_keys: Sequence[Key]) -> None:
        self.block_keys += block_keys
        size = self.geometry.blocks_per_chunk
        self.chunk_keys += self.block_keys[(len(self.chunk_keys) + 1) * size - 1 :: size]
