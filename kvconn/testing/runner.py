"""Runs requests through the reference engine, and states what must have moved."""

from __future__ import annotations

import itertools
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvconn.engine import Engine, EngineRequest, KVShape, Limits, open_engine
from kvconn.testing.counting import CountingBackend
from kvconn.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvconn.backend import Backend

__all__ = ["EngineRunner", "open_runner"]


class EngineRunner:
    """An engine, a counter at its backend's door, and a record of what moved.

    Blocks are indices in their request: ``[0, 1, 2]`` are the first three blocks of its tokens.
    """

    def __init__(self, engine: Engine, backend: CountingBackend, *, patience_s: float) -> None:
        self.engine = engine
        self.backend = backend
        self.patience_s = patience_s
        self.moved: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        """Blocks by what happened (``loaded``, ``stored``, ``flushed``) and request id."""
        self._numbers = itertools.count()

    def run(
        self,
        tokens: Sequence[int],
        *,
        answer: Sequence[int] = (),
        skip_reading: bool = False,
        skip_writing: bool = False,
        salt: object = None,
        loaded: Sequence[int] = (),
        stored: Sequence[int] = (),
        flushed: Sequence[int] = (),
    ) -> EngineRequest:
        """One request from start to end; fails unless exactly these blocks moved.

        ``flushed`` are the stored blocks whose stores were awaited, because the request ended
        before they were known to be over and its blocks could be used again.
        """
        request = self.submit(
            tokens, answer=answer, skip_reading=skip_reading, skip_writing=skip_writing, salt=salt
        )
        self.settle()
        self.expect(request.context.id, loaded=loaded, stored=stored, flushed=flushed)
        return request

    def submit(
        self,
        tokens: Sequence[int],
        *,
        answer: Sequence[int] = (),
        max_answer: int = 0,
        skip_reading: bool = False,
        skip_writing: bool = False,
        salt: object = None,
    ) -> EngineRequest:
        """One request that starts with the engine's next steps."""
        context = Request(
            f"request-{next(self._numbers)}",
            skip_reading_prefix_cache=skip_reading,
            skip_writing_prefix_cache=skip_writing,
        )
        request = EngineRequest.of_tokens(
            context, self.engine.scheduler.geometry, tokens,
            answer=answer, max_answer=max_answer, salt=salt,
        )  # fmt: skip
        self.engine.submit(request)
        return request

    def settle(self) -> None:
        """Let everything end; fails if it does not, if a byte was wrong, or if something leaked."""
        ended = self.engine.drain(self.patience_s)
        leaks = self.engine.leaks()
        assert ended, f"not over after {self.patience_s} s: {leaks}"
        assert not self.engine.wrong_blocks, f"{self.engine.wrong_blocks} blocks hold wrong bytes"
        assert not any(leaks.values()), f"at rest, yet still held: {leaks}"

    def expect(
        self,
        request_id: str,
        *,
        loaded: Sequence[int] = (),
        stored: Sequence[int] = (),
        flushed: Sequence[int] = (),
    ) -> None:
        """Fails unless exactly these blocks of the request moved."""
        expected = {"loaded": loaded, "stored": stored, "flushed": flushed}
        found = {what: sorted(self.moved[what, request_id]) for what in expected}
        wanted = {what: sorted(blocks) for what, blocks in expected.items()}
        assert found == wanted, f"{request_id}: {found} instead of {wanted}"


@contextmanager
def open_runner(
    source: str | Mapping[str, Any],
    shape: KVShape,
    *,
    asynchronous: bool = False,
    limits: Limits | None = None,
    patience_s: float = 30.0,
    wrap: Callable[[Backend], CountingBackend] = CountingBackend,
) -> Iterator[EngineRunner]:
    """A runner over the backend that ``source`` names; no wait in it is longer than given.

    ``wrap`` may put another counter, one with a fault in it, at the backend's door.
    """
    doors: list[CountingBackend] = []

    def count(backend: Backend) -> CountingBackend:
        doors.append(wrap(backend))
        return doors[-1]

    def observe(what: str, request_id: str, blocks: list[int]) -> None:
        runner.moved[what, request_id] += blocks

    with open_engine(
        source, shape, asynchronous=asynchronous, limits=limits, wrap=count, observe=observe
    ) as engine:
        runner = EngineRunner(engine, doors[0], patience_s=patience_s)
        yield runner
