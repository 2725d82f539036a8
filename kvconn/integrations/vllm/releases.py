"""Where supported releases of vLLM differ: one branch for each difference, with who made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1 import base

from kvconn.integrations.vllm.version import release_of

if TYPE_CHECKING:
    from vllm.config import SpeculativeConfig
    from vllm.v1.core.sched.output import KVConnectorBlockState, SchedulerOutput

    from kvconn.config import ConnectorConfig

__all__ = [
    "FAILS_WHOLE_REQUESTS",
    "BlockTables",
    "HybridSupport",
    "drafts_into_a_cache",
    "hit_source",
    "transfer_results",
]

RELEASE = release_of(vllm.__version__) or (9999, 0)
"""One that was built from its sources counts as the newest."""

FAILS_WHOLE_REQUESTS = RELEASE >= (0, 30)
"""0.30 lets a connector say that a request's load failed.  Before, it could name blocks of one
group only, which says nothing of a window's earlier blocks."""

HybridSupport: type = base.SupportsHMA if FAILS_WHOLE_REQUESTS else object
"""What the connector inherits, so that vLLM lets it see several KV-cache groups.  Without, vLLM
manages sliding windows as if they were full attention, in one group."""


def transfer_results(received: set[str], failed: set[str]) -> Any:  # noqa: ANN401 - 0.29 has no such class
    """The answer of ``get_transfer_results``, which 0.29 does not ask for."""
    return base.KVConnectorTransferResults(set(), received, failed)


def drafts_into_a_cache(speculative: SpeculativeConfig) -> bool:
    """Whether the drafter has KV of its own; 0.30 has a word for it."""
    if RELEASE >= (0, 30):
        return bool(speculative.uses_draft_kv_cache())
    return bool(
        speculative.use_eagle()
        or speculative.uses_draft_model()
        or speculative.uses_extract_hidden_states()
    )


def hit_source(config: ConnectorConfig) -> Any:  # noqa: ANN401 - None before 0.32
    """What vLLM's metrics call the place that hits come from; 0.32 asks."""
    if RELEASE < (0, 32):
        return None
    from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: PLC0415 - new in 0.32

    known = {"cpu": CacheHitSource.HOST, "disk": CacheHitSource.DISK}
    if len(config.tiers) == 1 and config.backend.name in known:
        return known[config.backend.name]
    return CacheHitSource.EXTERNAL_UNSPECIFIED


class BlockTables:
    """The block tables of scheduled requests, one list of block ids per group.

    0.29 shows the tables that have grown in a step; 0.30 any that was scheduled in it.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[list[int], ...]] = {}
        self._state: KVConnectorBlockState | None = None

    def step(self, output: SchedulerOutput) -> None:
        """A step was scheduled."""
        self._state = output.kv_connector_block_state
        if RELEASE < (0, 30):
            for request_id in output.preempted_req_ids or ():
                self._seen.pop(request_id, None)
            if self._state is not None:
                self._seen.update(self._state.block_ids)

    def of(self, request_id: str) -> tuple[list[int], ...] | None:
        """The table of a request that was scheduled in the last step."""
        if RELEASE < (0, 30):
            return self._seen.get(request_id)
        tables: tuple[list[int], ...] | None = None
        if self._state is not None:
            tables = self._state.get_block_ids(request_id)
        return tables

    def forget(self, request_id: str) -> None:
        """The request ended."""
        self._seen.pop(request_id, None)
