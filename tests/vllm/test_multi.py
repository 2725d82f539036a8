"""One of several connectors under vLLM's MultiConnector.

The other one is vLLM's ExampleConnector, which carries the KV of whole prompts from the engine that
computed them to the one that goes on: as between engines for prefill and decode.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu")]

PROMPT = [[1, 500]]
ASK = ["generate", {"prompts": [PROMPT]}]
FORGET, COUNTS = ["forget_local", {}], ["counts", {}]
OURS, THEIRS = 500 // 64 * 64, 480
"""Tokens that either gives back: whole chunks of two blocks, and all whole blocks."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("carried")


@pytest.fixture(scope="module")
def engines(run_engine, place):
    carrier = {
        "kv_connector": "ExampleConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(place)},
    }  # fmt: skip
    config = {"backend": "cpu://?capacity=64MiB", "blocks_per_chunk": 2, "strict": True}
    (prefill,) = run_engine(config, [ASK], beside=[None, carrier])
    decode = run_engine(
        config,
        [
            ASK, COUNTS, FORGET, ASK, FORGET, ["fault", {"how": "second key"}], ASK, COUNTS,
            ["fault", {"how": ""}], FORGET,
            ["generate", {"prompts": [PROMPT], "skip_reading_prefix_cache": True}], COUNTS,
        ],
        beside=[None, carrier],
    )  # fmt: skip
    (alone,) = run_engine(None, [ASK])
    return alone[0]["tokens"], prefill, decode


def test_every_engine_answers_the_same(engines):
    alone, prefill, decode = engines
    assert prefill[0]["tokens"] == alone
    for answer in (decode[0], decode[3], decode[6], decode[10]):
        assert answer[0]["tokens"] == alone


def test_what_the_other_carried_is_stored_by_us_and_comes_from_us_the_next_time(engines):
    _, _, decode = engines
    assert decode[0][0]["cached"] == THEIRS
    assert decode[1]["stats"]["stored"] == OURS // 64
    assert decode[1]["stats"]["loaded"] == 0
    assert decode[3][0]["cached"] == OURS


def test_F1_a_load_of_ours_that_fails_is_computed(engines):
    _, _, decode = engines
    assert decode[7]["stats"]["failed_loads"] == 1


def test_R1_a_skipping_request_reads_nothing_of_ours(engines):
    _, _, decode = engines
    # The other one does not know the rule; vLLM enforces it itself only since later releases.
    assert decode[10][0]["cached"] in (0, THEIRS)
    assert decode[11]["skipping"]["lookups"] == decode[11]["skipping"]["loads"] == 0
    assert decode[11]["skipping"]["touches"] == 1


def test_nothing_leaks(engines):
    counts = engines[2][-1]
    assert (counts["tracked"], counts["verdicts"], counts["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse"):
        assert counts["stats"][figure] == 0, figure


def test_the_policy_of_the_whole_counts(run_engine):
    config = {"backend": "cpu://?capacity=64MiB", "blocks_per_chunk": 2}
    with pytest.raises(run_engine.Failed, match='"recompute" beside "connectors"'):
        run_engine(config, [ASK], beside=[None], whole={"kv_load_failure_policy": "fail"})
