"""Engines driven by hand, over every installed backend and two that are defined here.

A :class:`Rig` is a scheduler half and one worker half per rank in one process, each with a backend
instance of its own as in real life, with real pages and real bytes.  The two backends below are
always there, so that every rule is tested where no plugin is installed at all.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ConfigDict

from kvconn.backend import Backend, PluginConfig, PoolSize, Settings
from kvconn.blockstore import BlockStore, BlockStoreBackend, Capabilities, StoreConfig
from kvconn.blockstore import worker as store_worker
from kvconn.blockstore.seal import object_bytes
from kvconn.config import build_backend
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, Shard, content_key
from kvconn.indexed import IndexedBackend
from kvconn.memory import Copier, KVCaches
from kvconn.ranks import RankVerdicts
from kvconn.registry import BACKENDS, available
from kvconn.scheduler import SchedulerConnector
from kvconn.tiers import compose
from kvconn.types import Request, StorePlan, Transfer, TransferKind
from kvconn.worker import WorkerConnector

BLOCK_TOKENS, BLOCKS_PER_CHUNK, NUM_CHUNKS = 4, 2, 24
LAYERS, PAGE_BYTES = 2, 256
PATIENCE_S = 20.0
NAMESPACE = Namespace("model", revision="1", dtype="uint8")


# -- backends ----------------------------------------------------------------------------------


class MemoryConfig(PluginConfig):
    chunks: int


class MemoryBackend(IndexedBackend):
    """An index over slots that stay where they are."""

    contract_version = 1
    tier = "memory"

    def chunks_that_fit(self, geometry):
        return self.config.chunks

    def eviction_name(self):
        return "lru"

    def pool_size(self, geometry):
        return PoolSize(self.config.chunks, geometry.slot_bytes)

    def open_worker(self, pool, caches, namespace, shard):
        return MemoryWorker(Copier(pool, caches))


class MemoryWorker:
    def __init__(self, copier: Copier) -> None:
        self.copier = copier
        self.ended: list[tuple[int, list[bool]]] = []

    def submit(self, transfer, blocks):
        loading = transfer.kind is TransferKind.LOAD
        copy = self.copier.scatter if loading else self.copier.gather
        copy(blocks, transfer.locations).wait()
        self.ended.append((transfer.id, [True] * len(transfer.keys)))

    def poll(self):
        ended, self.ended = self.ended, []
        return ended

    def flush(self, transfer_ids, deadline):
        return True

    def wait(self, transfer_ids, deadline):
        pass

    def close(self, deadline):
        return []


class Shelf:
    """What a :class:`ShelfStore` keeps, and how it misbehaves."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.calls: Counter[str] = Counter()
        self.capabilities = Capabilities(persistent=True, parallel=True)
        self.options: dict[str, Any] = {}
        """Of the configuration."""
        self.lies: dict[str, Callable[[Any], Any]] = {}
        """By method: what makes of its honest answer the one that is given; may raise."""
        self._held: dict[str, threading.Event] = {}
        self._entered: dict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(0))

    def hold(self, method: str) -> None:
        """Let calls of ``method`` hang until :meth:`let_go`."""
        self._entered[method]  # made here, or two threads could each make one of their own
        self._held[method] = threading.Event()

    def let_go(self, *methods: str) -> None:
        for method in methods or list(self._held):
            self._held.pop(method).set()

    def await_call(self, method: str) -> None:
        """Return when a held ``method`` was called."""
        assert self._entered[method].acquire(timeout=PATIENCE_S), f"{method} was never called"

    def enter(self, method: str) -> None:
        self.calls[method] += 1
        if (event := self._held.get(method)) is not None:
            self._entered[method].release()
            assert event.wait(PATIENCE_S), f"{method} was never let go"

    def answer(self, method: str, honest: Any) -> Any:
        return self.lies.get(method, lambda answer: answer)(honest)


class ShelfConfig(StoreConfig):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    shelf: Shelf


