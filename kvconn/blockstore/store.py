"""What a storage author implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvconn.backend import PluginConfig
    from kvconn.identity import Namespace

__all__ = ["BlockStore", "Capabilities"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a store declares; nothing is guessed."""

    max_object_bytes: int | None = None
    """The largest object it takes; a configuration whose chunks are larger is refused."""
    shared: bool = False
    """Others may put objects into it while we use it: a miss is asked about before it is one."""
    persistent: bool = False
    """What was put is there for the next process that opens it."""
    registered_memory: bool = False
    """Buffers should lie in memory that is registered with the device (pinned)."""
    parallel: bool = False
    """One call moves its whole batch in parallel; else a batch is spread over kvconn's threads."""
    scheduler_visible: bool = True
    """The scheduler's process sees the same objects as the workers: a local disk, a server.

    Where it does not, what is stored is known from completions alone.
    """


class BlockStore(ABC):
    """Named objects of one size, synchronous and batched.

    ``ids`` are opaque bytes (28 to 100), unique for all engines and models that share a store.
    A buffer is page-aligned, contiguous, writable and owned by kvconn; the store must not keep
    it after the call.  Every method may be called from several threads, never from an engine's
    own; each answers one verdict per id, and what it raises counts as all ``False``.
    """

    capabilities: Capabilities = Capabilities()
    """On the class, or set in ``__init__`` where they depend on the options."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config

    def open(self, namespace: Namespace) -> None:
        """Get ready, in each process that uses the store.  Nothing by default."""

    @abstractmethod
    def exists(self, ids: Sequence[bytes]) -> list[bool]:
        """Whether each object is there, whole."""

    @abstractmethod
    def get(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        """Fill each buffer with its object; ``False`` when it is not there or of another size."""

    @abstractmethod
    def put(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        """Store each buffer, all of it or nothing; an object that is there is replaced."""

    @abstractmethod
    def delete(self, ids: Sequence[bytes]) -> list[bool]:
        """Remove each object; ``False`` when it was not there, which is no error."""

    def scan(self) -> Iterable[bytes]:
        """The ids of this namespace that are there, least recently used first, if it can tell."""
        return ()

    def size(self) -> int | None:
        """Bytes that the store holds in total, all namespaces; ``None`` when it cannot tell."""
        return None

    def objects_that_fit(self, capacity: int, object_bytes: int) -> int:
        """How many objects of ``object_bytes`` fit into ``capacity`` bytes, whatever else is kept.

        Called before :meth:`open`, on an instance of its own.
        """
        return capacity // object_bytes

    def register(self, memory: memoryview) -> None:
        """Where ``registered_memory`` is declared: all buffers will lie in ``memory``.

        Once per worker, after :meth:`open`.  Nothing by default.
        """

    def close(self) -> None:
        """Give back what :meth:`open` took.  Nothing by default."""
