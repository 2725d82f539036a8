"""What vLLM's blocks are made of: geometry, namespace, shard."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from kvconn.geometry import Geometry
from kvconn.identity import Namespace
from kvconn.integrations.vllm.groups import block_bytes, layer_specs
from kvconn.integrations.vllm.weights import fingerprint

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["geometry_of", "namespace_of"]

_NOT_THE_MODEL = ("_name_or_path", "transformers_version")


def geometry_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, blocks_per_chunk: int
) -> Geometry:
    """The same in the scheduler and in every worker, whose pages are of equal size."""
    groups = kv_cache_config.kv_cache_groups
    ranks = vllm_config.parallel_config.tensor_parallel_size
    replicas = _replicas(vllm_config.model_config, kv_cache_config, ranks)
    return Geometry(
        block_tokens=groups[0].kv_cache_spec.block_size,
        block_bytes=block_bytes(kv_cache_config),
        blocks_per_chunk=blocks_per_chunk,
        ranks=ranks // replicas,
        replicas=replicas,
        groups=len(groups),
    )


def _replicas(model: ModelConfig, kv_cache_config: KVCacheConfig, ranks: int) -> int:
    """Neighbouring ranks that hold the same KV in every layer.

    All of them with MLA, and some where there are fewer KV heads than ranks.  vLLM knows it of MLA
    only; of heads it is worked out where nothing says that layers differ, for a copy each is never
    wrong and one copy of two shards always is.
    """
    specs = [spec for group in kv_cache_config.kv_cache_groups for spec in layer_specs(group)]
    latent = [isinstance(spec, MLAAttentionSpec) for spec in specs]
    if all(latent):
        return ranks
    if any(latent) or len({(spec.num_kv_heads, spec.head_size) for spec in specs}) > 1:
        return 1
    heads = model.get_total_num_kv_heads()
    if model.model_arch_config.per_layer_overrides or _head_counts(model) - {heads}:
        return 1
    return ranks // heads if ranks % heads == 0 else 1


def _head_counts(model: ModelConfig) -> set[int]:
    """Every number of KV heads that the model's configuration names, whatever for."""
    fields: dict[str, Any] = model.hf_text_config.to_dict()
    return {
        count
        for name, count in fields.items()
        if name.endswith(("key_value_heads", "kv_heads")) and isinstance(count, int)
    }


def namespace_of(
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    blocks_per_chunk: int,
    weights_epoch: int = 0,
) -> Namespace:
    """Everything but tokens, tenant, adapter and images that decides a block's bytes (K2).

    Those are in vLLM's block hashes, of which kvconn's keys are made (K3).
    """
    model, cache = vllm_config.model_config, vllm_config.cache_config
    groups = kv_cache_config.kv_cache_groups
    return Namespace(
        model=model.model,
        revision=str(model.revision or getattr(model.hf_config, "_commit_hash", None) or ""),
        dtype=str(model.dtype),
        layout=str(kv_cache_config.kv_cache_layout or cache.kv_cache_layout),
        block_tokens=groups[0].kv_cache_spec.block_size,
        blocks_per_chunk=blocks_per_chunk,
        weights_epoch=weights_epoch,
        groups=tuple((tuple(g.layer_names), repr(g.kv_cache_spec)) for g in groups),
        extra=(
            ("engine", "vllm"),
            ("cache_dtype", cache.cache_dtype),
            ("hash", cache.prefix_caching_hash_algo),
            ("quantization", str(model.quantization)),
            ("config", _config_of(model)),
            ("weights", fingerprint(model.model)),
            ("loader", _loader_of(vllm_config)),
            ("platform", _platform()),
        ),
    )


def _config_of(model: ModelConfig) -> str:
    """The model's own configuration: rope scaling, overrides, and so on."""
    fields: dict[str, Any] = model.hf_config.to_dict()
    return json.dumps(
        {name: value for name, value in fields.items() if name not in _NOT_THE_MODEL},
        sort_keys=True,
        default=lambda value: (
            str(value) if isinstance(value, torch.dtype) else type(value).__qualname__
        ),
    )


def _loader_of(vllm_config: VllmConfig) -> str:
    """Dummy weights are random numbers: they differ by seed."""
    loader = str(vllm_config.load_config.load_format)
    return f"{loader} {vllm_config.model_config.seed}" if loader == "dummy" else loader


def _platform() -> str:
    """The CPU attention of vLLM lays keys out as its instruction set likes them."""
    name = str(current_platform.device_type)
    if name == "cpu":
        amx = torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - as vLLM itself asks
        name = f"cpu {torch.backends.cpu.get_cpu_capability()} {'amx' if amx else ''}"
    return name