class ShelfStore(BlockStore):
    """A dict that can be slow, hang, fail and lie."""

    def __init__(self, config: ShelfConfig) -> None:
        super().__init__(config)
        self.shelf = config.shelf
        self.capabilities = config.shelf.capabilities

    def exists(self, ids):
        self.shelf.enter("exists")
        return self.shelf.answer("exists", [name in self.shelf.objects for name in ids])

    def get(self, ids, buffers):
        self.shelf.enter("get")
        for name, buffer in zip(ids, buffers, strict=True):
            stored = self.shelf.objects.get(name, b"")
            buffer[: len(stored)] = stored[: len(buffer)]
        return self.shelf.answer("get", [name in self.shelf.objects for name in ids])

    def put(self, ids, buffers):
        self.shelf.enter("put")
        answer = self.shelf.answer("put", [True] * len(ids))
        self.shelf.objects.update(zip(ids, map(bytes, buffers), strict=True))
        return answer

    def delete(self, ids):
        self.shelf.enter("delete")
        gone = [self.shelf.objects.pop(name, None) is not None for name in ids]
        return self.shelf.answer("delete", gone)

    def scan(self):
        self.shelf.enter("scan")
        return self.shelf.answer("scan", list(self.shelf.objects))

    def close(self):
        self.shelf.enter("close")
        self.shelf.answer("close", None)


class ShelfBackend(BlockStoreBackend):
    contract_version = 1
    tier = "shelf"
    Store = ShelfStore
    Config = ShelfConfig


# -- what a test is run over -------------------------------------------------------------------


Make = Callable[[], Backend]
"""Makes one more instance of the same configured backend, as another process would."""


@dataclass(frozen=True)
class Case:
    """A backend that rules are tested over."""

    name: str
    pinned: bool = True
    keeps: bool = True
    url: str = ""
    """With ``{path}``, ``{slots}`` and ``{objects}``: the bytes that hold the wanted chunks."""

    def configure(self, chunks: int, geometry: Geometry, path: Path, shelf: Shelf) -> Make:
        objects = chunks * geometry.ranks * object_bytes(geometry.chunk_bytes)
        if self.name == "memory":
            return lambda: MemoryBackend(MemoryConfig(chunks=chunks))
        if self.name == "shelf":
            config = ShelfConfig(capacity=objects, shelf=shelf, **shelf.options)
            return lambda: ShelfBackend(config)
        if self.name.startswith("write"):
            config = ShelfConfig(capacity=objects, shelf=shelf, **shelf.options)
            return lambda: compose(
                [
                    ("memory", MemoryBackend(MemoryConfig(chunks=chunks))),
                    ("shelf", ShelfBackend(config)),
                ],
                self.name,
            )
        slots = chunks * geometry.ranks * geometry.slot_bytes
        if not self.pinned:  # what a store keeps beside its objects takes room, too
            objects = self._capacity_of(chunks, geometry, path)
        url = self.url.format(path=path, slots=slots, objects=objects)
        return lambda: build_backend(url)

    def _capacity_of(self, chunks: int, geometry: Geometry, path: Path) -> int:
        """The least that holds so many chunks."""

        def holds(capacity: int) -> int:
            backend: Any = build_backend(self.url.format(path=path, objects=capacity + 1))
            return backend.chunks_that_fit(geometry)

        return 1 + bisect.bisect_left(range(1 << 26), chunks, key=holds)


_HERE = [
    Case("memory"),
    Case("shelf", pinned=False),
    Case("write_through", pinned=False),
    Case("write_back", pinned=False),
]
_KNOWN = [
    Case("cpu", url="cpu://?capacity={slots}"),
    Case("disk", url="disk://{path}?capacity={objects}", pinned=False),
    Case("null", url="null", keeps=False),
]
_CASES = [*_HERE, *(case for case in _KNOWN if case.name in available(BACKENDS))]


def _by_name(cases: Iterable[Case]) -> dict[str, Any]:
    cases = list(cases)
    return {"params": cases, "ids": [case.name for case in cases]}


