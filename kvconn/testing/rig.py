"""One engine driven by hand: its two halves, real pages, real bytes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kvconn.backend import Backend, Settings, WorkerSide
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches
from kvconn.ranks import RankVerdicts
from kvconn.scheduler import SchedulerConnector
from kvconn.types import Request, Transfer
from kvconn.worker import WorkerConnector

if TYPE_CHECKING:
    from kvconn.geometry import Geometry
    from kvconn.identity import Key

__all__ = ["BLOCK_TOKENS", "NUM_CHUNKS", "PATIENCE_S", "Rig", "geometry_of"]

BLOCK_TOKENS, BLOCKS_PER_CHUNK, NUM_CHUNKS = 4, 2, 24
LAYERS, PAGE_BYTES = 2, 256
PATIENCE_S = 20.0
"""Seconds after which something that should have happened never will."""


def geometry_of(ranks: int = 1, replicas: int = 1) -> Geometry:
    """What the kit's engines register: chunks of two blocks over two layers, 1 KiB a rank."""
    from kvconn.geometry import Geometry  # noqa: PLC0415 - a type above, a value here

    return Geometry(BLOCK_TOKENS, LAYERS * PAGE_BYTES, BLOCKS_PER_CHUNK, ranks, replicas)


class Rig:
    """An engine's two halves and what an engine does with them, one call at a time.

    Each half has a backend instance of its own, as in real life, where they are different
    processes.  One thread.  What a page holds is decided by its key and its rank, so that every
    loaded byte can be checked.
    """

    def __init__(
        self,
        make: Callable[[], Backend],
        geometry: Geometry,
        namespace: Namespace,
        *,
        policies: Sequence[tuple[str, Any]] = (),
        settings: Settings | None = None,
        strict: bool = True,
        wrap: Callable[[Any], Any] = lambda backend: backend,
    ) -> None:
        """``make`` answers one more instance over the same store; ``wrap`` goes before it."""
        self.make, self.geometry, self.namespace = make, geometry, namespace
        settings = settings or Settings()
        self.backend: Any = wrap(make())
        self.scheduler: Any = SchedulerConnector(
            self.backend, policies, geometry, namespace, settings=settings, strict=strict
        )
        self.pages = [
            {
                f"layer {i}": torch.zeros(self.blocks, PAGE_BYTES, dtype=torch.uint8)
                for i in range(LAYERS)
            }
            for _ in range(geometry.workers)
        ]
        self.workers = [
            WorkerConnector(
                make(), geometry, namespace,
                KVCaches(pages, num_blocks=self.blocks, blocks_per_chunk=BLOCKS_PER_CHUNK),
                shard=geometry.shard(rank), settings=settings,
            )
            for rank, pages in enumerate(self.pages)
        ]  # fmt: skip
        self.ranks = RankVerdicts(geometry.workers)
        self.ended: dict[int, list[bool]] = {}
        """Verdicts that nobody asked about yet."""

    def step(self) -> list[Transfer]:
        """An engine's step: what a backend moves by itself goes to every rank."""
        moves: list[Transfer] = self.scheduler.step()
        for move in moves:
            self.submit(move, [])
        for move in moves:
            self.collect(move)
        return moves

    @property
    def blocks(self) -> int:
        """Of the engine, per rank."""
        return NUM_CHUNKS * BLOCKS_PER_CHUNK

    @property
    def capacity(self) -> int:
        """In chunks, as the backend says it."""
        return int(self.figures()["capacity"])

    def figures(self) -> dict[str, float]:
        """What the connector and its backend count."""
        return dict(self.scheduler.collect_stats())

    @property
    def sides(self) -> list[WorkerSide]:
        """What the backend itself answered to ``open_worker``, by rank."""
        return [worker._side for worker in self.workers]  # noqa: SLF001 - the kit looks behind it

    # -- content ---------------------------------------------------------------------------

    def content(self, key: bytes, rank: int) -> torch.Tensor:
        """What a chunk's pages hold: shape (layers, blocks, bytes)."""
        shard = rank // self.geometry.replicas
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=6).digest(), "big") + shard
        generator = torch.Generator().manual_seed(seed)
        size = (LAYERS, BLOCKS_PER_CHUNK, PAGE_BYTES)
        return torch.randint(1, 256, size, generator=generator, dtype=torch.uint8)

    def rows(self, count: int, at: int = 0) -> list[list[int]]:
        """The engine's blocks for ``count`` chunks, from its chunk ``at`` on."""
        return self.geometry.rows(range(self.blocks), range(at, at + count))

    def compute(self, keys: Sequence[bytes], at: int = 0) -> list[list[int]]:
        """Write what ``keys`` stand for into pages; their rows."""
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
        """Whether no page was written since."""
        return not any(layer.any() for pages in self.pages for layer in pages.values())

    # -- transfers -------------------------------------------------------------------------

    def submit(self, transfer: Transfer, rows: list[list[int]]) -> None:
        """Hand it to every rank, as bytes."""
        self.ranks.expect(transfer)
        wire = transfer.to_bytes()
        for worker in self.workers:
            worker.submit(Transfer.from_bytes(wire), rows)

    def moved(self, transfer: Transfer) -> list[bool]:
        """Wait for every rank's verdicts, and keep them from the scheduler."""
        for rank, worker in enumerate(self.workers):
            if transfer.id not in self.ended:
                worker.wait([transfer.id], PATIENCE_S)
            for transfer_id, verdicts in worker.poll():
                whole = self.ranks.report(rank, transfer_id, verdicts)
                if whole is not None:
                    self.ended[whole[0].id] = whole[1]
        assert transfer.id in self.ended, f"no worker said in {PATIENCE_S:.0f} s how it ended"
        return self.ended.pop(transfer.id)

    def collect(self, transfer: Transfer) -> list[bool]:
        """Wait for every rank, and complete the transfer."""
        verdicts = self.moved(transfer)
        self.scheduler.complete_transfer(transfer, verdicts)
        return verdicts

    def run(self, transfer: Transfer, rows: list[list[int]]) -> list[bool]:
        """From submission to completion."""
        self.submit(transfer, rows)
        return self.collect(transfer)

    # -- what a request does ---------------------------------------------------------------

    def lookup(self, request: Request, keys: Sequence[Key]) -> int:
        """As a waiting request does: ask in every step until there is an answer."""
        ends = time.monotonic() + PATIENCE_S
        while (answer := self.scheduler.lookup(request, list(keys))) is None:
            self.step()
            assert time.monotonic() < ends, "a lookup is answered PENDING for ever"
            time.sleep(0.001)  # what answers is another thread
        return int(answer)

    def begin_store(self, request: Request, keys: Sequence[Key], at: int = 0) -> Any:  # noqa: ANN401 - a plan that is taken at its word
        """Compute and offer; what was accepted is on its way when this returns."""
        plan = self.scheduler.prepare_store(request, list(keys))
        if plan.transfer is not None:
            self.submit(plan.transfer, self.compute(plan.accepted, at))
        return plan

    def store(self, request: Request, keys: Sequence[Key]) -> Any:  # noqa: ANN401 - as above
        """Compute, offer, and wait; the pages are used again afterwards."""
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

    def begin_load(self, request: Request, keys: Sequence[Key], at: int = 0) -> Transfer:
        """A load of what was looked up, on its way."""
        transfer: Transfer | None = self.scheduler.prepare_load(request, list(keys))
        assert transfer is not None, "prepare_load answered nothing for leased hits"
        self.submit(transfer, self.rows(len(transfer.keys), at))
        return transfer

    def load(self, request: Request, keys: Sequence[Key]) -> list[bool]:
        """The verdict per key that was loaded; the good ones are checked bit for bit."""
        transfer = self.scheduler.prepare_load(request, list(keys))
        assert transfer is not None, "prepare_load answered nothing for leased hits"
        return self.run_checked(transfer)

    def run_checked(self, transfer: Transfer) -> list[bool]:
        """Load; the good ones are checked bit for bit."""
        verdicts = self.run(transfer, self.rows(len(transfer.keys)))
        rows = self.rows(len(verdicts))
        good = [i for i, moved in enumerate(verdicts) if moved]
        assert self.holds([transfer.keys[i] for i in good], [rows[i] for i in good]), (
            "a load that was reported good left wrong bytes in the engine's pages"
        )
        self.wipe()
        return verdicts

    def hits(self, keys: Sequence[Key]) -> int:
        """What a request that comes and goes would find."""
        request = Request("passer-by")
        found = self.lookup(request, keys)
        self.scheduler.request_finished(request)
        return found

    # -- the end ---------------------------------------------------------------------------

    def sweep(self) -> None:
        """Let an idle engine step for as long as the backend has something to do."""
        ends = time.monotonic() + PATIENCE_S
        while self.backend.has_pending_work():
            self.step()
            assert time.monotonic() < ends, "has_pending_work never becomes false"
            time.sleep(0.001)

    def held(self) -> dict[str, float]:
        """What is not at rest (L2), once an idle engine has done what was left to do."""
        self.step()
        ends = time.monotonic() + 1.0  # where a store hangs, it is not over by then
        while self.backend.has_pending_work() and time.monotonic() < ends:
            self.step()
        figures = self.figures()
        names = ("leases", "reservations", "loading", "transfers", "requests")
        left = {name: figures.get(name, 0) for name in names}
        for rank, worker in enumerate(self.workers):
            left[f"transfers of rank {rank}"] = worker.transfers_running
            left[f"quarantine of rank {rank}"] = worker.pool.quarantined
        return {name: count for name, count in left.items() if count}

    def close(self, deadline: float | None = None) -> list[int]:
        """Both halves; the ids of the transfers left behind."""
        deadline = PATIENCE_S if deadline is None else deadline
        left = {id_ for worker in self.workers for id_ in worker.close(deadline)}
        return sorted(left.union(self.scheduler.close(deadline)))
