"""Mooncake's conversation trace, read whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvconn.workload import read_trace, summary

TRACE = Path(__file__).parents[2] / "../shared/traces/conversation_trace.jsonl"


@pytest.mark.skipif(not TRACE.exists(), reason=f"{TRACE} is not part of the project")
def test_the_published_conversation_trace_counts_as_published() -> None:
    counted = summary(read_trace(TRACE))
    assert counted.requests == 12_031
    assert counted.blocks == 276_491
    assert counted.distinct_blocks == 170_899
    assert counted.hit_rate == pytest.approx(0.382, abs=0.0005)
