"""What two tiers do together that neither does alone."""

from __future__ import annotations

import time

import pytest
import torch

from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches
from kvconn.testing.counting import CountingBackend
from kvconn.types import ABSENT, EventKind, Request, TransferKind

pytestmark = pytest.mark.needs("cpu", "disk")

PAGE = 3000
GEOMETRY, SPACE = Geometry(4, PAGE, 2), Namespace("model")
SLOT = 8192
PLAIN, READER = Request("plain"), Request("reader")


class Engine:
    """Both halves in one process over ``cpu`` and ``disk``, driven by hand."""

    def __init__(self, path, fast_chunks: int, write: str, **options) -> None:
        self.doors: list[CountingBackend] = []

        def count(backend):
            self.doors.append(CountingBackend(backend))
            return self.doors[-1]

        tiers = [f"cpu://?capacity={fast_chunks * SLOT}", f"disk://{path}?capacity=64MiB"]
        self.connector = Connector.load(
            {"backend": tiers, "write": write, "strict": True, **options}, wrap=count
        )
        self.pages = torch.zeros(64, PAGE, dtype=torch.uint8)
        self.scheduler = self.connector.open_scheduler(GEOMETRY, SPACE)
        caches = KVCaches({"layer": self.pages}, num_blocks=64, blocks_per_chunk=2)
        self.worker = self.connector.open_worker(GEOMETRY, SPACE, caches)
        self.ended: dict[int, list[bool]] = {}

    @property
    def fast(self) -> CountingBackend:
        return self.doors[0]

    @property
    def slow(self) -> CountingBackend:
        return self.doors[1]

    def collect(self, transfer) -> list[bool]:
        self.worker.wait([transfer.id], 20)
        for id_, verdicts in self.worker.poll():
            self.ended[id_] = verdicts
        verdicts = self.ended.pop(transfer.id)
        self.scheduler.complete_transfer(transfer, verdicts)
        return verdicts

    def step(self) -> list:
        """One engine step; every move is handed out and waited for."""
        moves = self.scheduler.step()
        for move in moves:
            self.worker.submit(move, [])
        for move in moves:
            self.collect(move)
        return moves

    def settle(self) -> None:
        ends = time.monotonic() + 20
        self.step()
        while self.scheduler.has_pending_work():
            self.step()
            assert time.monotonic() < ends, "it never comes to rest"

    def begin_store(self, request, keys):
        for i, key in enumerate(keys):
            self.pages[2 * i : 2 * i + 2] = key[0]
        plan = self.scheduler.prepare_store(request, keys)
        if plan.transfer is not None:
            where = {key: [2 * i, 2 * i + 1] for i, key in enumerate(keys)}
            self.worker.submit(plan.transfer, [where[key] for key in plan.accepted])
        return plan

    def store(self, request, keys) -> None:
        """Stored in the fast tier; and in the slow one after :meth:`settle`."""
        plan = self.begin_store(request, keys)
        if plan.transfer is not None:
            self.collect(plan.transfer)
        self.pages.zero_()

    def load(self, request, keys, absent: int = 0) -> list[bool]:
        """Checked byte for byte; the first ``absent`` blocks are not written."""
        found = self.scheduler.lookup(request, keys)
        if not found:
            return []
        transfer = self.scheduler.prepare_load(request, keys[:found])
        rows = [[2 * i, 2 * i + 1] for i in range(len(transfer.keys))]
        rows[0] = [ABSENT] * absent + rows[0][absent:]
        self.worker.submit(transfer, rows)
        verdicts = self.collect(transfer)
        for i, (key, good) in enumerate(zip(transfer.keys, verdicts, strict=True)):
            blocks = [block for block in rows[i] if block != ABSENT]
            wanted = key[0] if good else 0
            assert (self.pages[blocks] == wanted).all()
        self.pages.zero_()
        return verdicts

    def held(self) -> dict[str, float]:
        figures = self.scheduler.collect_stats()
        names = ("leases", "reservations", "loading", "transfers")
        return {name: figures[name] for name in names if figures[name]}

    def close(self) -> None:
        assert self.connector.close() == []


@pytest.fixture
def open_engine(tmp_path):
    engines = []

    def open_it(fast_chunks: int = 4, write: str = "write_through", **options) -> Engine:
        engines.append(Engine(tmp_path / "store", fast_chunks, write, **options))
        return engines[-1]

    yield open_it
    for engine in engines:
        engine.close()


@pytest.fixture
def keys():
    return [content_key("prompt", number) for number in range(12)]


def other_keys(count: int, name: str = "other"):
    return [content_key(name, number) for number in range(count)]


@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_what_the_fast_tier_has_no_room_for_comes_from_the_slow_one(open_engine, keys, write):
    engine = open_engine(write=write)
    for start in range(0, 12, 4):
        engine.store(PLAIN, keys[start : start + 4])
        engine.settle()
    assert engine.load(READER, keys) == [True] * 12


