"""F1 to F3 and F9: what fails costs blocks, and nothing else."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from kvconn.backend import Backend, Settings
from kvconn.identity import content_key
from kvconn.testing.faults import Faults, FaultyStore
from kvconn.testing.rig import PATIENCE_S, Rig
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import Request

if TYPE_CHECKING:
    from kvconn.identity import Key

__all__ = ["FailureRules"]

ENOUGH_S = 2.0
"""More than a busy machine adds to a wait that ends by itself."""
PLAIN, READER = Request("plain"), Request("reader")
ROUGH = Faults(
    fails=0.04, delays=0.1, truncates=0.06, corrupts=0.12, lies=0.03, duplicates=0.05, reorders=0.1
)
"""Rates at which every fault comes up in a run of a few hundred calls, and hits still happen."""


def fail_load(rig: Rig, request: Request, keys: list[Key], bad: int) -> None:
    """Load ``keys``; one of them does not come."""
    transfer = rig.scheduler.prepare_load(request, keys)
    assert transfer is not None
    rig.submit(transfer, rig.rows(len(transfer.keys)))
    rig.moved(transfer)
    rig.wipe()
    rig.scheduler.complete_transfer(transfer, [i != bad for i in range(len(transfer.keys))])


def works(rig: Rig, keys: list[Key]) -> bool:
    """Whether a store, a hit and a load, bit for bit, go well."""
    request = Request("works")
    stored = rig.store(request, keys).accepted == tuple(keys)
    found = rig.lookup(request, keys) == len(keys)
    loaded = found and rig.load(request, keys) == [True] * len(keys)
    rig.scheduler.request_finished(request)
    return stored and found and loaded


class FailureRules(Kit):
    """A cache never takes the engine down, and never lies."""

    # -- F1: completion is per key -----------------------------------------------------------

    @needs("keeps")
    def test_F1_a_key_without_a_verdict_has_failed(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys)
        rig.moved(plan.transfer)
        rig.scheduler.complete_transfer(plan.transfer, [True, True, False])
        assert rig.hits(keys) == 2
        assert rig.scheduler.stats.stored == 2
        assert rig.scheduler.stats.failed_stores == 6

    @needs("keeps", "one_tier")
    def test_F1_a_failed_key_is_a_miss_to_everyone_at_once(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        other = Request("other")
        assert rig.lookup(READER, keys) == 8
        assert rig.lookup(other, keys) == 8
        fail_load(rig, READER, keys, bad=2)
        assert rig.hits(keys) == 2
        assert rig.lookup(other, keys) == 2

    @needs("keeps", "one_tier")
    def test_F1_another_lease_does_not_keep_a_failed_key_loadable(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        other = Request("other")
        rig.lookup(READER, keys)
        rig.lookup(other, keys)
        fail_load(rig, READER, keys, bad=2)
        transfer = rig.scheduler.prepare_load(other, keys)
        assert transfer is not None
        assert transfer.keys == tuple(keys[:2])
        assert rig.run_checked(transfer) == [True, True]

    @needs("keeps", "one_tier")
    def test_F1_a_failed_key_is_not_offered_to_that_request_again_though_stored_anew(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        fail_load(rig, READER, keys, bad=2)
        rig.sweep()
        assert rig.store(PLAIN, keys).accepted == (keys[2],)
        assert rig.hits(keys) == 8
        assert rig.lookup(READER, keys) == 2
        assert rig.load(READER, keys) == [True, True]
        assert rig.scheduler.lookup(READER, keys[2:]) == 0
        assert rig.scheduler.prepare_load(READER, keys[2:]) is None

    @needs("keeps", "one_tier")
    def test_F1_two_requests_that_fail_on_one_key_leave_its_new_copy_alone(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:1])
        first, second = Request("first"), Request("second")
        transfers = []
        for request in (first, second):
            assert rig.lookup(request, keys[:1]) == 1
            transfers.append(rig.begin_load(request, keys[:1]))
        for transfer in transfers:
            rig.workers[0].wait([transfer.id], PATIENCE_S)
        rig.workers[0].poll()
        rig.scheduler.complete_transfer(transfers[0], [False])
        rig.sweep()
        assert rig.store(PLAIN, keys[:1]).accepted == (keys[0],)
        rig.scheduler.complete_transfer(transfers[1], [False])
        rig.fill(2)  # what carries deletions, if there are any
        rig.sweep()
        assert rig.lookup(READER, keys[:1]) == 1
        assert rig.load(READER, keys[:1]) == [True]

    @needs("keeps", "block_store", "seen")
    def test_F1_an_object_that_is_gone_is_a_failed_key_and_its_neighbours_are_loaded(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        self.remove_object(sorted(self.stored_objects())[3])
        assert rig.lookup(READER, keys) == 8
        verdicts = rig.load(READER, keys)
        assert verdicts.count(False) == 1
        assert rig.hits([keys[verdicts.index(False)]]) == 0
        rig.scheduler.request_finished(READER)
        rig.scheduler.request_finished(PLAIN)
        assert rig.held() == {}

    # -- F2: whatever goes wrong -------------------------------------------------------------

    @needs("keeps")
    @pytest.mark.parametrize("rows", [[], [[0, 1]], [[0, 1]] * 9, [[0]] * 8, [[0, 10**6]] * 8])
    @pytest.mark.parametrize("loading", [False, True])
    def test_F2_rows_that_do_not_fit_fail_the_transfer_and_leak_no_slot(
        self, open_rig: Open, keys: list[Key], rows: list[list[int]], loading: bool
    ) -> None:
        rig = open_rig()
        free = rig.workers[0].pool.free
        if loading:
            rig.store(PLAIN, keys)
            rig.lookup(PLAIN, keys)
            transfer = rig.scheduler.prepare_load(PLAIN, keys)
        else:
            transfer = rig.scheduler.prepare_store(PLAIN, keys).transfer
        assert rig.run(transfer, rows) == [False] * 8
        rig.scheduler.request_finished(PLAIN)
        assert rig.workers[0].pool.free == free
        assert rig.held() == {}
        rig.sweep()
        assert works(rig, keys)

    @needs("keeps")
    def test_F2_after_many_failed_transfers_the_next_operations_work(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        for number in range(20):
            request = Request(f"{number}")
            plan = rig.begin_store(request, keys)
            rig.moved(plan.transfer)
            rig.scheduler.complete_transfer(plan.transfer, [True] * (number % 2))
            rig.scheduler.request_finished(request)
            rig.scheduler.reset()
            rig.sweep()
            rig.wipe()
        ends = time.monotonic() + PATIENCE_S
        while not works(rig, keys):  # a circuit may have opened: it closes by itself
            assert time.monotonic() < ends, "it never works again"
            rig.step()
            rig.scheduler.reset()
            rig.sweep()
            time.sleep(0.05)
        assert rig.held() == {}

    @needs("keeps", "block_store")
    @pytest.mark.parametrize("seed", range(2))
    def test_F2_over_a_store_that_fails_corrupts_lies_and_reorders_no_wrong_byte_is_loaded(
        self, open_rig: Open, seed: int
    ) -> None:
        for number in range(self.profile.seeds // 2):
            self._run_over_faults(open_rig, seed + 2 * number)

    def _run_over_faults(self, open_rig: Open, seed: int) -> None:
        rates = {
            name: rate for name, rate in vars(ROUGH).items() if name in Faults.__dataclass_fields__
        }
        faults = Faults(**{**rates, "seed": seed, "done": type(ROUGH.done)()})
        rig = self._open_faulty(open_rig, faults, chunks=6)
        draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
        prompts = [[content_key(seed, number, i) for i in range(4)] for number in range(4)]
        for turn in range(120):
            request = Request(f"{turn}")
            keys = draw.choice(prompts)
            if rig.lookup(request, keys):
                transfer = rig.scheduler.prepare_load(request, keys)
                if transfer is not None:
                    rig.run_checked(transfer)
            rig.store(request, keys)
            rig.scheduler.request_finished(request)
            rig.step()
        assert sum(faults.done.values()) > 10, "hardly anything went wrong"
        faults.stop()
        rig.sweep()
        assert rig.held() == {}
        rig.close()

    def _open_faulty(self, open_rig: Open, faults: Faults, **how: Any) -> Rig:  # noqa: ANN401
        """An engine over this backend, whose store has ``faults``."""
        honest = self.make_backend

        def make(capacity: int) -> Backend:
            backend: Any = honest(capacity)
            backend.Store = partial(_faulty, backend.Store, faults)
            return backend  # type: ignore[no-any-return] # it is one

        self.make_backend = make  # type: ignore[method-assign] # for this test's instance
        try:
            return open_rig(**how)
        finally:
            self.make_backend = honest  # type: ignore[method-assign]

    def test_F2_hooks_leave_the_keys_that_they_are_shown_as_they_are(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        backend, shown = rig.backend, list(keys)
        backend.request_started(PLAIN)
        for hook in (backend.touch, backend.prepare_store, backend.lookup, backend.prepare_load):
            hook(PLAIN, shown)
            assert shown == keys, f"{hook.__name__} changed its argument"
        backend.holds(shown)
        assert shown == keys

    # -- F3: every wait has an end -----------------------------------------------------------

    @needs("keeps", "block_store")
    def test_F3_a_store_that_hangs_costs_blocks_and_the_engine_goes_on(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        faults = Faults()
        rig = self._open_faulty(
            open_rig, faults, settings=Settings(transfer_timeout_s=0.2), chunks=16
        )
        rig.store(PLAIN, keys)
        faults.hangs = 1.0
        rig.lookup(READER, keys)
        began = time.monotonic()
        assert rig.load(READER, keys) == [False] * 8
        assert rig.is_wiped()
        assert rig.hits(keys) == 0
        assert rig.close(1.0) is not None
        assert time.monotonic() - began < PATIENCE_S, "the engine waited for a store that hangs"
        faults.let_go()

    def test_F3_waiting_for_a_transfer_ends_at_the_deadline_or_before(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        began = time.monotonic()
        for side in rig.sides:
            side.wait([10**12], 0.05)  # nobody submitted it
            assert side.flush([10**12], 0.05) in (True, False)
        assert time.monotonic() - began < ENOUGH_S, "a wait of 0.05 s took longer than that"
        rig.store(PLAIN, keys)

    # -- F9: close ---------------------------------------------------------------------------

    def test_F9_close_may_be_called_twice_and_says_that_nothing_was_left(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        assert rig.close() == []
        assert rig.close() == []
        for backend in (rig.backend, rig.backend):
            backend.close(1.0)
        assert rig.figures()["backend_errors"] == 0
        assert [worker.errors for worker in rig.workers] == [0]

    def test_F9_close_says_which_transfers_nobody_completed(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        transfer = rig.scheduler.prepare_store(PLAIN, keys).transfer
        assert rig.close() == [transfer.id]
        assert rig.close() == [transfer.id]

    def test_F9_close_may_come_from_another_thread(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        answers: list[list[int]] = []
        threads = [threading.Thread(target=lambda: answers.append(rig.close())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert answers == [[]] * 3

    def test_F9_close_returns_in_time_with_transfers_on_their_way(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.begin_store(PLAIN, keys)
        began = time.monotonic()
        for side in rig.sides:
            side.close(1.0)
        assert time.monotonic() - began < 1.0 + ENOUGH_S, "close(1.0) took longer than that"
        rig.close(1.0)
        assert time.monotonic() - began < 2.0 + 2 * ENOUGH_S

    def test_F9_nothing_is_left_running_after_close(self, open_rig: Open, keys: list[Key]) -> None:
        before = set(threading.enumerate())
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.close()
        ends = time.monotonic() + PATIENCE_S
        while left := set(threading.enumerate()) - before:
            assert time.monotonic() < ends, f"threads that outlive close: {sorted(map(str, left))}"
            time.sleep(0.01)

    def test_F9_a_transfer_given_to_a_closed_worker_failed(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        transfer = rig.scheduler.prepare_store(PLAIN, keys).transfer
        (worker,) = rig.workers
        worker.close(1.0)
        worker.submit(transfer, rig.rows(8))
        assert worker.poll() == [(transfer.id, [False] * 8)]


def _faulty(inner: Any, faults: Faults, config: Any) -> FaultyStore:  # noqa: ANN401 - the author's
    return FaultyStore(inner(config), faults)
