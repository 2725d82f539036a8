"""What a storage author implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvconn.backend import PluginConfig
    from kvconn.identity import Namespace

__all__ = ["BlockStore"]


class BlockStore(ABC):
    """Named objects of one size, synchronous and batched.

    ``ids`` are opaque bytes (28 to 100), unique for all engines and models that share a store.
    A buffer is page-aligned, contiguous, writable and owned by kvconn; the store must not keep
    it after the call.  Every method may be called from several threads, never from an engine's
    own; each answers one verdict per id, and what it raises counts as all ``False``.
    """

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

    def close(self) -> None:
        """Give back what :meth:`open` took.  Nothing by default."""
