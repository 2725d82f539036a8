"""Sends a workload through an engine, and says what came of it."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any

from kvconn.config import ConnectorConfig, load_config
from kvconn.engine.opening import open_engine
from kvconn.engine.report import ReplayReport, report
from kvconn.engine.request import EngineRequest
from kvconn.errors import ConfigurationError
from kvconn.identity import Key, content_key
from kvconn.testing.counting import CountingBackend
from kvconn.testing.faulty import FaultyBackend
from kvconn.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvconn.backend import Backend
    from kvconn.engine.engine import Engine
    from kvconn.engine.paged import KVShape
    from kvconn.workload import TraceRequest

__all__ = ["replay"]

_QUEUED = 16
"""Requests that have arrived and not ended: a few more than the engine runs at once."""
_PATIENCE_S = 90.0
"""Without a request that ends for so long, longer than any transfer may take, all is given up."""


def replay(
    trace: Sequence[TraceRequest],
    source: str | Mapping[str, Any] | ConnectorConfig,
    shape: KVShape,
    *,
    skip_fraction: float = 0.0,
    seed: int = 0,
    asynchronous: bool = False,
    fault_every_s: float | None = None,
    on_progress: Callable[[int, Engine], None] = lambda _ended, _engine: None,
) -> ReplayReport:
    """Run ``trace`` in its order, as fast as the engine takes it; timestamps are not waited for.

    Each id of the trace is one block of the engine.  A share of ``skip_fraction`` of the requests
    must not read; ``seed`` decides which.  With ``fault_every_s`` the slowest tier fails for a
    quarter of every so many seconds.  Answers are not replayed: the trace names their blocks
    only where a later prompt repeats them.
    """
    _check_room(trace, shape)
    config = load_config(source).model_copy(update={"strict": True})
    doors: list[CountingBackend] = []

    def count(backend: Backend) -> CountingBackend:
        slowest = len(doors) % len(config.tiers) == len(config.tiers) - 1
        if fault_every_s is not None and slowest:
            backend = FaultyBackend(backend, fault_every_s)
        doors.append(CountingBackend(backend))
        return doors[-1]

    with open_engine(config, shape, asynchronous=asynchronous, wrap=count) as engine:
        began = time.perf_counter()
        skips = Random(seed)  # noqa: S311 - a draw, not a secret
        for ended, request in enumerate(_requests(trace, shape, skip_fraction, skips)):
            engine.submit(request)
            if not _make_room(engine):
                break
            on_progress(ended, engine)
        engine.drain(_PATIENCE_S)
        on_progress(len(trace), engine)
        seconds = time.perf_counter() - began
        # The first rank's connector, which has the scheduler half, has the first doors.
        return report(engine, doors[: len(config.tiers)], [c.name for c in config.tiers], seconds)


def _make_room(engine: Engine) -> bool:
    ends = time.monotonic() + _PATIENCE_S
    while engine.unfinished >= _QUEUED:
        if time.monotonic() > ends:
            return False
        engine.step()
    return True


def _check_room(trace: Sequence[TraceRequest], shape: KVShape) -> None:
    largest = max((len(request.hash_ids) for request in trace), default=0)
    if largest > shape.num_blocks:
        msg = (
            f"the longest prompt of the trace has {largest} blocks and the engine "
            f"{shape.num_blocks}: give it at least --local-blocks {largest}"
        )
        raise ConfigurationError(msg)


def _requests(
    trace: Sequence[TraceRequest], shape: KVShape, skip_fraction: float, skips: Random
) -> Iterator[EngineRequest]:
    geometry = shape.geometry
    names: dict[int, Key] = {}
    for number, line in enumerate(trace):
        keys = []
        for block in line.whole_blocks:
            key = names.get(block)
            if key is None:
                # An id stands for its block and for everything before it, as a key must.
                key = names[block] = content_key("trace", block)
            keys.append(key)
        context = Request(str(number), skip_reading_prefix_cache=skips.random() < skip_fraction)
        yield EngineRequest.of_blocks(context, geometry, keys, max(1, line.input_length))
