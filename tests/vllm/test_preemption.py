"""More requests than fit: some are preempted, give their blocks up, and come back."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu")]

PROMPTS = [[[seed, 470]] for seed in (1, 2, 3)]
GENERATED = 40
"""Three times 510 tokens are 48 blocks of 32; the engine has 45 and one that is never used."""


@pytest.fixture(scope="module")
def answers(run_engine):
    alone = [
        ["generate", {"prompts": [p], "max_tokens": GENERATED, "skip_reading_prefix_cache": True}]
        for p in PROMPTS
    ]
    steps = [
        *alone,
        ["forget_all", {}],
        ["generate", {"prompts": PROMPTS, "max_tokens": GENERATED}],
        ["forget_local", {}],
        ["generate", {"prompts": PROMPTS, "max_tokens": GENERATED}],
        ["counts", {}],
    ]
    config = {
        "backend": "cpu://?capacity=256MiB",
        "blocks_per_chunk": 3,
        "store_generated": True,
        "strict": True,
    }
    found = run_engine(config, steps, num_gpu_blocks_override=46, max_model_len=1024)
    alone = [answer[0]["tokens"] for answer in found[:3]]
    return {"alone": alone, "cold": found[4], "loaded": found[6], "at rest": found[7]}


@pytest.mark.parametrize("run", ["cold", "loaded"])
def test_preempted_requests_answer_the_same(answers, run):
    assert [answer["tokens"] for answer in answers[run]] == answers["alone"]


def test_they_were_preempted_and_came_back_to_the_cache(answers):
    rest = answers["at rest"]
    assert rest["preempted"] > 0
    assert rest["plain"]["loads"] > len(PROMPTS)


def test_nothing_leaks(answers):
    rest = answers["at rest"]
    assert (rest["tracked"], rest["verdicts"], rest["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse", "backend_errors"):
        assert rest["stats"][figure] == 0, figure