_ONE_TIER = {
    "test_F2_a_backend_that_raises_is_logged_once",
    "test_L1_the_next_lookup_replaces_the_lease",
    "test_L3_a_failed_store_leaves_no_entry_and_no_room_taken",
    "test_L3_a_failed_store_leaves_no_object",
    "test_L3_half_a_failed_store_leaves_the_good_half",
    "test_L3_an_abandoned_store_leaves_no_object_after_close",
    "test_L3_events_say_only_what_can_be_found",
    "test_L4_it_may_be_preempted_between_lookup_and_load_and_store_again",
    "test_L4_no_slot_under_a_running_load_is_used_for_another_store",
    "test_L4_no_slot_under_a_running_store_is_used_for_another",
    "test_L5_reset_empties_and_says_per_tier_what_it_did",
    "test_L5_what_is_stored_after_reset_stays_though_an_older_store_ends_later",
    "test_L6_what_does_not_fit_is_declined_and_the_leading_keys_are_taken",
    "test_L6_a_store_is_declined_without_a_look_at_what_is_held",
    "test_L6_a_store_that_is_opened_smaller_than_it_was_shrinks_to_its_capacity",
}
"""They say how much one tier holds, or that what it lost is lost: behind it there is another."""


@pytest.fixture(autouse=True)
def one_tier_where_that_is_meant(request: pytest.FixtureRequest) -> None:
    """Skips over a composition what is said of a single backend."""
    case = (
        next((v for v in request.node.callspec.params.values() if isinstance(v, Case)), None)
        if hasattr(request.node, "callspec")
        else None
    )
    if case and case.name.startswith("write") and request.node.originalname in _ONE_TIER:
        pytest.skip("says what a single backend does")


@pytest.fixture(**_by_name(_CASES))
def any_case(request: pytest.FixtureRequest) -> Case:
    """Every backend, also one that keeps nothing."""
    return request.param


@pytest.fixture(**_by_name(case for case in _CASES if case.keeps))
def case(request: pytest.FixtureRequest) -> Case:
    """Every backend that keeps what it is given."""
    return request.param


