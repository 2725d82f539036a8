"""From a backend's configuration to an engine that uses it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kvconn.connector import Connector
from kvconn.engine.engine import Engine, Observer
from kvconn.engine.paged import KVShape, PagedKV
from kvconn.engine.worker import EngineWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kvconn.backend import Backend
    from kvconn.config import ConnectorConfig
    from kvconn.engine.state import Limits

__all__ = ["open_engine"]


@contextmanager
def open_engine(
    source: str | Path | Mapping[str, Any] | ConnectorConfig,
    shape: KVShape,
    *,
    asynchronous: bool = False,
    limits: Limits | None = None,
    wrap: Callable[[Backend], Backend] | None = None,
    observe: Observer | None = None,
) -> Iterator[Engine]:
    """An engine over the backend that ``source`` names, closed at the end of the ``with``.

    Each rank has a connector of its own, as it has in a process of its own; the first also
    opens the scheduler half.  ``wrap`` puts something between each connector and its backend.
    """
    connectors = [Connector.load(source, wrap=wrap) for _ in range(shape.ranks)]
    try:
        scheduler = connectors[0].open_scheduler(shape.geometry, shape.namespace)
        workers = []
        for rank, connector in enumerate(connectors):
            kv = PagedKV(shape)
            half = connector.open_worker(
                shape.geometry, shape.namespace, kv.caches, shape.geometry.shard(rank)
            )
            workers.append(EngineWorker(kv, half, rank))
        yield Engine(
            scheduler, workers, shape.num_blocks,
            asynchronous=asynchronous, limits=limits, observe=observe,
        )  # fmt: skip
    finally:
        for connector in reversed(connectors):
            connector.close()
