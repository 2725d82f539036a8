"""vLLM's server with the connector on, over HTTP, and what its ``/metrics`` say.

The module and not ``vllm serve``: that command asks for the metadata of a distribution called
``vllm``, and the CPU build has another name.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
HERE = Path(__file__).parent
SECONDS = 180


class Server:
    """One ``vllm serve`` on loopback."""

    def __init__(self, model: Path, backend: list[str], log: Path, *more: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        transfer = {
            "kv_connector": "KVConnConnector",
            "kv_connector_module_path": "kvconn.integrations.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backend": backend},
        }
        arguments = [
            "--model", str(model), "--host", "127.0.0.1", "--port", str(self.port),
            "--dtype", "float32", "--enforce-eager", "--block-size", "32",
            "--max-model-len", "2048", "--served-model-name", "tiny",
            "--kv-transfer-config", json.dumps(transfer), *more,
        ]  # fmt: skip
        environment = os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "HF_HUB_OFFLINE": "1",
            "TORCHDYNAMO_DISABLE": "1",
        }
        self.log = log
        with log.open("w") as output:
            self.process = subprocess.Popen(  # noqa: S603 - our own arguments
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments],
                env=environment, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def await_ready(self) -> None:
        ends = time.monotonic() + SECONDS
        while True:
            with suppress(urllib.error.URLError, ConnectionError):
                self.get("/health")
                return
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            assert time.monotonic() < ends, self.log.read_text()[-5000:]
            time.sleep(0.5)

    def get(
        self, path: str, body: dict | None = None, *, post: bool = False, replica: int = 0
    ) -> str:
        data = json.dumps(body).encode() if body is not None else (b"" if post else None)
        headers = {"Content-Type": "application/json", "X-data-parallel-rank": str(replica)}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, headers if body is not None else {}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.read().decode()

    def complete(self, first: int, *, replica: int = 0, **options) -> str:
        words = " ".join(f"w{(first + i * 7) % 1024}" for i in range(600))
        body = {"model": "tiny", "prompt": words, "max_tokens": 8, "temperature": 0, **options}
        answer = self.get("/v1/completions", body, replica=replica)
        return json.loads(answer)["choices"][0]["text"]

    def forget_local(self) -> None:
        self.get("/reset_prefix_cache", post=True)

    def metric(self, name: str, **labels: str) -> float:
        total = 0.0
        for line in self.get("/metrics").splitlines():
            if re.match(rf"{name}[{{ ]", line) and all(
                f'{label}="{value}"' in line for label, value in labels.items()
            ):
                total += float(line.rpartition(" ")[2])
        return total

    def await_metric(self, name: str, least: float, **labels: str) -> float:
        ends = time.monotonic() + 20
        while (found := self.metric(name, **labels)) < least:
            assert time.monotonic() < ends, f"{name} {labels} stays {found}"
            time.sleep(0.1)
            self.complete(901, max_tokens=1)  # figures come with a step
        return found

    def stop(self) -> int:
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    where = tmp_path_factory.mktemp("server")
    backend = ["cpu://?capacity=64MiB", f"disk://{where}/store?capacity=64MiB"]
    server = Server(model, backend, where / "log")
    try:
        server.await_ready()
        yield server
    finally:
        server.stop()


def test_K2_data_parallel_replicas_share_what_is_stored(model, tmp_path):
    disk = f"disk://{tmp_path}/store?capacity=64MiB&shared=true"
    server = Server(model, [disk], tmp_path / "log", "--data-parallel-size", "2")
    try:
        server.await_ready()
        cold = server.complete(1, replica=0)
        server.await_metric("vllm:kvconn_store_chunks_total", 4, result="ok", engine="0")
        assert server.complete(1, replica=1) == cold
        server.await_metric("vllm:kvconn_load_chunks_total", 4, result="ok", engine="1")
        assert server.metric("vllm:kvconn_load_chunks_total", engine="0") == 0
    finally:
        server.stop()


def test_it_answers_the_same_from_the_offload_cache_and_metrics_tell(server):
    cold = server.complete(1)
    stored = server.await_metric("vllm:kvconn_store_chunks_total", 4, result="ok")
    assert stored >= 4
    server.forget_local()
    assert server.complete(1) == cold
    assert server.await_metric("vllm:kvconn_load_chunks_total", 4, result="ok") >= 4
    assert server.metric("vllm:kvconn_lookup_chunks_total", result="hit") >= 4
    assert server.metric("vllm:kvconn_bytes_total", direction="load") > 0
    assert server.metric("vllm:kvconn_entries", tier="cpu") >= 4
    assert server.metric("vllm:kvconn_entries", tier="disk") >= 4
    assert server.metric("vllm:kvconn_capacity", tier="cpu") > 4
    assert server.metric("vllm:kvconn_errors_total") == 0


def test_R4_a_request_for_prompt_logprobs_is_bypassed_and_no_query(server):
    cold = server.complete(2)
    server.await_metric("vllm:kvconn_store_chunks_total", 4, result="ok")
    server.forget_local()
    asked = server.metric("vllm:kvconn_lookup_chunks_total")
    loaded = server.metric("vllm:kvconn_load_chunks_total")
    before = server.metric("vllm:kvconn_bypassed_requests_total")
    assert server.complete(2, prompt_logprobs=0) == cold
    ends = time.monotonic() + 20
    while server.metric("vllm:kvconn_bypassed_requests_total") < before + 1:
        assert time.monotonic() < ends
        time.sleep(0.1)
        server.complete(3, prompt_logprobs=0, max_tokens=1)
    assert server.metric("vllm:kvconn_lookup_chunks_total") == asked
    assert server.metric("vllm:kvconn_load_chunks_total") == loaded
