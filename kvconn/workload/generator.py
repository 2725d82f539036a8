"""A chat workload from a seed: conversations over shared system prompts, interleaved in time.

Conversations start as a Poisson process.  Each picks a system prompt (Zipf: few are popular) and
takes turns; a turn's prompt is the whole conversation so far and a new message.  After an answer
the user thinks for an exponential time, so turns of many conversations interleave.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, islice
from math import isfinite
from random import Random
from typing import TYPE_CHECKING

from kvconn.errors import ConfigurationError
from kvconn.workload.draws import LogNormal, exponential, geometric, rank, zipf_cumulative
from kvconn.workload.trace import BLOCK_TOKENS, TraceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ChatShape:
    """What a chat workload looks like; a :class:`ConfigurationError` says what cannot be."""

    conversations: int = 1000
    conversations_per_second: float = 1.0
    mean_turns: float = 4.0
    """Turns of a conversation are geometric: at least one, and memoryless."""
    system_prompts: int = 8
    zipf_exponent: float = 1.0
    """0 makes all system prompts equally popular."""
    system_tokens: LogNormal = field(default=LogNormal(2048, 0.5))
    message_tokens: LogNormal = field(default=LogNormal(256, 1.0))
    answer_tokens: LogNormal = field(default=LogNormal(384, 0.8))
    answer_tokens_per_second: float = 50.0
    think_seconds: float = 20.0
    """Mean time from the end of an answer to the next message."""
    max_input_tokens: int = 131072
    """Longest prompt; a message is cut to fit, and a full conversation ends."""
    block_tokens: int = BLOCK_TOKENS

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            self._require(name, getattr(self, name) >= least, f">= {least}")
        for name in _POSITIVE:
            self._require(name, getattr(self, name) > 0, "> 0")

    def _require(self, name: str, holds: bool, wanted: str) -> None:
        value = getattr(self, name)
        if not (holds and isfinite(value)):
            msg = f"a chat workload with {name}={value} cannot be: give a finite number {wanted}"
            raise ConfigurationError(msg)


_LEAST = {
    "conversations": 1,
    "mean_turns": 1,
    "system_prompts": 1,
    "zipf_exponent": 0,
    "think_seconds": 0,
    "max_input_tokens": 2,
    "block_tokens": 1,
}
_POSITIVE = ("conversations_per_second", "answer_tokens_per_second")


@dataclass(slots=True)
class _SystemPrompt:
    tokens: int
    blocks: list[int]
    """Ids of its whole blocks; empty until a conversation uses it."""


@dataclass(slots=True)
class _Conversation:
    prompt: _SystemPrompt
    turns_left: int
    tokens: int = 0
    """Said so far, by all sides; 0 before the first turn."""
    blocks: list[int] = field(default_factory=list)
    """Ids of the whole blocks of its last prompt."""


def generate_chat(seed: int = 0, shape: ChatShape | None = None) -> Iterator[TraceRequest]:
    """Requests in the order of their timestamps, the same for the same arguments everywhere.

    Ids count from 0 in the order in which content first appears.  A turn's ids begin with all
    whole blocks of the turn before it, and go on with the blocks that its answer and the new
    message fill.  A partial block has an id of its own, which never comes again.  Lazy: holds
    the conversations that are going on.
    """
    return _Chat(Random(seed), shape or ChatShape()).requests()  # noqa: S311 - a workload


class _Chat:
    def __init__(self, random: Random, shape: ChatShape) -> None:
        self._random = random
        self._shape = shape
        self._ids = count()
        self._popularity = zipf_cumulative(shape.system_prompts, shape.zipf_exponent)
        self._prompts = [
            # One token at least is left for the message.
            _SystemPrompt(min(shape.system_tokens.draw(random), shape.max_input_tokens - 1), [])
            for _ in range(shape.system_prompts)
        ]

    def requests(self) -> Iterator[TraceRequest]:
        # The second element breaks ties, so that conversations are never compared.
        due: list[tuple[float, int, _Conversation]] = []
        for number, start in enumerate(self._starts()):
            while due and due[0][0] <= start:
                yield self._turn(due)
            heappush(due, (start, number, self._conversation()))
        while due:
            yield self._turn(due)

    def _starts(self) -> Iterator[float]:
        """Seconds at which conversations start."""
        now = 0.0
        for _ in range(self._shape.conversations):
            yield now
            now += exponential(self._random, 1 / self._shape.conversations_per_second)

    def _conversation(self) -> _Conversation:
        prompt = self._prompts[rank(self._random, self._popularity)]
        return _Conversation(prompt, geometric(self._random, self._shape.mean_turns))

    def _turn(self, due: list[tuple[float, int, _Conversation]]) -> TraceRequest:
        """The request that is due first; its conversation's next turn becomes due."""
        shape, random = self._shape, self._random
        now, number, conversation = heappop(due)
        before = conversation.tokens or self._open(conversation)
        prompt = min(before + shape.message_tokens.draw(random), shape.max_input_tokens)
        answer = shape.answer_tokens.draw(random)
        hash_ids = self._hash_ids(conversation.blocks, prompt)
        conversation.tokens = prompt + answer
        conversation.turns_left -= 1
        if conversation.turns_left and conversation.tokens < shape.max_input_tokens:
            pause = answer / shape.answer_tokens_per_second
            pause += exponential(random, shape.think_seconds)
            heappush(due, (now + pause, number, conversation))
        return TraceRequest(int(now * 1000), prompt, answer, hash_ids, shape.block_tokens)

    def _open(self, conversation: _Conversation) -> int:
        """Put the system prompt first; returns its tokens."""
        prompt = conversation.prompt
        if not prompt.blocks:
            prompt.blocks = list(islice(self._ids, prompt.tokens // self._shape.block_tokens))
        conversation.blocks = list(prompt.blocks)
        return prompt.tokens

    def _hash_ids(self, blocks: list[int], tokens: int) -> tuple[int, ...]:
        """Extend ``blocks`` to the whole blocks of ``tokens``; the partial one is not kept."""
        whole, rest = divmod(tokens, self._shape.block_tokens)
        blocks.extend(islice(self._ids, whole - len(blocks)))
        return (*blocks, next(self._ids)) if rest else tuple(blocks)
