"""A directory, the store over it, and engines driven by hand."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from kvconn_disk import DiskBackend, DiskConfig
from kvconn_disk.files import PureIO
from kvconn_disk.store import DiskStore

from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches
from kvconn.ranks import RankVerdicts
from kvconn.scheduler import SchedulerConnector
from kvconn.types import Request, Transfer
from kvconn.worker import WorkerConnector

BLOCKS, PAGE_BYTES = 16, 3000
SPACE = Namespace("org/model", revision="main")

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def pure_io(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are moved by calls that a test can make fail."""
    monkeypatch.setattr("kvconn_disk.store.best_io", lambda: (PureIO(), False))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the store is; not there yet."""
    return tmp_path / "store"


@pytest.fixture
def objects(directory: Path) -> Callable[[], list[Path]]:
    """The object files there are now, by name."""
    return lambda: sorted(directory.rglob("*.kv"))


@pytest.fixture
def temporary(directory: Path) -> Callable[[], list[Path]]:
    """The files that are being written, or were left half written."""
    return lambda: sorted(directory.rglob("*.tmp"))


@pytest.fixture
def everybodys_umask() -> Iterator[None]:
    """Files are everybody's unless their maker says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What kvconn logged so far, one line each."""
    return lambda: [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("kvconn") and record.levelname == "WARNING"
    ]


@pytest.fixture
def open_store(directory: Path) -> Callable[..., DiskStore]:
    """Opens a store over the directory."""

    def open_it(space: Namespace = SPACE) -> DiskStore:
        store = DiskStore(DiskConfig(path=directory, capacity=1 << 30))
        store.open(space)
        return store

    return open_it


@pytest.fixture
def store(open_store: Callable[..., DiskStore]) -> DiskStore:
    return open_store()


@pytest.fixture
def keys() -> list[bytes]:
    return [content_key("prompt", number) for number in range(8)]


class Engine:
    """A scheduler and its ranks, each with a connector of its own, as in real life."""

    def __init__(self, url: str, geometry: Geometry, space: Namespace, stack: ExitStack) -> None:
        def connect() -> Connector:
            return stack.enter_context(Connector.load({"backend": url, "strict": True}))

        self.connectors = [connect() for _ in range(1 + geometry.ranks)]
        self.scheduler: SchedulerConnector = self.connectors[0].open_scheduler(geometry, space)
        self.pages = [
            torch.full((BLOCKS, PAGE_BYTES), rank + 1, dtype=torch.uint8)
            for rank in range(geometry.ranks)
        ]
        self.workers: list[WorkerConnector] = [
            connector.open_worker(
                geometry,
                space,
                KVCaches({"layer": pages}, num_blocks=BLOCKS),
                geometry.shard(rank),
            )
            for rank, (connector, pages) in enumerate(
                zip(self.connectors[1:], self.pages, strict=True)
            )
        ]
        self.ranks = RankVerdicts(geometry.ranks)

    def _run(self, transfer: Transfer) -> list[bool]:
        """Key ``i`` of the transfer has block ``i``."""
        self.ranks.expect(transfer)
        whole = None
        for rank, worker in enumerate(self.workers):
            worker.submit(transfer, [[block] for block in range(len(transfer.keys))])
            worker.wait([transfer.id], 20)
            for transfer_id, verdicts in worker.poll():
                whole = self.ranks.report(rank, transfer_id, verdicts) or whole
        assert whole is not None
        self.scheduler.complete_transfer(*whole)
        return whole[1]

    def _fill(self, keys: list[bytes]) -> None:
        for rank, pages in enumerate(self.pages):
            for block, key in enumerate(keys):
                pages[block] = (key[0] + rank) % 256

    def store(self, keys: list[bytes]) -> list[bool]:
        """One verdict for each key that was accepted."""
        request = Request(f"writer {next(_numbers)}")
        plan = self.scheduler.prepare_store(request, keys)
        verdicts: list[bool] = []
        if plan.transfer is not None:
            self._fill(list(plan.accepted))
            verdicts = self._run(plan.transfer)
        self.scheduler.request_finished(request)
        return verdicts

    def hits(self, keys: list[bytes]) -> int:
        request = Request(f"passer-by {next(_numbers)}")
        found = self.scheduler.lookup(request, keys)
        self.scheduler.request_finished(request)
        return found

    def load(self, keys: list[bytes]) -> list[bool]:
        """One verdict for each key that was a hit; the good ones are checked."""
        request = Request(f"reader {next(_numbers)}")
        found = self.scheduler.lookup(request, keys)
        verdicts: list[bool] = []
        if found:
            for pages in self.pages:
                pages.zero_()
            verdicts = self._run(self.scheduler.prepare_load(request, keys[:found]))
            for rank, pages in enumerate(self.pages):
                for block, good in enumerate(verdicts):
                    wanted = (keys[block][0] + rank) % 256 if good else 0
                    assert (pages[block] == wanted).all()
        self.scheduler.request_finished(request)
        return verdicts

    def close(self) -> None:
        for connector in reversed(self.connectors):
            assert connector.close() == []


def capacity_for(chunks: int, geometry: Geometry) -> int:
    """The least that holds so many, directories and all."""

    def fits(capacity: int) -> bool:
        config = DiskConfig(path="/", capacity=capacity)
        return DiskBackend(config).chunks_that_fit(geometry) >= chunks

    return bisect.bisect_left(range(1 << 30), 1, key=fits)


@pytest.fixture
def open_engine(directory: Path) -> Iterator[Callable[..., Engine]]:
    """Opens engines over the directory, each with room for eight chunks."""
    with ExitStack() as stack:

        def open_it(chunks: int = 8, ranks: int = 1, space: Namespace = SPACE) -> Engine:
            geometry = Geometry(block_tokens=4, block_bytes=PAGE_BYTES, ranks=ranks)
            capacity = capacity_for(chunks, geometry)
            url = f"disk://{directory}?capacity={capacity}&staging=256KiB"
            return Engine(url, geometry, space, stack)

        yield open_it
