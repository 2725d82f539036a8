"""R1 to R5: what a request forbids, the backend never hears of."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from kvconn.testing.counting import Calls, CountingBackend
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import Request

if TYPE_CHECKING:
    from kvconn.identity import Key
    from kvconn.testing.rig import Rig

__all__ = ["ReadRules"]

PLAIN = Request("plain")
SKIPPING = Request("skipping", skip_reading_prefix_cache=True)
NOT_WRITING = Request("not writing", skip_writing_prefix_cache=True)


def use_every_read_path(rig: Rig, request: Request, keys: list[Key]) -> None:
    """Whatever an engine might do to get at blocks: early, late, again, without asking."""
    rig.scheduler.request_started(request)
    for _ in range(3):
        assert rig.scheduler.lookup(request, keys) == 0
        assert rig.scheduler.lookup(request, keys[:1], computed_tokens=4) == 0
        assert rig.scheduler.prepare_load(request, keys) is None
        rig.step()
    rig.scheduler.release(request)


def reads(calls: Calls) -> int:
    """How often a backend was asked for blocks."""
    return calls.lookups + calls.loads


class ReadRules(Kit):
    """A request that must not read, and one that must not write."""

    def test_R1_a_skipping_request_reaches_no_backend_to_read(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(wrap=CountingBackend)
        rig.store(PLAIN, keys)
        use_every_read_path(rig, SKIPPING, keys)
        rig.scheduler.request_finished(SKIPPING)
        assert reads(rig.backend.skipping) == 0
        assert rig.backend.skipping.releases == 0

    def test_R1_a_skipping_request_still_starts_touches_stores_and_finishes(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(wrap=CountingBackend)
        use_every_read_path(rig, SKIPPING, keys)
        rig.scheduler.touch(SKIPPING, keys)
        accepted = rig.store(SKIPPING, keys).accepted
        rig.scheduler.request_finished(SKIPPING)
        calls = asdict(rig.backend.skipping)
        assert accepted == tuple(keys)
        assert calls == dict.fromkeys(calls, 0) | {
            "started": 1, "touches": 1, "offers": 1, "accepted": len(keys), "finished": 1,
        }  # fmt: skip

    def test_R1_no_byte_moves_towards_the_engine_for_a_skipping_request(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        use_every_read_path(rig, SKIPPING, keys)
        rig.scheduler.touch(SKIPPING, keys)
        rig.store(SKIPPING, keys)
        rig.scheduler.request_finished(SKIPPING)
        rig.sweep()
        assert rig.is_wiped()

    @needs("keeps")
    def test_R1_a_skipping_request_leases_nothing_on_any_tier(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        use_every_read_path(rig, SKIPPING, keys)
        rig.scheduler.touch(SKIPPING, keys)
        rig.store(SKIPPING, keys)
        held = rig.held()
        assert "leases" not in held
        assert "loading" not in held

    @needs("keeps")
    def test_R1_what_a_skipping_request_stored_is_a_hit_to_a_later_plain_one(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        use_every_read_path(rig, SKIPPING, keys)
        rig.store(SKIPPING, keys)
        rig.scheduler.request_finished(SKIPPING)
        assert rig.lookup(PLAIN, keys) == len(keys)
        assert rig.load(PLAIN, keys) == [True] * len(keys)

    @needs("keeps", "one_tier")
    def test_R1_what_a_skipping_request_touches_is_spared(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=2)
        for key in keys[:2]:
            rig.store(PLAIN, [key])
        rig.scheduler.touch(SKIPPING, keys[:1])
        rig.store(PLAIN, keys[2:3])
        assert [rig.hits([key]) for key in keys[:3]] == [1, 0, 1]

    @needs("keeps")
    def test_R2_a_lease_is_released_before_the_skip_takes_effect(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(wrap=CountingBackend)
        rig.store(PLAIN, keys)
        assert rig.lookup(Request("one"), keys) == len(keys)
        assert rig.held()["leases"] == 1
        again = Request("one", skip_reading_prefix_cache=True)
        assert rig.scheduler.lookup(again, keys) == 0
        assert "leases" not in rig.held()
        assert reads(rig.backend.skipping) == 0

    @needs("keeps")
    @pytest.mark.parametrize("call", ["request_started", "touch", "prepare_store", "prepare_load"])
    def test_R2_the_lease_goes_whatever_the_request_does_first_with_its_new_flag(
        self, open_rig: Open, keys: list[Key], call: str
    ) -> None:
        rig = open_rig(strict=False)
        rig.store(PLAIN, keys)
        rig.lookup(Request("one"), keys)
        again = Request("one", skip_reading_prefix_cache=True)
        getattr(rig.scheduler, call)(again, *([] if call == "request_started" else [keys]))
        assert "leases" not in rig.held()

    @needs("keeps")
    def test_R2_a_request_whose_flag_is_taken_back_may_read_again(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        assert rig.lookup(Request("one", skip_reading_prefix_cache=True), keys) == 0
        assert rig.lookup(Request("one"), keys) == len(keys)

    def test_R3_a_load_that_an_engine_asks_for_all_the_same_is_refused_and_counted(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(wrap=CountingBackend)
        rig.store(PLAIN, keys)
        assert rig.scheduler.prepare_load(SKIPPING, keys) is None
        assert rig.scheduler.stats.refused_loads == 1
        assert rig.backend.skipping.loads == 0
        assert rig.scheduler.transfers_in_flight == 0

    def test_R4_a_skipping_request_is_bypassed_and_neither_query_nor_hit(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        rig.lookup(PLAIN, keys)
        before = rig.figures()
        for _ in range(3):
            rig.scheduler.lookup(SKIPPING, keys)
        after = rig.figures()
        counted = ("queries", "hits", "bypassed", "requests")
        changed = {name: after[name] - before[name] for name in counted}
        assert changed == {"queries": 0, "hits": 0, "bypassed": 1, "requests": 1}

    @needs("keeps")
    def test_R4_a_plain_request_that_asks_in_every_step_is_one_query(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:5])
        for _ in range(3):
            rig.lookup(PLAIN, keys)
        stats = rig.scheduler.stats
        assert (stats.queries, stats.hits, stats.bypassed) == (len(keys), 5, 0)

    def test_R5_a_request_that_must_not_write_offers_nothing_to_a_backend(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(wrap=CountingBackend)
        assert rig.store(NOT_WRITING, keys).accepted == ()
        assert rig.backend.plain.offers == 0
        assert rig.scheduler.stats.refused_stores == 1
        assert rig.scheduler.stats.offered == 0

    @needs("keeps")
    def test_R5_a_request_that_must_not_write_goes_on_reading(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        assert rig.lookup(NOT_WRITING, keys) == len(keys)
        assert rig.load(NOT_WRITING, keys) == [True] * len(keys)

    @needs("keeps")
    def test_R5_nothing_of_a_request_that_must_not_write_is_there_for_others(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.lookup(NOT_WRITING, keys)
        rig.scheduler.touch(NOT_WRITING, keys)
        rig.store(NOT_WRITING, keys)
        rig.scheduler.request_finished(NOT_WRITING)
        assert rig.hits(keys) == 0