@pytest.fixture(autouse=True)
def one_call_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store that works in parallel is asked for in one call is not spread over several."""
    monkeypatch.setattr(store_worker, "_OVERLAP", 1)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """Where the backend ``shelf`` keeps its objects."""
    shelf = Shelf()
    yield shelf
    shelf.let_go()


# -- an engine, driven by hand -----------------------------------------------------------------


@dataclass
class Rig:
    """One engine's two halves, their pages, and what an engine does with them."""

    make: Make
    geometry: Geometry
    namespace: Namespace
    policies: list[tuple[str, Any]]
    settings: Settings
    strict: bool
    wrap: Callable[[Backend], Backend]

    def __post_init__(self) -> None:
        self.backend = self.wrap(self.make())
        self.scheduler = SchedulerConnector(
            self.backend, self.policies, self.geometry, self.namespace,
            settings=self.settings, strict=self.strict,
        )  # fmt: skip
        self.pages = [
            {f"layer {i}": torch.zeros(self.blocks, PAGE_BYTES, dtype=torch.uint8)
             for i in range(LAYERS)}
            for _ in range(self.geometry.ranks)
        ]  # fmt: skip
        self.workers = [
            WorkerConnector(
                self.make(), self.geometry, self.namespace,
                KVCaches(pages, num_blocks=self.blocks, blocks_per_chunk=BLOCKS_PER_CHUNK),
                shard=Shard(rank, self.geometry.ranks), settings=self.settings,
            )
            for rank, pages in enumerate(self.pages)
        ]  # fmt: skip
        self.ranks = RankVerdicts(self.geometry.ranks)
        self._step, self.scheduler.step = self.scheduler.step, self.step  # type: ignore[method-assign]
        self.ended: dict[int, list[bool]] = {}
        """Verdicts of completed transfers that nobody asked about yet."""

    def step(self) -> list[Transfer]:
        """An engine's step: what a backend moves by itself goes to every rank."""
        moves = self._step()
        for move in moves:
            self.submit(move, [])
        for move in moves:
            self.collect(move)
        return moves

    @property
    def blocks(self) -> int:
        return NUM_CHUNKS * BLOCKS_PER_CHUNK

    # Content: what a key's pages hold is decided by the key and the rank.

    def content(self, key: bytes, rank: int) -> torch.Tensor:
        seed = int.from_bytes(key[:6], "big") + rank
        generator = torch.Generator().manual_seed(seed)
        size = (LAYERS, BLOCKS_PER_CHUNK, PAGE_BYTES)
        return torch.randint(1, 256, size, generator=generator, dtype=torch.uint8)

    def rows(self, count: int, at: int = 0) -> list[list[int]]:
        """The engine's blocks for ``count`` chunks, from its chunk ``at`` on."""
        return self.geometry.rows(range(self.blocks), range(at, at + count))

    def compute(self, keys: Sequence[bytes], at: int = 0) -> list[list[int]]:
        """Write what ``keys`` stand for into pages."""
        rows = self.rows(len(keys), at)
        for rank, pages in enumerate(self.pages):
            for key, row in zip(keys, rows, strict=True):
                for layer, page in zip(pages.values(), self.content(key, rank), strict=True):
                    layer[row] = page
        return rows

    def holds(self, keys: Sequence[bytes], rows: Sequence[Sequence[int]]) -> bool:
        """Whether those pages hold exactly what ``keys`` stand for, on every rank."""
        return all(
            torch.equal(layer[list(row)], page)
            for rank, pages in enumerate(self.pages)
            for key, row in zip(keys, rows, strict=True)
            for layer, page in zip(pages.values(), self.content(key, rank), strict=True)
        )

    def wipe(self) -> None:
        """Use every page for something else."""
        for pages in self.pages:
            for layer in pages.values():
                layer.zero_()

    def is_wiped(self) -> bool:
        return not any(layer.any() for pages in self.pages for layer in pages.values())

    # Transfers.

    def submit(self, transfer: Transfer, rows: list[list[int]]) -> None:
        self.ranks.expect(transfer)
        wire = transfer.to_bytes()
        for worker in self.workers:
            worker.submit(Transfer.from_bytes(wire), rows)

    def collect(self, transfer: Transfer) -> list[bool]:
        """Wait for every rank, and complete the transfer."""
        for rank, worker in enumerate(self.workers):
            worker.wait([transfer.id], PATIENCE_S)
            for transfer_id, verdicts in worker.poll():
                whole = self.ranks.report(rank, transfer_id, verdicts)
                if whole is not None:
                    self.scheduler.complete_transfer(*whole)
                    self.ended[whole[0].id] = whole[1]
        return self.ended.pop(transfer.id)

    def run(self, transfer: Transfer, rows: list[list[int]]) -> list[bool]:
        self.submit(transfer, rows)
        return self.collect(transfer)

    def begin_store(self, request: Request, keys: Sequence[bytes]) -> StorePlan:
        """Compute and offer; what was accepted is on its way when this returns."""
        plan = self.scheduler.prepare_store(request, list(keys))
        if plan.transfer is not None:
            self.submit(plan.transfer, self.compute(plan.accepted))
        return plan

    def store(self, request: Request, keys: Sequence[bytes]) -> StorePlan:
        plan = self.begin_store(request, keys)
        if plan.transfer is not None:
            self.collect(plan.transfer)
        self.wipe()
        return plan

    def fill(self, count: int, name: str = "filler") -> None:
        """Some other request stores ``count`` chunks, one at a time, and ends."""
        request = Request(name)
        for number in range(count):
            self.store(request, [content_key(name, number)])
        self.scheduler.request_finished(request)

    def begin_load(self, request: Request, keys: Sequence[bytes], at: int = 0) -> Transfer:
        transfer = self.scheduler.prepare_load(request, list(keys))
        assert transfer is not None
        self.submit(transfer, self.rows(len(transfer.keys), at))
        return transfer

    def load(self, request: Request, keys: Sequence[bytes]) -> list[bool]:
        """The verdict per key that was loaded; the good ones are checked bit for bit."""
        transfer = self.scheduler.prepare_load(request, list(keys))
        assert transfer is not None
        return self.run_checked(transfer)

    def run_checked(self, transfer: Transfer) -> list[bool]:
        """Load; the good ones are checked bit for bit."""
        verdicts = self.run(transfer, self.rows(len(transfer.keys)))
        rows = self.rows(len(verdicts))
        good = [i for i, moved in enumerate(verdicts) if moved]
        assert self.holds([transfer.keys[i] for i in good], [rows[i] for i in good])
        self.wipe()
        return verdicts

    def hits(self, keys: Sequence[bytes]) -> int:
        """What a request that comes and goes would find."""
        request = Request("passer-by")
        found = self.scheduler.lookup(request, list(keys))
        self.scheduler.request_finished(request)
        assert found is not None
        return found

    def held(self) -> dict[str, float]:
        """What is not at rest (L2), once an idle engine has done what was left to do."""
        self.step()
        ends = time.monotonic() + 1.0  # where a store hangs, it is not over by then
        while self.backend.has_pending_work() and time.monotonic() < ends:
            self.step()
        figures = self.scheduler.collect_stats()
        names = ("leases", "reservations", "loading", "transfers", "requests")
        left = {name: figures.get(name, 0) for name in names}
        for rank, worker in enumerate(self.workers):
            left[f"transfers of rank {rank}"] = worker.transfers_running
            left[f"quarantine of rank {rank}"] = worker.pool.quarantined
        return {name: count for name, count in left.items() if count}

    def close(self, deadline: float = PATIENCE_S) -> list[int]:
        left = {id_ for worker in self.workers for id_ in worker.close(deadline)}
        return sorted(left.union(self.scheduler.close(deadline)))


