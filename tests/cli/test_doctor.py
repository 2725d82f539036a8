"""``kvconn doctor``: what it looks at, and what it says when something is wrong."""

from __future__ import annotations

import json
import shlex

import pytest

from kvconn.cli import app

PLANTED = """
from healthy import MemoryBackend, MemoryConfig
from kvconn.types import TransferKind
from pydantic import SecretStr

class Config(MemoryConfig):
    token: SecretStr = SecretStr("")

class MemBackend(MemoryBackend):
    contract_version = 1
    Config = Config

class Forgetful(MemBackend):
    contract_version = 1
    def complete_transfer(self, transfer, verdicts):
        super().complete_transfer(transfer, [False] * len(verdicts))

class Wrong(MemBackend):
    contract_version = 1
    def open_worker(self, pool, caches, namespace, shard):
        side = super().open_worker(pool, caches, namespace, shard)
        def submit(transfer, blocks, honest=side.submit):
            honest(transfer, blocks)
            if transfer.kind is TransferKind.STORE:
                pool.tensor[0, 7] ^= 1
        side.submit = submit
        return side
"""


@pytest.fixture
def doctor(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(["doctor", *arguments])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def planted(install):
    def plant(kind: str) -> str:
        install("kvconn-mem", PLANTED, backends={"mem": kind})
        return "mem://?capacity=8MiB"

    return plant


def findings(out: str) -> dict[str, dict]:
    return {finding["about"]: finding for finding in json.loads(out)["findings"]}


def test_a_machine_without_a_configuration_is_looked_at(doctor):
    status, out, _ = doctor("--json")
    found = findings(out)
    assert status == 0
    assert {"kvconn", "torch", "vLLM", "eviction policy lru"} <= found.keys()


def test_one_block_goes_there_and_back_and_the_configuration_is_printed(doctor, planted):
    status, out, _ = doctor("--backend", planted("MemBackend"), "--json")
    assert status == 0
    trip = findings(out)["one block there and back"]
    assert trip["verdict"] == "good"
    assert trip["says"].startswith("mem: 256 KiB stored, found and loaded")
    pasted = json.loads(json.loads(out)["vllm"])
    assert pasted["kv_connector_extra_config"] == {"backend": "mem://?capacity=8MiB"}
    assert pasted["kv_load_failure_policy"] == "recompute"


@pytest.mark.parametrize(
    ("kind", "says"), [("Forgetful", "is not found"), ("Wrong", "other bytes came back")]
)
def test_a_backend_that_does_not_work_is_status_1(doctor, planted, kind, says):
    status, out, _ = doctor("--backend", planted(kind))
    assert status == 1
    assert "✘ one block there and back" in out
    assert says in " ".join(out.split())


def test_a_plugin_that_does_not_import_is_bad_and_named(doctor, install):
    install("kvconn-broken", "1 / 0", backends={"broken": "Backend"})
    status, out, _ = doctor("--json")
    assert status == 1
    assert "ZeroDivisionError" in findings(out)["backend broken"]["says"]


def test_a_wrong_configuration_is_status_2(doctor, planted):
    status, _, err = doctor("--backend", planted("MemBackend") + "&colour=red")
    assert status == 2
    assert "has no option 'colour'" in err


TRANSFER = {
    "kv_connector": "KVConnConnector",
    "kv_connector_module_path": "kvconn.integrations.vllm",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def serve(backend="mem://?capacity=8MiB", *more, extra=None, **changes):
    extra = {"backend": backend} if extra is None else extra
    transfer = {**TRANSFER, "kv_connector_extra_config": extra, **changes}
    return shlex.join(["MODEL", "--kv-transfer-config", json.dumps(transfer), *more])


def test_the_arguments_of_vllm_name_what_is_examined(doctor, planted):
    status, out, _ = doctor("--vllm", serve(planted("MemBackend")), "--json")
    assert status == 0
    assert findings(out)["--kv-transfer-config"]["verdict"] == "good"
    assert findings(out)["prefix caching"]["verdict"] == "good"
    assert findings(out)["one block there and back"]["verdict"] == "good"
    assert "mem://" in json.loads(out)["vllm"]


CHILD = {**TRANSFER, "kv_connector_extra_config": {"backend": "mem://?capacity=8MiB"}}


@pytest.mark.parametrize(
    ("line", "about", "says"),
    [
        ("MODEL", "--kv-transfer-config", "it is missing"),
        ("MODEL --kv-transfer-config {a}", "--kv-transfer-config", "no JSON object"),
        (serve(kv_role="kv_consumer"), "--kv-transfer-config", '"kv_both"'),
        (serve(kv_load_failure_policy="fail"), "--kv-transfer-config", '"recompute"'),
        (serve(kv_connector="NixlConnector"), "--kv-transfer-config", "no connector in it"),
        (serve(extra={}), "--kv-transfer-config", "names no backend"),
        (
            serve(
                kv_connector="MultiConnector", kv_load_failure_policy="fail",
                extra={"connectors": [CHILD]},
            ),
            "--kv-transfer-config",
            "the policy of the whole counts",
        ),
        (
            serve("mem://?capacity=8MiB", "--no-enable-prefix-caching"),
            "prefix caching",
            "remove --no-enable-prefix-caching",
        ),
    ],
)  # fmt: skip
def test_arguments_that_the_connector_would_refuse_are_bad(doctor, planted, line, about, says):
    planted("MemBackend")
    status, out, _ = doctor("--vllm", line, "--json")
    assert status == 1
    assert findings(out)[about]["verdict"] == "bad"
    assert says in findings(out)[about]["says"]


@pytest.mark.parametrize("line", ["MODEL --kv-transfer-config '{", "MODEL --kv-transfer-config"])
def test_arguments_that_no_shell_would_take_are_a_wrong_call(doctor, line):
    status, out, err = doctor("--vllm", line)
    assert status == 2
    assert "quote it as after `vllm serve`" in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "transfer",
    ["[]", "7", '{"kv_connector_extra_config": "x"}', '{"kv_connector": "MultiConnector"}',
     '{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [3]}}',
     '{"kv_connector": "KVConnConnector", "kv_connector_extra_config": [1]}'],
)  # fmt: skip
def test_a_configuration_of_another_shape_is_bad_and_no_traceback(doctor, transfer):
    line = shlex.join(["MODEL", "--kv-transfer-config", transfer])
    status, out, err = doctor("--vllm", line, "--json")
    assert status == 1
    assert findings(out)["--kv-transfer-config"]["verdict"] == "bad"
    assert "Traceback" not in out + err


def test_a_backend_may_be_a_mapping(doctor):
    status, out, _ = doctor("--vllm", serve({"name": "mem", "capacity": "8MiB"}), "--json")
    assert status == 0
    assert findings(out)["--kv-transfer-config"]["verdict"] == "good"


@pytest.mark.needs("disk")
@pytest.mark.parametrize(("seed", "status"), [(None, 1), ("7", 0)])
def test_hashes_that_differ_between_processes_are_bad_for_a_disk(
    doctor, tmp_path, monkeypatch, seed, status
):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    url = f"disk://{tmp_path}/store?capacity=1MiB"
    line = serve(url, "--prefix-caching-hash-algo", "xxhash")
    assert doctor("--vllm", line)[0] == status


def test_no_secret_is_shown(doctor, planted):
    status, out, err = doctor("--backend", planted("MemBackend") + "&token=hunter2")
    assert status == 0
    assert "hunter2" not in out + err


@pytest.mark.needs("disk")
def test_a_disk_is_looked_at_and_left_as_it_was(doctor, tmp_path):
    url = f"disk://{tmp_path}/store?capacity=1MiB"
    status, out, _ = doctor("--backend", url, "--json")
    assert status == 0
    assert f"disk at {tmp_path}" in findings(out)
    assert not list(tmp_path.rglob("*.kv"))


@pytest.mark.needs("null")
def test_a_backend_that_keeps_nothing_is_a_doubt(doctor):
    status, out, _ = doctor("--backend", "null://", "--json")
    assert status == 0
    assert findings(out)["one block there and back"]["verdict"] == "doubt"


@pytest.mark.needs("cpu")
def test_memory_that_is_not_there_is_bad_and_is_not_taken(doctor):
    status, out, _ = doctor("--backend", "cpu://?capacity=1PiB", "--json")
    assert status == 1
    assert "lower capacity" in findings(out)["memory"]["says"]
    assert "one block there and back" not in findings(out)
