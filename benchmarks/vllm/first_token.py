"""Seconds to the first token in a real vLLM engine: loaded by kvconn against computed anew.

    python benchmarks/vllm/first_token.py [--backend URL] [--tokens N] [--blocks-per-chunk N] ...

One engine, the same prompt, one token of output.  Before each run vLLM's own prefix cache is
emptied; runs that may read the cache and runs that skip it take turns, so that whatever else the
machine does befalls both.  Prints the medians, their ratio and one JSON line.  The model has four
layers and is 256 wide: on real models computing costs more, and the ratio is larger.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from typing import Any

from rich.console import Console

SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
BLOCK = 32


def make_model(where: str) -> None:
    """Random weights of a fixed seed."""
    import torch  # noqa: PLC0415 - the environment comes first
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    shape = LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=1024, initializer_range=0.25,
        max_position_embeddings=8192, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(shape).save_pretrained(where)


def start(model: str, told: argparse.Namespace) -> Any:  # noqa: ANN401 - vLLM is not imported yet
    """A vLLM engine with the documented connector line."""
    from vllm import LLM  # noqa: PLC0415

    return LLM(
        model=model,
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        block_size=BLOCK,
        max_model_len=told.tokens + BLOCK,
        tensor_parallel_size=told.tensor_parallel_size,
        kv_transfer_config={
            "kv_connector": "KVConnConnector",
            "kv_connector_module_path": "kvconn.integrations.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {
                "backend": told.backend,
                "blocks_per_chunk": told.blocks_per_chunk,
            },
        },
    )


def measure(llm: Any, told: argparse.Namespace) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Medians over ``runs`` turns of both ways, after one turn that is not counted."""
    from vllm import SamplingParams  # noqa: PLC0415

    draw = random.Random(1)
    prompt = [{"prompt_token_ids": [draw.randrange(1024) for _ in range(told.tokens)]}]
    taken: dict[str, list[float]] = {"loaded": [], "computed": []}
    cached: dict[str, set[int]] = {"loaded": set(), "computed": set()}
    for turn in range(told.runs + 2):
        for way, seconds in taken.items():
            sampling = SamplingParams(
                temperature=0, max_tokens=1, detokenize=False,
                skip_reading_prefix_cache=way == "computed",
            )  # fmt: skip
            llm.reset_prefix_cache()
            began = time.perf_counter()
            (answer,) = llm.generate(prompt, sampling, use_tqdm=False)
            ended = time.perf_counter()
            if turn > 1:  # the first stores, the second warms
                seconds.append(ended - began)
                cached[way].add(answer.num_cached_tokens)
    medians = {way: statistics.median(times) for way, times in taken.items()}
    return {
        "backend": told.backend,
        "tokens": told.tokens,
        "blocks_per_chunk": told.blocks_per_chunk,
        "tensor_parallel_size": told.tensor_parallel_size,
        "processes": told.processes,
        "runs": told.runs,
        "cached_tokens": {way: sorted(counts) for way, counts in cached.items()},
        "seconds": medians,
        "ratio": medians["computed"] / medians["loaded"],
    }


def main() -> None:
    """Measure once and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", default="cpu://?capacity=256MiB")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--blocks-per-chunk", type=int, default=3)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument(
        "--processes", action="store_true", help="scheduler and worker in another process"
    )
    told = parser.parse_args()
    processes = told.processes or told.tensor_parallel_size > 1
    os.environ.update(SETTINGS, VLLM_ENABLE_V1_MULTIPROCESSING=str(int(processes)))
    with tempfile.TemporaryDirectory() as model:
        make_model(model)
        found = measure(start(model, told), told)
    seconds = found["seconds"]
    Console().print(
        f"first token after {told.tokens} tokens, median of {told.runs}: "
        f"{seconds['loaded'] * 1e3:.1f} ms loaded, {seconds['computed'] * 1e3:.1f} ms computed, "
        f"ratio {found['ratio']:.2f}",
        soft_wrap=True,
    )
    Console().print_json(json.dumps(found), indent=None)


if __name__ == "__main__":
    main()
