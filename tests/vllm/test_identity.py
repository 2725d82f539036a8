"""K2 and K3 in the real engine: never another tenant's, model's or layout's bytes."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("disk")]

PROMPT = [[1, 400]]


def ask(**how):
    return ["generate", {"prompts": [PROMPT], **how}]


FORGET = ["forget_local", {}]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("disk")


@pytest.fixture(scope="module")
def config(place):
    backend = f"disk://{place}/store?capacity=64MiB"
    return {"backend": backend, "blocks_per_chunk": 2, "strict": True}


@pytest.fixture(scope="module")
def salted(run_engine, config):
    steps = [
        ask(salt="ours"), ["counts", {}], FORGET, ask(salt="theirs"), FORGET, ask(), FORGET,
        ask(salt="ours"),
    ]  # fmt: skip
    answers = run_engine(config, steps)
    return [answers[i][0] for i in (0, 3, 5, 7)]


def test_K3_a_prompt_under_another_salt_hits_nothing_and_answers_the_same(salted):
    first, theirs, unsalted, ours = salted
    assert theirs["cached"] == 0
    assert unsalted["cached"] == 0
    assert ours["cached"] >= 384
    assert len({tuple(answer["tokens"]) for answer in salted}) == 1
    assert first["cached"] == 0


def test_K2_after_the_weights_were_counted_up_nothing_is_found(salted, run_engine, config):
    ((answer,),) = run_engine({**config, "weights_epoch": 1}, [ask(salt="ours")])
    assert answer["cached"] == 0


@pytest.mark.parametrize("other", [{"dtype": "bfloat16"}, {"block_size": 64}], ids=str)
def test_K2_a_restart_with_another_dtype_or_block_size_hits_nothing_and_raises_nothing(
    salted, run_engine, config, other
):
    (answer,), counts = run_engine(config, [ask(salt="ours"), ["counts", {}]], **other)
    assert answer["cached"] == 0
    assert counts["raised"] == counts["stats"]["backend_errors"] == 0
