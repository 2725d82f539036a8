"""L1 and L2: a reported hit stays, and at rest nothing is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvconn.backend import Settings
from kvconn.errors import TransferAlreadyCompleted, UnknownTransfer
from kvconn.testing.rig import PATIENCE_S
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import Request

if TYPE_CHECKING:
    from kvconn.identity import Key

__all__ = ["LeaseRules"]

PLAIN, READER = Request("plain"), Request("reader")


class LeaseRules(Kit):
    """Leases, and what is left when everything is over."""

    @needs("keeps", "pinned")
    def test_L1_a_leased_hit_is_not_evicted_while_the_cache_is_filled(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        rig.store(PLAIN, keys[:4])
        assert rig.lookup(READER, keys) == 4
        rig.fill(20)
        assert rig.load(READER, keys[:4]) == [True] * 4

    @needs("keeps")
    def test_L1_a_hit_can_be_loaded_or_its_loss_is_a_failed_key_and_nothing_worse(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=8)
        rig.store(PLAIN, keys[:4])
        assert rig.lookup(READER, keys) == 4
        rig.fill(20)
        assert len(rig.load(READER, keys[:4])) == 4
        for request in (READER, PLAIN):
            rig.scheduler.request_finished(request)
        assert rig.held() == {}

    @needs("keeps", "one_tier")
    def test_L1_what_is_not_leased_may_be_evicted(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys[:2])
        rig.fill(6)
        assert rig.hits(keys) == 2
        assert rig.hits(keys[2:]) == 0

    @needs("keeps", "one_tier")
    def test_L1_the_next_lookup_replaces_the_lease(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        assert rig.lookup(READER, keys[:4]) == 4
        rig.fill(1)  # in vain: all is leased
        assert rig.lookup(READER, keys[2:4]) == 2
        assert rig.held()["leases"] == 1
        rig.fill(2)
        assert rig.hits(keys[2:4]) == 2
        assert rig.hits(keys[:2]) == 0

    @needs("keeps")
    def test_L1_a_lookup_that_misses_replaces_the_lease_too(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        assert rig.lookup(READER, keys[4:]) == 0
        assert "leases" not in rig.held()

    @needs("keeps")
    def test_L1_asking_again_in_every_step_holds_one_lease(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        for _ in range(5):
            assert rig.lookup(READER, keys) == 8
            rig.step()
        assert rig.held()["leases"] == 1
        rig.scheduler.request_finished(READER)
        assert "leases" not in rig.held()

    @needs("keeps")
    @pytest.mark.parametrize("end", ["release", "request_finished"])
    def test_L1_a_lease_ends_with_its_request_or_when_it_is_given_up(
        self, open_rig: Open, keys: list[Key], end: str
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        getattr(rig.scheduler, end)(READER)
        assert "leases" not in rig.held()
        rig.fill(4)
        assert rig.hits([*keys[:4]]) in (0, 4)  # evicted, or held by a tier behind

    @needs("keeps", "one_tier")
    def test_L1_what_was_leased_can_be_evicted_after_its_request_was_aborted(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        rig.scheduler.request_finished(READER)
        rig.fill(4)
        assert rig.hits(keys) == 0

    @needs("keeps", "one_tier")
    @pytest.mark.parametrize("named", [0, 1, 3])
    def test_L1_a_load_releases_what_it_does_not_name(
        self, open_rig: Open, keys: list[Key], named: int
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        transfer = rig.scheduler.prepare_load(READER, keys[:named])
        assert "leases" not in rig.held()
        rig.fill(4)
        assert [rig.hits([key]) for key in keys[named:4]] == [0] * (4 - named)
        if transfer is not None:
            assert len(rig.run(transfer, rig.rows(named))) == named

    @needs("keeps")
    def test_L1_a_lease_runs_out(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(settings=Settings(lease_seconds=0.0))
        rig.store(PLAIN, keys[:4])
        assert rig.lookup(READER, keys) == 4
        rig.step()
        rig.step()
        assert "leases" not in rig.held()

    @needs("keeps")
    def test_L1_an_accepted_part_of_a_hit_is_leased_until_the_load(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        assert rig.load(READER, keys[:3]) == [True] * 3
        rig.scheduler.request_finished(READER)
        rig.scheduler.request_finished(PLAIN)
        assert rig.held() == {}

    @needs("keeps", "pinned")
    def test_L1_two_requests_lease_the_same_blocks_and_the_first_to_end_frees_none(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        rig.store(PLAIN, keys[:4])
        rig.lookup(READER, keys)
        rig.lookup(Request("other"), keys)
        rig.scheduler.request_finished(Request("other"))
        rig.fill(4)
        assert rig.load(READER, keys[:4]) == [True] * 4

    # -- L2: at rest -------------------------------------------------------------------------

    def test_L2_at_rest_nothing_is_held(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig()
        for number in range(3):
            request = Request(str(number))
            found = rig.lookup(request, keys)
            if found:
                assert rig.load(request, keys[:found]) == [True] * found
            rig.store(request, keys[found:])
            rig.scheduler.request_finished(request)
        assert rig.held() == {}
        assert not rig.scheduler.has_pending_work()

    def test_L2_a_second_completion_is_an_error_in_tests(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(strict=True)
        transfer = rig.store(PLAIN, keys).transfer
        with pytest.raises(TransferAlreadyCompleted, match=rf"transfer {transfer.id} .* once"):
            rig.scheduler.complete_transfer(transfer, [True] * 8)

    @needs("keeps")
    def test_L2_a_second_completion_is_counted_in_production_and_the_first_stands(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(strict=False)
        transfer = rig.store(PLAIN, keys).transfer
        rig.scheduler.complete_transfer(transfer, [False] * 8)
        stats = rig.scheduler.stats
        assert (stats.misuse, stats.stored, stats.failed_stores) == (1, 8, 0)
        assert rig.hits(keys) == 8

    def test_L2_a_transfer_of_somebody_else_is_unknown(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig, other = open_rig(strict=True), open_rig(strict=True)
        transfer = other.scheduler.prepare_store(PLAIN, keys).transfer
        with pytest.raises(UnknownTransfer):
            rig.scheduler.complete_transfer(transfer, [True] * 8)

    def test_L2_releasing_twice_or_unknown_requests_is_harmless(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(READER, keys)
        for _ in range(2):
            rig.scheduler.release(READER)
            rig.scheduler.request_finished(READER)
        rig.scheduler.release(Request("never seen"))
        rig.scheduler.request_finished(Request("never seen"))
        rig.scheduler.request_finished(PLAIN)
        assert rig.figures()["backend_errors"] == 0
        assert rig.held() == {}

    def test_L2_a_worker_says_once_how_a_transfer_ended(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        plan = rig.begin_store(PLAIN, keys[:2])
        (side,) = rig.sides
        said = []
        for _ in range(3):
            side.wait([plan.transfer.id], PATIENCE_S)
            said += [(transfer_id, list(verdicts)) for transfer_id, verdicts in side.poll()]
        assert said == [(plan.transfer.id, [True, True])]

    def test_L2_the_connector_is_used_without_an_error_of_the_backend(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=4)
        for number in range(6):
            request = Request(str(number))
            rig.scheduler.request_started(request)
            found = rig.lookup(request, keys)
            if found:
                rig.load(request, keys[:found])
            rig.scheduler.touch(request, keys)
            rig.store(request, keys[number % 3 : number % 3 + 3])
            rig.step()
            rig.scheduler.request_finished(request)
        rig.scheduler.reset()
        rig.scheduler.take_events()
        rig.sweep()
        assert rig.figures()["backend_errors"] == 0
        assert [worker.errors for worker in rig.workers] == [0]
