"""L4: requests that come, are aborted and preempted all the time, over caches that evict."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu", "disk")]

BLOCK = 4 * 2 * 2 * 64 * 4 * 32
STORM = ["storm", {"seed": 3, "count": 80}]
FEW = {"full": 28, "windowed": 34}
"""Blocks: two or three requests at a time, of up to sixteen blocks each in every group."""


@pytest.fixture(scope="module", params=["full", "windowed"])
def storm(request, run_engine, tmp_path_factory):
    place = tmp_path_factory.mktemp("disk")
    tiers = [f"cpu://?capacity={24 * BLOCK}", f"disk://{place}/store?capacity={120 * BLOCK}"]
    config = {
        "backend": tiers, "blocks_per_chunk": 1, "strict": True, "store_generated": True,
    }  # fmt: skip
    (alone,) = run_engine(None, [STORM], model=request.param)
    answers, counts = run_engine(
        config, [STORM, ["counts", {}]], model=request.param,
        num_gpu_blocks_override=FEW[request.param], max_model_len=512,
    )  # fmt: skip
    return alone, answers, counts


def test_L4_every_request_that_was_not_aborted_answers_as_without_a_cache(storm):
    alone, answers, _ = storm
    both = set(alone) & set(answers)
    assert len(both) > 40
    assert {name: answers[name] for name in both} == {name: alone[name] for name in both}


def test_L4_they_were_preempted_aborted_and_served_from_the_cache(storm):
    _, answers, counts = storm
    assert counts["preempted"] > 2
    assert len(answers) < 80
    assert counts["stats"]["loaded"] > 10
    assert counts["stats"]["evicted"] > 20


def test_L2_nothing_is_left_of_them(storm):
    _, _, counts = storm
    assert (counts["tracked"], counts["verdicts"], counts["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse", "backend_errors"):
        assert counts["stats"].get(figure, 0) == 0, figure