def test_a_prefix_in_both_tiers_is_one_hit(open_engine, keys):
    engine = open_engine()
    engine.store(PLAIN, keys[:4])
    engine.settle()
    engine.store(PLAIN, keys[4:8])  # pushes the first four out of the fast tier
    engine.settle()
    assert engine.scheduler.lookup(READER, keys) == 8
    transfer = engine.scheduler.prepare_load(READER, keys[:8])
    assert list(transfer.keys) == keys[:8]
    engine.scheduler.complete_transfer(transfer, [])
    assert engine.slow.plain.loads == 1
    assert engine.fast.plain.loads == 1


def test_the_fast_tier_is_asked_alone_when_it_has_everything(open_engine, keys):
    engine = open_engine()
    engine.store(PLAIN, keys[:4])
    assert engine.scheduler.lookup(READER, keys[:4]) == 4
    assert engine.slow.plain.lookups == 0


def test_asking_again_and_giving_up_leaves_no_lease_in_any_tier(open_engine, keys):
    engine = open_engine()
    for start in (0, 4):
        engine.store(PLAIN, keys[start : start + 4])
        engine.settle()
    for count in (8, 3, 12, 8):
        engine.scheduler.lookup(READER, keys[:count])
    engine.scheduler.release(READER)
    assert engine.held() == {}
    engine.scheduler.lookup(READER, keys[:8])
    engine.scheduler.request_finished(READER)
    assert engine.held() == {}


# -- promotion -------------------------------------------------------------------------------------


def pushed_down(engine, keys) -> None:
    """``keys`` lie in the slow tier alone."""
    engine.store(PLAIN, keys)
    engine.settle()
    engine.store(PLAIN, other_keys(4))
    engine.settle()


def test_a_hit_in_the_slow_tier_is_promoted_with_a_move(open_engine, keys):
    engine = open_engine()
    pushed_down(engine, keys[:4])
    assert engine.load(READER, keys[:4]) == [True] * 4
    moves = engine.step()
    assert [(move.kind, move.keys) for move in moves] == [(TransferKind.MOVE, tuple(keys[:4]))]
    loads = engine.slow.plain.loads
    assert engine.load(Request("later"), keys[:4]) == [True] * 4
    assert engine.slow.plain.loads == loads


def test_a_promotion_reads_the_disk_once(open_engine, keys):
    engine = open_engine()
    pushed_down(engine, keys[:4])
    engine.load(READER, keys[:4])
    engine.settle()
    assert engine.worker.figures()["get_objects"] == 4


def test_a_chunk_of_which_a_part_is_not_loaded_is_not_promoted(open_engine, keys):
    engine = open_engine()
    pushed_down(engine, keys[:4])
    assert engine.load(READER, keys[:4], absent=1) == [True] * 4
    engine.settle()
    figures = engine.scheduler.collect_stats()
    assert figures["cpu_stored"] == 4 + 4 + 3
    assert engine.held() == {}


def test_a_promotion_that_has_not_come_yet_keeps_its_place(open_engine, keys):
    """The move is asked about before the load that it waits for has ended."""
    engine = open_engine()
    pushed_down(engine, keys[:4])
    engine.scheduler.lookup(READER, keys[:4])
    transfer = engine.scheduler.prepare_load(READER, keys[:4])
    moves = engine.scheduler.step()
    for move in moves:
        engine.worker.submit(move, [])  # never began: this rank does not know the load
    assert [verdicts for _, verdicts in engine.worker.poll()] == [[False] * 4]
    engine.scheduler.complete_transfer(moves[0], [])
    rows = [[2 * i, 2 * i + 1] for i in range(4)]
    engine.worker.submit(transfer, rows)
    again = [transfer.id]
    engine.worker.wait(again, 20)
    engine.worker.poll()
    engine.scheduler.complete_transfer(transfer, [True] * 4)


def test_R1_a_skipping_request_promotes_and_looks_up_nothing(open_engine, keys):
    engine = open_engine()
    pushed_down(engine, keys[:4])
    skipping = Request("skipping", skip_reading_prefix_cache=True)
    assert engine.scheduler.lookup(skipping, keys[:4]) == 0
    assert engine.scheduler.prepare_load(skipping, keys[:4]) is None
    before = [(d.plain.lookups, d.plain.loads) for d in engine.doors]
    engine.store(skipping, other_keys(6, "new"))
    engine.settle()
    engine.scheduler.request_finished(skipping)
    assert [(d.plain.lookups, d.plain.loads) for d in engine.doors] == before
    assert [(d.skipping.lookups, d.skipping.loads) for d in engine.doors] == [(0, 0), (0, 0)]
    assert engine.load(READER, other_keys(6, "new")) == [True] * 6


# -- the slow tier in the background ---------------------------------------------------------------


