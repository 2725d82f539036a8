"""From vLLM's configuration to kvconn's, and the configurations in which it cannot work."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from vllm.config import get_current_vllm_config_or_none

from kvconn.backend import Backend, PluginConfig
from kvconn.config import ConnectorConfig, load_config
from kvconn.config.options import validate
from kvconn.errors import ConfigurationError
from kvconn.integrations.vllm.groups import unserved
from kvconn.integrations.vllm.releases import FAILS_WHOLE_REQUESTS, drafts_into_a_cache

if TYPE_CHECKING:
    from vllm.config import KVTransferConfig, VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

__all__ = ["VllmOptions", "read_options", "refuse_private_hashes", "refuse_unsupported"]

_PROCESS_PRIVATE_HASHES = ("xxhash", "xxhash_cbor")
"""vLLM seeds them at random in each process unless ``PYTHONHASHSEED`` is set."""


_MIN_LOAD = "min_load_tokens"


class VllmOptions(PluginConfig):
    """The options in ``kv_connector_extra_config`` that only the adapter understands."""

    blocks_per_chunk: Annotated[int, Field(ge=1)] = 4
    """vLLM blocks stored as one object.  A prompt shares whole chunks only; smaller ones hit
    more, larger ones move faster."""
    store_generated: bool = False
    """Store the chunks of generated tokens too, once they are final; else those of prompts."""
    min_load_tokens: Annotated[int, Field(ge=0)] = 64
    """Compute what is shorter: a load has to wait for a step or two, whatever its length.  The
    policy of the same name, where it is listed, is used instead."""
    load_gate: bool = True
    """Stop loading while loads have been taking longer than computing the same tokens."""
    weights_epoch: Annotated[int, Field(ge=0)] = 0
    """Count it up when weights change in a way that names and files do not show: what was stored
    before is not found any more."""


def read_options(extra_config: Mapping[str, Any]) -> tuple[ConnectorConfig, VllmOptions]:
    """``kv_connector_extra_config``, split; raises :class:`ConfigurationError`."""
    ours = {name: extra_config[name] for name in VllmOptions.model_fields if name in extra_config}
    rest = {name: value for name, value in extra_config.items() if name not in ours}
    if "backend" not in rest:
        msg = (
            "kv_connector_extra_config names no backend: add "
            '"backend": "cpu://?capacity=8GiB" or another one'
        )
        raise ConfigurationError(msg)
    config, options = load_config(rest), validate(VllmOptions, ours, "kvconn's vLLM connector")
    if options.min_load_tokens and all(p.name != _MIN_LOAD for p in config.policies):
        policies = [*config.policies, f"{_MIN_LOAD}?tokens={options.min_load_tokens}"]
        config = load_config({**rest, "policies": policies})
    return config, options


def refuse_unsupported(
    transfer: KVTransferConfig,
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    blocks_per_chunk: int,
) -> None:
    """Raise one sentence for the first thing that keeps the connector from being right."""
    reasons = (
        *_unsupported_transfer(transfer),
        *_unsupported_parent(transfer),
        *_unsupported(vllm_config),
        *unserved(kv_cache_config, blocks_per_chunk, windows=FAILS_WHOLE_REQUESTS),
    )
    for reason in reasons:
        msg = f"kvconn cannot serve this vLLM configuration: {reason}"
        raise ConfigurationError(msg)


def _unsupported_transfer(transfer: KVTransferConfig) -> Iterator[str]:
    policy = transfer.kv_load_failure_policy
    if policy != "recompute":
        yield (
            f"kv_load_failure_policy is {policy!r}, so that a lost block would fail its request: "
            'add "kv_load_failure_policy": "recompute" to --kv-transfer-config'
        )
    if transfer.kv_role != "kv_both":
        yield f'kv_role is {transfer.kv_role!r} and a cache stores and loads: use "kv_both"'


def _unsupported_parent(transfer: KVTransferConfig) -> Iterator[str]:
    """What vLLM goes by where ours is one of several: workers know the whole configuration."""
    whole = get_current_vllm_config_or_none()
    parent = whole.kv_transfer_config if whole is not None else None
    if parent is None or parent is transfer:
        return
    if parent.kv_load_failure_policy != "recompute":
        yield (
            f"kv_load_failure_policy of {parent.kv_connector} is "
            f"{parent.kv_load_failure_policy!r}, and its children's count for nothing: add "
            '"kv_load_failure_policy": "recompute" beside "connectors"'
        )


def _unsupported(vllm_config: VllmConfig) -> Iterator[str]:
    if not vllm_config.cache_config.enable_prefix_caching:
        yield "prefix caching is off: remove --no-enable-prefix-caching"
    for name in ("pipeline", "decode_context", "prefill_context"):
        size = getattr(vllm_config.parallel_config, f"{name}_parallel_size", 1)
        if size > 1:
            yield f"{name}_parallel_size is {size}: use tensor or data parallelism"
    speculative = vllm_config.speculative_config
    if speculative is not None and drafts_into_a_cache(speculative):
        yield "the drafter keeps a KV cache of its own: use ngram speculation, or none"


def refuse_private_hashes(vllm_config: VllmConfig, backend: type[Backend]) -> None:
    """A cache that others share, or that outlives the process, needs hashes that they agree on."""
    algorithm = vllm_config.cache_config.prefix_caching_hash_algo
    if backend.pinned or algorithm not in _PROCESS_PRIVATE_HASHES:
        return
    if os.environ.get("PYTHONHASHSEED") is None:
        msg = (
            f"prefix_caching_hash_algo {algorithm!r} is seeded at random in each process, so that "
            "nothing in this backend would ever be found again: use sha256_cbor, or set "
            "PYTHONHASHSEED to the same number everywhere"
        )
        raise ConfigurationError(msg)
