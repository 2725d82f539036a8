"""K2: two ranks that hold the same KV store it once, and an engine of one rank finds it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu", "disk")]

PROMPT = [[1, 500]]
ASK = ["generate", {"prompts": [PROMPT]}]
FORGET = ["forget_local", {}]
CHUNKS = 500 // 64
BLOCK = 4 * 2 * 64 * 4 * 32
"""Bytes: layers, key and value, head size, float32, tokens."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("disk") / "store"


@pytest.fixture(scope="module")
def config(place):
    backend = [f"cpu://?capacity={2 * 4 * 2 * BLOCK}", f"disk://{place}?capacity=64MiB"]
    return {"backend": backend, "blocks_per_chunk": 2, "strict": True}


@pytest.fixture(scope="module")
def two_ranks(run_engine, config):
    steps = [ASK, ["counts", {}], FORGET, ASK, ["counts", {}]]
    return run_engine(config, steps, model="one head", tensor_parallel_size=2)


def test_both_ranks_load_what_one_of_them_stored(two_ranks):
    (cold,), _, _, (loaded,), counts = two_ranks
    assert loaded == {"cached": CHUNKS * 64, "tokens": cold["tokens"]}
    assert counts["stats"]["failed_loads"] == counts["raised"] == 0
    assert counts["stats"]["backend_errors"] == counts["stats"]["misuse"] == 0


def test_memory_is_counted_on_both_ranks(two_ranks):
    assert two_ranks[-1]["stats"]["cpu_capacity"] == 4


def test_the_disk_holds_each_chunk_once(two_ranks, place):
    call = [Path(sys.executable).with_name("kvconn"), "inspect", place, "--json"]
    found = json.loads(subprocess.run(call, check=True, capture_output=True).stdout)  # noqa: S603
    assert [space["objects"] for space in found["namespaces"]] == [CHUNKS]


def test_an_engine_of_one_rank_finds_it(two_ranks, run_engine, config):
    (answer,) = run_engine(config, [ASK], model="one head")
    assert answer[0] == {"cached": CHUNKS * 64, "tokens": two_ranks[0][0]["tokens"]}
