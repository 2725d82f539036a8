"""Requests of other kinds than plain completions: LoRA adapters and pooling."""

from __future__ import annotations

import shutil

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu", "disk")]

PROMPT = [[1, 500]]
RESTORED = 500 // 64 * 64
FORGET = ["forget_local", {}]


def config(backend):
    return {"backend": backend, "blocks_per_chunk": 2, "strict": True}


# -- adapters --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adapters(models, tmp_path_factory):
    """A directory that may hold either adapter: trained further in its place."""
    place = tmp_path_factory.mktemp("adapters")

    def put(name, number):
        target = place / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(models(f"adapter {number}"), target)
        return [name, 1 + (name == "theirs"), str(target)]

    return put


@pytest.fixture(scope="module")
def adapted(run_engine, adapters, tmp_path_factory):
    backend = f"disk://{tmp_path_factory.mktemp('disk')}/store?capacity=64MiB"

    def ask(adapter=None, **flags):
        return ["generate", {"prompts": [PROMPT], "adapter": adapter, **flags}]

    def run(*steps):
        lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
        return run_engine(config(backend), list(steps), **lora)

    ours, theirs = adapters("ours", 1), adapters("theirs", 2)
    flag = {"skip_reading_prefix_cache": True}
    first = run(
        ask(), ask(ours), ask(theirs), ["counts", {}], FORGET, ask(), ask(ours), ask(theirs),
        ask(**flag), ask(ours, **flag), ask(theirs, **flag),
    )  # fmt: skip
    again = run(ask(ours))
    further = run(ask(adapters("ours", 2)))
    return {
        "cold": [a[0] for a in first[:3]],
        "loaded": [a[0] for a in first[5:8]],
        "computed": [a[0] for a in first[8:]],
        "again": again[0][0],
        "further": further[0][0],
    }


def test_K3_each_adapter_has_its_own_blocks(adapted):
    assert [answer["cached"] for answer in adapted["cold"]] == [0, 0, 0]
    assert [answer["cached"] for answer in adapted["loaded"]] == [RESTORED] * 3
    tokens = [answer["tokens"] for answer in adapted["computed"]]
    assert [answer["tokens"] for answer in adapted["cold"]] == tokens
    assert [answer["tokens"] for answer in adapted["loaded"]] == tokens
    assert tokens[0] != tokens[1] != tokens[2] != tokens[0]


def test_K3_a_restart_finds_the_blocks_of_its_adapter(adapted):
    assert adapted["again"] == {"cached": RESTORED, "tokens": adapted["cold"][1]["tokens"]}


def test_K3_an_adapter_that_was_trained_further_in_its_place_finds_nothing(adapted):
    assert adapted["further"] == {"cached": 0, "tokens": adapted["cold"][2]["tokens"]}


# -- pooling ---------------------------------------------------------------------------------------


def pool(run_engine, task, *flags):
    steps = []
    for each in flags:
        steps += [["embed", {"prompts": [PROMPT], "task": task, **each}], FORGET]
    pooling = {
        "runner": "pooling", "skip_tokenizer_init": False, "pooler_config": {"task": task},
    }  # fmt: skip
    *answers, counts = run_engine(
        config("cpu://?capacity=64MiB"), [*steps, ["counts", {}]], **pooling
    )
    return [answer[0] for answer in answers[::2]], counts


def test_an_embedding_reads_the_cache_unless_it_must_not(run_engine):
    flag = {"skip_reading_prefix_cache": True}
    (cold, loaded, skipping), counts = pool(run_engine, "embed", {}, {}, flag)
    assert [answer.pop("cached") for answer in (cold, loaded, skipping)] == [0, RESTORED, 0]
    assert cold == loaded == skipping
    assert counts["stats"]["bypassed"] == 1
    assert counts["skipping"]["lookups"] == counts["skipping"]["loads"] == 0


def test_R1_an_embedding_of_every_token_implies_that_no_cache_is_read(run_engine):
    (first, second), counts = pool(run_engine, "token_embed", {}, {})
    assert first == second
    assert (first["cached"], first["shape"][0]) == (0, 500)
    assert counts["stats"]["bypassed"] == 2
    assert counts["skipping"]["lookups"] == counts["skipping"]["loads"] == 0
    assert counts["skipping"]["accepted"] == counts["stats"]["stored"] == 500 // 64
