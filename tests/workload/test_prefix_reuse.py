"""The summary: what a cache without limit could give."""

from __future__ import annotations

from kvconn.workload import PrefixReuse, TraceRequest, summary


def whole(*ids: int) -> TraceRequest:
    return TraceRequest(0, 512 * len(ids), 1, ids)


def test_the_second_request_hits_the_prefix_it_shares() -> None:
    assert summary([whole(0, 1, 2), whole(0, 1, 3)]) == PrefixReuse(2, 6, 4, 2)


def test_a_known_block_behind_an_unknown_one_is_no_hit() -> None:
    assert summary([whole(0, 1, 2), whole(9, 1, 2)]).prefix_hits == 0


def test_a_request_does_not_hit_itself() -> None:
    assert summary([whole(0, 1)]).prefix_hits == 0


def test_partial_blocks_do_not_count() -> None:
    partial = TraceRequest(0, 600, 1, (0, 1))
    assert summary([partial, partial]) == PrefixReuse(2, 2, 1, 1)


def test_the_hit_rate_is_a_share_of_the_blocks_asked_for() -> None:
    assert summary([whole(0), whole(0), whole(0), whole(1)]).hit_rate == 0.5


def test_no_blocks_are_no_hits() -> None:
    assert summary([]).hit_rate == 0.0