def test_a_slow_store_delays_nothing(open_engine, keys):
    engine = open_engine()
    plan = engine.begin_store(PLAIN, keys[:4])
    assert engine.collect(plan.transfer) == [True] * 4
    assert engine.load(READER, keys[:4]) == [True] * 4  # though nobody heard of the disk yet
    assert engine.scheduler.has_pending_work()
    engine.settle()
    assert engine.held() == {}


def test_written_back_is_what_the_fast_tier_evicts_and_nothing_else(open_engine, keys):
    engine = open_engine(write="write_back")
    engine.store(PLAIN, keys[:4])
    engine.settle()
    assert engine.scheduler.collect_stats()["disk_entries"] == 0
    engine.store(PLAIN, keys[4:7])
    engine.settle()
    assert engine.scheduler.collect_stats()["disk_entries"] == 3
    assert engine.load(READER, keys[:7]) == [True] * 7


def test_many_evictions_at_once_are_written_back(open_engine, keys):
    engine = open_engine(fast_chunks=28, write="write_back")
    first, second = other_keys(28, "first"), other_keys(28, "second")
    engine.store(PLAIN, first)
    engine.store(PLAIN, second)
    engine.settle()
    assert engine.load(READER, first) == [True] * 28
    engine.settle()  # what made way for them is on its way down
    assert engine.load(Request("later"), second) == [True] * 28


# -- a tier that fails -----------------------------------------------------------------------------


def broken(*_):
    raise OSError


def test_a_broken_slow_tier_is_passed_over_and_comes_back(open_engine, keys, monkeypatch):
    engine = open_engine()
    with monkeypatch.context() as patch:
        for hook in ("lookup", "prepare_store", "touch", "step"):
            patch.setattr(engine.slow, hook, broken)
        engine.store(PLAIN, keys[:4])
        engine.step()
        assert engine.load(READER, keys) == [True] * 4
    engine.store(PLAIN, keys[4:8])
    engine.settle()
    assert engine.scheduler.collect_stats()["disk_entries"] > 0
    assert engine.held() == {}


def test_a_broken_fast_tier_is_passed_over_and_no_block_of_the_other_is_lost(
    open_engine, keys, monkeypatch
):
    engine = open_engine()
    engine.store(PLAIN, keys[:4])
    engine.settle()
    with monkeypatch.context() as patch:
        for hook in ("lookup", "prepare_load", "prepare_store", "touch"):
            patch.setattr(engine.fast, hook, broken)
        assert engine.load(READER, keys[:4]) == [True] * 4
        engine.store(PLAIN, keys[4:8])  # into the slow tier alone
    engine.settle()
    assert engine.load(Request("later"), keys[:8]) == [True] * 8
    assert engine.held() == {}


def test_a_slow_load_that_fails_loses_no_block_of_the_fast_tier(open_engine, keys, tmp_path):
    engine = open_engine()
    engine.store(PLAIN, keys[:4])
    engine.settle()
    engine.store(PLAIN, keys[4:8])
    engine.settle()
    for path in (tmp_path / "store").rglob("*.kv"):
        path.unlink()
    assert engine.load(READER, keys[:8]) == [False] * 4 + [True] * 4
    engine.settle()
    assert engine.load(Request("later"), keys[4:8]) == [True] * 4


# -- the whole -------------------------------------------------------------------------------------


def test_L5_a_reset_empties_both_and_says_so(open_engine, keys, tmp_path):
    engine = open_engine()
    engine.store(PLAIN, keys[:4])
    engine.settle()
    assert engine.scheduler.reset() == {"cpu": 4, "disk": 4}
    engine.settle()
    assert engine.load(READER, keys[:4]) == []
    assert list((tmp_path / "store").rglob("*.kv")) == []


def test_a_block_that_leaves_one_tier_is_not_reported_as_gone_from_the_other(open_engine, keys):
    engine = open_engine(events=True)
    pushed_down(engine, keys[:4])
    gone = {e.tier for e in engine.scheduler.take_events() if e.kind is EventKind.REMOVED}
    assert gone == {"cpu"}


def test_two_tiers_of_a_kind_have_names_of_their_own(tmp_path):
    tiers = [f"disk://{tmp_path}/{name}?capacity=16MiB" for name in ("a", "b", "c")]
    with Connector.load({"backend": tiers}) as connector:
        scheduler = connector.open_scheduler(GEOMETRY, SPACE)
        assert scheduler.reset() == {"disk": 0, "disk#2": 0, "disk#3": 0}
        assert {"disk_entries", "disk#2_entries", "disk#3_entries"} <= set(
            scheduler.collect_stats()
        )


def test_a_restart_finds_what_the_slow_tier_has(open_engine, keys):
    engine = open_engine()
    engine.store(PLAIN, keys)
    engine.settle()
    engine.close()
    again = open_engine()
    assert again.load(READER, keys) == [True] * 12
