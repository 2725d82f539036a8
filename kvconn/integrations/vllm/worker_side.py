"""The half that lives in each of vLLM's workers: it moves what the scheduler ordered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import group_kernel_blocks

from kvconn.integrations.vllm.groups import layer_names
from kvconn.integrations.vllm.metadata import Load, StepOrders, StepVerdicts
from kvconn.memory import KVCaches
from kvconn.types import ABSENT, Transfer

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from kvconn.worker import WorkerConnector

__all__ = ["WorkerSide", "caches_of"]

_IDLE_WAIT_S = 0.002
"""How long a step that computes nothing waits for I/O.  Without it the engine spins in Python and
keeps the interpreter lock from the threads that it waits for."""


def caches_of(
    tensors: dict[str, torch.Tensor], kv_cache_config: KVCacheConfig, blocks_per_chunk: int
) -> KVCaches:
    """The tensors of vLLM, blocks in the first dimension whatever the layout in memory."""
    blocks, names = kv_cache_config.num_blocks, layer_names(kv_cache_config)
    return KVCaches(
        {name: group_kernel_blocks(tensors[name], blocks) for name in names},
        num_blocks=blocks,
        block_dims=0,
        blocks_per_chunk=blocks_per_chunk,
    )


class WorkerSide:
    """Submits a step's transfers and reports those that ended.  The worker's thread only."""

    def __init__(self, worker: WorkerConnector, rank: int) -> None:
        self.worker = worker
        self._rank = rank
        self._idle = False
        self._running: dict[int, Load | None] = {}
        """By transfer; a store has no :class:`Load`."""
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._invalid: set[int] = set()
        self._ended: list[tuple[int, list[bool]]] = []

    def flush(self, orders: StepOrders) -> None:
        """Before this step writes pages: let the stores that read them end."""
        if orders.flush:
            self.worker.flush(orders.flush)

    def load(self, orders: StepOrders) -> None:
        """Start this step's loads."""
        self._idle = orders.idle
        for move in orders.moves:
            self._submit(move, [], None)
        for load in orders.loads:
            if load.transfer is None:
                self._receive(load, [])
            else:
                self._submit(load.transfer, load.rows, load)

    def store(self, orders: StepOrders) -> None:
        """Start this step's stores; its computation has been issued."""
        for store in orders.stores:
            self._submit(store.transfer, store.rows, None)

    def _submit(self, wire: bytes, rows: Sequence[Sequence[int]], load: Load | None) -> None:
        transfer = Transfer.from_bytes(wire)
        self._running[transfer.id] = load
        self.worker.submit(transfer, rows)

    def received(self) -> tuple[set[str], set[str]]:
        """The requests whose load ended since the last call; those of which must start anew."""
        if self._idle and self._running:
            self.worker.wait(list(self._running), _IDLE_WAIT_S)
        for transfer_id, verdicts in self.worker.poll():
            self._ended.append((transfer_id, verdicts))
            load = self._running.pop(transfer_id, None)
            if load is not None:
                self._receive(load, verdicts)
        received, self._received = self._received, set()
        failed, self._failed = self._failed, set()
        return received, failed

    def _receive(self, load: Load, verdicts: Sequence[bool]) -> None:
        self._received.add(load.request_id)
        if load.whole:
            if load.unnamed or len(load.rows) > sum(map(bool, verdicts)):
                self._failed.add(load.request_id)
            return
        self._invalid.update(load.unnamed)
        for row, moved in zip(load.rows, verdicts, strict=False):
            if not moved:
                self._invalid.update(block for block in row if block != ABSENT)

    def invalid_blocks(self) -> set[int]:
        """The blocks that those loads did not fill; in the same step as :meth:`received`."""
        invalid, self._invalid = self._invalid, set()
        return invalid

    def verdicts(self) -> StepVerdicts | None:
        """What this rank ended, for the scheduler."""
        ended, self._ended = self._ended, []
        return StepVerdicts({self._rank: ended}) if ended else None
