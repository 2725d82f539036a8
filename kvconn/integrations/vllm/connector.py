"""The class that vLLM loads: it hands every call to the half that this process holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from kvconn.backend import Backend
from kvconn.connector import Connector
from kvconn.guard import Guard
from kvconn.integrations.vllm.config import (
    read_options,
    refuse_private_hashes,
    refuse_unsupported,
)
from kvconn.integrations.vllm.figures import (
    Collector,
    Figures,
    PromFigures,
    scheduler_totals,
    worker_totals,
)
from kvconn.integrations.vllm.groups import Groups
from kvconn.integrations.vllm.identity import geometry_of, namespace_of
from kvconn.integrations.vllm.metadata import StepOrders, StepVerdicts
from kvconn.integrations.vllm.releases import HybridSupport, hit_source, transfer_results
from kvconn.integrations.vllm.scheduler_side import SchedulerSide
from kvconn.integrations.vllm.worker_side import WorkerSide, caches_of
from kvconn.registry import load_backend_class

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

__all__ = ["KVConnConnector"]

_CLOSE_S = 5.0


class KVConnConnector(KVConnectorBase_V1, HybridSupport):
    """kvconn in vLLM.  vLLM makes one in the scheduler and one in every worker.

    The constructor raises a :class:`~kvconn.errors.ConfigurationError` for a configuration that
    cannot work; nothing raises afterwards: a fault of ours is a miss, a counter and a log line.
    """

    _scheduler: SchedulerSide
    """In the scheduler's process."""
    _worker: WorkerSide
    """In a worker's process, once its tensors are registered."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        config, self._options = read_options(self._kv_transfer_config.kv_connector_extra_config)
        refuse_unsupported(
            self._kv_transfer_config,
            vllm_config,
            kv_cache_config,
            self._options.blocks_per_chunk,
        )
        for choice in config.tiers:
            refuse_private_hashes(vllm_config, load_backend_class(choice.name))
        chunk = self._options.blocks_per_chunk
        published = vllm_config.kv_events_config
        events = published is not None and published.enable_kv_cache_events
        config = config.model_copy(update={"events": config.events or events})
        _log_as_vllm_does()
        self._guard = Guard("vLLM connector")
        self._connector = Connector(config, wrap=self._wrap)
        self._geometry = geometry_of(vllm_config, kv_cache_config, chunk)
        epoch = self._options.weights_epoch
        self._namespace = namespace_of(vllm_config, kv_cache_config, chunk, epoch)
        self._cache_hit_source = hit_source(config)
        if role == KVConnectorRole.SCHEDULER:
            scheduler = self._connector.open_scheduler(self._geometry, self._namespace)
            groups = Groups.of(kv_cache_config)
            self._scheduler = SchedulerSide(
                scheduler, self._options, self._guard, groups, events=config.events
            )
            self._collector = Collector(self._scheduler_totals)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache may drop a save."""
        return False

    def shutdown(self) -> None:
        """Within seconds, whatever the backend does."""
        self._guard.call(self._connector.close, _CLOSE_S, otherwise=[], consequence="left behind")

    # -- figures, of either side -----------------------------------------------------------

    def get_kv_connector_stats(self) -> Figures | None:
        """What happened since the last ones; a few times a second, and when all is done."""
        idle = self.role == KVConnectorRole.SCHEDULER and self._scheduler.step_ended()
        return self._guard.call(self._collect, idle, otherwise=None, consequence="figures are late")

    def _collect(self, idle: bool) -> Figures | None:
        return self._collector.collect(now=idle)

    def _scheduler_totals(self) -> dict[str, dict[str, float]]:
        figures = self._scheduler.collect_stats()
        chunk_bytes = self._geometry.chunk_bytes * self._geometry.workers
        return scheduler_totals(figures, chunk_bytes, self._connector.tier_names)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Figures:
        """From what came over the wire."""
        return Figures(data or {"counters": {}, "gauges": {}})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,  # noqa: ANN401 - prometheus_client's classes
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> PromFigures:
        """The families that appear on ``/metrics``."""
        return PromFigures(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    # -- worker ----------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Open the worker half over vLLM's tensors; raises when they cannot be paged."""
        caches = caches_of(kv_caches, self._kv_cache_config, self._options.blocks_per_chunk)
        rank = get_tensor_model_parallel_rank()
        shard = self._geometry.shard(rank)
        worker = self._connector.open_worker(self._geometry, self._namespace, caches, shard)
        self._worker = WorkerSide(worker, rank)
        self._collector = Collector(lambda: worker_totals(worker.figures()))

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before the step writes into blocks that a running store may still read."""
        self._order(self._worker.flush, kv_connector_metadata, "blocks may be stored half new")

    def start_load_kv(self, forward_context: ForwardContext, **_: object) -> None:  # noqa: ARG002
        """Start asynchronous loads; no computation of this step waits for one."""
        self._order(self._worker.load, self._connector_metadata, "requests may wait for ever")

    def wait_for_layer_load(self, layer_name: str) -> None:
        """No layer waits: a request is scheduled when its load has ended."""

    def save_kv_layer(self, *_: object, **__: object) -> None:
        """Blocks are stored whole, after the forward pass."""

    def wait_for_save(self) -> None:
        """Start this step's stores."""
        self._order(self._worker.store, self._connector_metadata, "nothing is stored")

    def get_finished(
        self,
        finished_req_ids: set[str],  # noqa: ARG002
    ) -> tuple[set[str] | None, set[str] | None]:
        """Nothing is ever sent; what was received, well or not."""
        return None, self._received()[0]

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:  # noqa: ANN401, ARG002
        """The same, and which requests start anew."""
        return transfer_results(*self._received())

    def _received(self) -> tuple[set[str], set[str]]:
        return self._guard.call(
            self._worker.received,
            otherwise=(set(), set()),
            consequence="asked again in the next step",
        )

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that the loads reported in this step did not fill."""
        return self._worker.invalid_blocks()

    def build_connector_worker_meta(self) -> StepVerdicts | None:
        """The verdicts of this rank."""
        return self._worker.verdicts()

    # -- scheduler -------------------------------------------------------------------------

    def on_new_request(self, request: Request) -> None:
        """Begin a request, whatever its flags."""
        self._guard.call(
            self._scheduler.started, request, otherwise=None, consequence="begun when first used"
        )

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """What a load would add, always asynchronously."""
        found = self._guard.call(
            self._scheduler.matched_tokens,
            request,
            num_computed_tokens,
            otherwise=0,
            consequence="the lookup is a miss",
        )
        return found, bool(found)

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Order the load of ``num_external_tokens``, or learn that there is none."""
        self._guard.call(
            self._scheduler.allocated,
            request,
            blocks.get_block_ids(),
            num_external_tokens,
            otherwise=None,
            consequence="the blocks are computed",
        )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """The transfers of this step."""
        return self._guard.call(
            self._scheduler.orders,
            scheduler_output,
            otherwise=StepOrders(),
            consequence="nothing moves in this step",
        )

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """Take the verdicts of the ranks that reported."""
        verdicts = connector_output.kv_connector_worker_meta
        if isinstance(verdicts, StepVerdicts):
            self._guard.call(
                self._scheduler.reported, verdicts, otherwise=None, consequence="verdicts are lost"
            )

    def request_finished(
        self,
        request: Request,
        block_ids: list[int],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks may be freed at once: stores on a device are flushed before they are re-used."""
        return self._finished(request.request_id)

    def request_finished_all_groups(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],  # noqa: ARG002
    ) -> tuple[bool, dict[str, Any] | None]:
        """The same, of a model with several KV-cache groups."""
        return self._finished(request.request_id)

    def _finished(self, request_id: str) -> tuple[bool, None]:
        self._guard.call(
            self._scheduler.finished,
            request_id,
            otherwise=None,
            consequence="its lease runs out by itself",
        )
        return False, None

    def has_pending_push_work(self) -> bool:
        """Keeps an idle engine stepping until its last stores are reported."""
        return self._scheduler.scheduler.has_pending_work()

    def take_events(self) -> Iterable[KVCacheEvent]:
        """Stored and removed blocks by tier, where ``--kv-events-config`` enables events."""
        return self._guard.call(
            self._scheduler.take_events, otherwise=[], consequence="its events are lost"
        )

    def reset_cache(self) -> bool:
        """Forget every block."""
        self._guard.call(
            self._scheduler.reset, otherwise=None, consequence="the cache may still hold blocks"
        )
        return True

    def _wrap(self, backend: Backend) -> Backend:
        """For tests: put a counter or a fault between kvconn and its backend."""
        return backend

    def _order(
        self,
        carry_out: Callable[[StepOrders], None],
        orders: KVConnectorMetadata | None,
        consequence: str,
    ) -> None:
        if isinstance(orders, StepOrders):
            self._guard.call(carry_out, orders, otherwise=None, consequence=consequence)


def _log_as_vllm_does() -> None:
    """What kvconn says, the resolved configuration for one, goes where vLLM's own words go."""
    ours, theirs = logging.getLogger("kvconn"), logging.getLogger("vllm")
    if not ours.handlers and theirs.handlers:
        ours.handlers = list(theirs.handlers)
        ours.setLevel(theirs.level)