@dataclass
class Opener:
    """Opens rigs over one case; those that share ``path`` and shelf see each other's objects."""

    case: Case
    path: Path
    shelf: Shelf
    stack: ExitStack

    def __call__(
        self,
        chunks: int = 8,
        *,
        ranks: int = 1,
        namespace: Namespace = NAMESPACE,
        policies: Sequence[tuple[str, Any]] = (),
        settings: Settings | None = None,
        strict: bool = True,
        wrap: Callable[[Backend], Backend] = lambda backend: backend,
    ) -> Rig:
        geometry = Geometry(BLOCK_TOKENS, LAYERS * PAGE_BYTES, BLOCKS_PER_CHUNK, ranks)
        make = self.case.configure(chunks, geometry, self.path, self.shelf)
        rig = Rig(make, geometry, namespace, list(policies), settings or Settings(), strict, wrap)
        self.stack.callback(rig.close)
        return rig


@pytest.fixture
def stack(shelf: Shelf) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack
        shelf.let_go()  # before the rigs close


@pytest.fixture
def open_rig(case: Case, tmp_path: Path, shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over every backend that keeps what it is given."""
    return Opener(case, tmp_path / "store", shelf, stack)


@pytest.fixture
def open_any(any_case: Case, tmp_path: Path, shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over every backend."""
    return Opener(any_case, tmp_path / "store", shelf, stack)


@pytest.fixture
def open_shelf(tmp_path: Path, shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over the store that can misbehave."""
    return Opener(_HERE[1], tmp_path, shelf, stack)


@pytest.fixture
def open_memory(tmp_path: Path, shelf: Shelf, stack: ExitStack) -> Opener:
    """Opens engines over the pinned backend that is always there."""
    return Opener(_HERE[0], tmp_path, shelf, stack)


class Clock:
    """Stands still until told otherwise."""

    def __init__(self, now: float) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def store_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of every block store's worker."""
    clock = Clock(store_worker.time.monotonic())
    monkeypatch.setattr(store_worker, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


@pytest.fixture
def keys() -> list[bytes]:
    """Eight keys in prefix order."""
    return [content_key("prompt", number) for number in range(8)]


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What kvconn logged so far, one line each."""
    return lambda: [r.getMessage() for r in caplog.records if r.name.startswith("kvconn")]
