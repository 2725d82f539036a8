"""Two hundred requests of every kind, token for token as an engine without a connector."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu", "disk")]

SLICES = [["mixed", {"seed": seed, "count": 50}] for seed in range(4)]
CHUNK = 4 * 2 * 2 * 64 * 4 * 32
"""Bytes of one block of the tests' model: layers, key and value, heads, head, float32, tokens."""
SPECULATIVE = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}


@pytest.fixture(scope="module")
def alone(run_engine):
    """What the model answers without us."""
    return run_engine(None, SLICES)


def config(*backend, **options):
    return {"backend": list(backend), "blocks_per_chunk": 1, "strict": True, **options}


def at_rest(counts) -> bool:
    stats = counts["stats"]
    held = ("leases", "reservations", "loading", "transfers", "requests")
    return (
        not any(stats.get(name, 0) for name in held)
        and not stats["misuse"]
        and not counts["raised"]
        and not counts["verdicts"]
        and not counts["pending"]
    )


def test_L6_with_a_cache_that_evicts_all_the_time_every_token_is_the_same(
    alone, run_engine, tmp_path
):
    tiers = f"cpu://?capacity={24 * CHUNK}", f"disk://{tmp_path}/store?capacity={80 * CHUNK}"
    *answers, counts = run_engine(config(*tiers), [*SLICES, ["counts", {}]])
    assert answers == alone
    assert counts["stats"]["evicted"] > 100
    assert counts["stats"]["loaded"] > 5
    assert counts["stats"]["bypassed"] > 20
    assert counts["stats"]["backend_errors"] == 0
    assert at_rest(counts)


def test_F1_loads_that_fail_in_the_middle_of_a_run_change_no_token(alone, run_engine):
    faults = ["", "second key", "submit raises", "only the first key"]
    steps = [
        step
        for how, mixed in zip(faults, SLICES, strict=True)
        for step in (["fault", {"how": how}], mixed)
    ]
    *answers, counts = run_engine(config("cpu://?capacity=64MiB"), [*steps, ["counts", {}]])
    assert answers[1::2] == alone
    assert counts["stats"]["failed_loads"] > 0
    assert at_rest(counts)


def test_F8_two_engines_on_one_directory_answer_as_one_alone(alone, run_engine, tmp_path):
    url = f"disk://{tmp_path}/store?capacity={60 * CHUNK}&shared=true"
    steps = [*SLICES, ["counts", {}]]
    with ThreadPoolExecutor(2) as both:
        runs = [both.submit(run_engine, config(url), steps) for _ in range(2)]
        answers = [run.result() for run in runs]
    for *mixed, counts in answers:
        assert mixed == alone
        assert counts["stats"]["backend_errors"] == 0
        assert at_rest(counts)
    assert sum(counts["stats"]["loaded"] for *_, counts in answers) > 20


def test_L7_speculated_tokens_that_were_not_accepted_are_never_stored(alone, run_engine):
    cache = config("cpu://?capacity=64MiB", store_generated=True)
    *answers, counts = run_engine(cache, [*SLICES, ["counts", {}]], speculative_config=SPECULATIVE)
    assert answers == alone
    assert counts["stats"]["loaded"] > 20
    assert at_rest(counts)
