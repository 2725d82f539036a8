"""Prompts that come in parts: a session takes its last token back when the next part comes."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu")]

SESSIONS = [[[[1, 150]], [[2, 100]], [[3, 80]]], [[[1, 150]], [[4, 77]], [[5, 133]], [[6, 10]]]]
STREAM = ["stream", {"sessions": SESSIONS, "max_tokens": 20}]


@pytest.fixture(scope="module")
def sessions(run_engine):
    (alone,) = run_engine(None, [STREAM])
    config = {
        "backend": "cpu://?capacity=64MiB", "blocks_per_chunk": 1, "strict": True,
        "store_generated": True,
    }  # fmt: skip
    return alone, *run_engine(config, [STREAM, ["left", {}]])


def test_every_part_is_answered_as_without_a_cache(sessions):
    alone, answers, _ = sessions
    assert answers == alone
    assert [len(answer) for answer in answers] == [60, 80, 60]
    assert answers[2] == answers[0]


def test_L7_what_was_taken_back_is_stored_under_no_name_that_is_asked_for(sessions):
    _, _, counts = sessions
    assert counts["stats"]["loaded"] >= 150 // 32
    assert counts["stats"]["stored"] > 10


def test_nothing_leaks(sessions):
    _, _, counts = sessions
    assert (counts["tracked"], counts["verdicts"], counts["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse", "backend_errors"):
        assert counts["stats"][figure] == 0, figure
