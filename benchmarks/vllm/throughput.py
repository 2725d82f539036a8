"""What the connector costs where nothing is re-used, and what it saves where everything is.

    python benchmarks/vllm/throughput.py [--rounds N] [--requests N] [--tokens N]

Five real vLLM engines, each in a process of its own: without a connector, with ``null``, ``cpu``,
``disk``, and ``cpu`` over ``disk``.  They take turns in every round, so that whatever else the
machine does befalls all of them.  Three figures each, medians over the rounds: requests per second
over prompts that nobody has seen (the cost: a ratio to the engine without a connector), and seconds
to the first token of one prompt, cold and warm (vLLM's own prefix cache is emptied before).  One
JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
ENGINES = {
    "none": None,
    "null": ["null://"],
    "cpu": ["cpu://?capacity=512MiB&prefault=true"],
    "disk": ["disk://{}/one?capacity=2GiB"],
    "cpu over disk": ["cpu://?capacity=128MiB&prefault=true", "disk://{}/two?capacity=2GiB"],
}

ENGINE = """
import json, random, sys, time
from vllm import LLM, SamplingParams
told = json.loads(sys.argv[1])
how = {}
if told["backend"]:
    how["kv_transfer_config"] = {
        "kv_connector": "KVConnConnector", "kv_connector_module_path": "kvconn.integrations.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"backend": told["backend"]},
    }
llm = LLM(model=told["model"], skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
          block_size=32, max_model_len=told["tokens"] + 64, **how)
draw = random.Random(told["backend"] and told["backend"][0] or "none")

def prompts(count):
    return [{"prompt_token_ids": [draw.randrange(1024) for _ in range(told["tokens"])]}
            for _ in range(count)]

def timed(asked, tokens):
    sampling = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False, ignore_eos=True)
    began = time.perf_counter()
    llm.generate(asked, sampling, use_tqdm=False)
    return time.perf_counter() - began

def round_():
    fresh = told["requests"] / timed(prompts(told["requests"]), 16)
    one = prompts(1)
    cold = timed(one, 1)
    timed(prompts(1), 4)  # what was stored becomes visible in a later step
    time.sleep(0.3)
    llm.reset_prefix_cache()
    warm = timed(one, 1)
    return {"fresh": fresh, "cold": cold, "warm": warm}

round_()
print("ready", flush=True)
for _ in sys.stdin:
    print(json.dumps(round_()), flush=True)
"""


class Engine:
    """One engine's process."""

    def __init__(self, backend: list[str] | None, told: argparse.Namespace, where: str) -> None:
        spec = {
            "backend": backend and [url.format(where) for url in backend],
            "model": f"{where}/model",
            "tokens": told.tokens,
            "requests": told.requests,
        }
        self._process = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-c", ENGINE, json.dumps(spec)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | SETTINGS,
        )  # fmt: skip
        self._line("ready")

    def round(self) -> dict[str, float]:
        """One turn."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer: dict[str, float] = json.loads(self._line("{"))
        return answer

    def _line(self, start: str) -> str:
        """The next line that is for us: engines talk."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        for line in self._process.stdout:
            if line.startswith(start):
                return line
        msg = "an engine ended early: run it with VLLM_LOGGING_LEVEL=INFO"
        raise SystemExit(msg)

    def stop(self) -> None:
        """And wait."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    """Start the engines, let them take turns, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=1000)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        sys.path.insert(0, str(Path(__file__).parent))
        from first_token import make_model  # noqa: PLC0415 - beside this file

        make_model(f"{where}/model")
        engines = {name: Engine(backend, told, where) for name, backend in ENGINES.items()}
        rounds = [{name: e.round() for name, e in engines.items()} for _ in range(told.rounds)]
        for engine in engines.values():
            engine.stop()
    _show(rounds)


def _show(rounds: list[dict[str, dict[str, float]]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("engine", "requests/s", "of none", "cold ms", "warm ms", "sooner"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    result: dict[str, Any] = {}
    for name in rounds[0]:
        fresh, cold, warm = (
            statistics.median(turn[name][what] for turn in rounds)
            for what in ("fresh", "cold", "warm")
        )
        cost = statistics.median(turn[name]["fresh"] / turn["none"]["fresh"] for turn in rounds)
        sooner = statistics.median(turn[name]["cold"] / turn[name]["warm"] for turn in rounds)
        result[name] = {"fresh": fresh, "of_none": cost, "cold": cold, "warm": warm}
        table.add_row(
            name, f"{fresh:.2f}", f"{cost:.3f}", f"{cold * 1e3:.0f}", f"{warm * 1e3:.0f}",
            f"{sooner:.1f}x",
        )  # fmt: skip
    Console().print(table)
    print(json.dumps(result))  # noqa: T201 - for scripts


if __name__ == "__main__":
    main()
