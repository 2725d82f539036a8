"""What a backend author subclasses for full control; a block store is the easier way.

The methods *are* the hook implementations of :class:`kvconn.hookspecs.BackendSpec`, which
documents each: arguments, answer, failure, thread and frequency.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from kvconn.types import BlockRows, BlockState, KVEvent, Request, StorePlan, Transfer

if TYPE_CHECKING:
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches

__all__ = ["Backend", "PluginConfig", "PoolSize", "Settings", "Verdicts", "WorkerSide"]

Verdicts = list[bool]
"""One per key of a transfer, in its order; a missing one has failed."""


class PluginConfig(BaseModel):
    """Base of every plugin's options: immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the connector's configuration tells every backend."""

    lease_seconds: float = 60.0
    """How long a lease lasts unless it is renewed, used or given up."""
    transfer_timeout_s: float = 30.0
    """Goes into every transfer as ``timeout_s``."""
    events: bool = False
    """Whether to keep events for ``take_events``."""


class PoolSize(NamedTuple):
    """How large a worker's host pool is."""

    slots: int
    slot_bytes: int
    """Bytes of each; a multiple of :data:`kvconn.geometry.SLOT_ALIGNMENT`."""


class WorkerSide(Protocol):
    """The half of a backend that moves bytes, in one worker process.

    All methods are called from the worker's own thread, the only one that ever touches engine
    pages: a copy out of pages ends before ``submit`` returns (or is fenced by a device event),
    a copy into pages happens in ``submit``, ``poll`` or ``wait``.  A transfer that has not ended
    ``timeout_s`` seconds after ``submit`` has failed: it is reported so, and its pages are not
    touched again, whatever an I/O call that still runs may bring.
    """

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        """Start ``transfer``; row ``i`` of ``blocks`` belongs to ``transfer.keys[i]``.

        Raising fails the whole transfer.  ``blocks`` is ``[]`` for a ``MOVE``.
        """

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        """``(transfer id, verdicts)`` of every transfer that ended since the last call."""

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:
        """Return when the pages that these stores read may be overwritten.

        ``False`` when ``deadline`` seconds passed before: these stores then count as failed.
        """

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        """Return when these transfers have ended, or after ``deadline`` seconds.

        Their verdicts come from the next ``poll``.
        """

    def close(self, deadline: float) -> Sequence[int]:
        """Stop within ``deadline`` seconds; the ids of the transfers left behind.  May be twice."""


class Backend(ABC):
    """A plugin that holds blocks, named by an entry point in the group ``kvconn.backends``."""

    contract_version: ClassVar[int]
    """The :data:`kvconn.hookspecs.CONTRACT_VERSION` this class was written for."""

    pinned: ClassVar[bool] = True
    """Whether a lease really keeps a block; ``False`` where others may remove it (advisory)."""

    keeps: ClassVar[bool] = True
    """Whether what is stored can be found afterwards; ``False`` for one that forgets at once."""

    Config: ClassVar[type[PluginConfig]] = PluginConfig
    """The options this backend takes."""

    settings: Settings = Settings()
    """Set by the connector before it opens either half."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config

    @property
    def persistent(self) -> bool:
        """Whether what was stored is there for the next process that opens it."""
        return False

    @property
    def shared(self) -> bool:
        """Whether several processes may use the same blocks at a time."""
        return False

    @abstractmethod
    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None: ...
    @abstractmethod
    def pool_size(self, geometry: Geometry) -> PoolSize: ...
    @abstractmethod
    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide: ...
    @abstractmethod
    def lookup(self, request: Request, keys: list[Key]) -> Sequence[BlockState] | bytes: ...
    @abstractmethod
    def release(self, request: Request) -> None: ...
    @abstractmethod
    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None: ...
    @abstractmethod
    def touch(self, request: Request, keys: list[Key]) -> None: ...
    @abstractmethod
    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None: ...
    @abstractmethod
    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None: ...
    @abstractmethod
    def reset(self) -> Mapping[str, int]: ...

    # Not every backend has something to do here.

    def request_started(self, request: Request) -> None:
        """Nothing by default."""

    def request_finished(self, request: Request) -> None:
        """Give the request's lease up."""
        self.release(request)

    def holds(self, keys: list[Key]) -> Sequence[bool]:
        """Which keys a lookup would find, without a lease, for compositions; none by default."""
        return [False] * len(keys)

    def step(self) -> Sequence[Transfer] | None:
        """Nothing by default."""
        return None

    def has_pending_work(self) -> bool:
        """No by default."""
        return False

    def take_events(self) -> Sequence[KVEvent]:
        """None by default."""
        return ()

    def collect_stats(self) -> Mapping[str, float]:
        """None by default."""
        return {}

    def close(self, deadline: float) -> None:
        """Nothing by default."""
