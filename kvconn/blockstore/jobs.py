"""One transfer on its way, cut into the jobs that I/O threads run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvconn.blockstore.seal import UNKNOWN_LAYOUT, seal, seal_holds, unseal
from kvconn.types import BlockRows, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.blockstore.store import BlockStore

__all__ = ["Job", "Pending"]


@dataclass(slots=True, eq=False)
class Pending:
    """A submitted transfer that has not ended.  Only the engine's thread touches it."""

    transfer: Transfer
    rows: BlockRows
    names: list[bytes]
    """The object id of each key."""
    deadline: float
    """On the monotonic clock."""
    verdicts: list[bool] = field(init=False)
    undecided: int = field(init=False)
    jobs: set[Job] = field(default_factory=set)
    """Those that run; their slots are in use."""
    expired: bool = False

    def __post_init__(self) -> None:
        self.undecided = len(self.names)
        self.verdicts = [False] * self.undecided

    @property
    def storing(self) -> bool:
        """Whether bytes leave the engine."""
        return self.transfer.kind is TransferKind.STORE

    def decide(self, keys: range, verdicts: Sequence[bool]) -> None:
        """These keys have ended."""
        for i, good in zip(keys, verdicts, strict=True):
            self.verdicts[i] = good
        self.undecided -= len(keys)


@dataclass(slots=True, eq=False)
class Job:
    """Some keys of one transfer, a slot each.  ``run`` is called on an I/O thread."""

    pending: Pending
    keys: range
    slots: list[int]
    buffers: list[memoryview]
    """The memory of each slot."""
    payload_bytes: int
    deletions: list[bytes] = field(default_factory=list)
    verdicts: list[bool] = field(default_factory=list)
    broken: list[bytes] = field(default_factory=list)
    """Objects that turned out not to be what they were stored as."""
    layout: bytes = UNKNOWN_LAYOUT
    """How the chunk lies in its slot; see :func:`~kvconn.blockstore.seal.layout_digest`."""

    @property
    def names(self) -> list[bytes]:
        """The object ids that this job moves."""
        return self.pending.names[self.keys.start : self.keys.stop]

    def run(self, store: BlockStore) -> None:
        """Do the I/O and leave one verdict per key; whatever the store raises is raised.

        A transfer that expired before its turn moves nothing; what it was to delete must go.
        """
        self.verdicts = [False] * len(self.keys)
        verdicts = self._store(store) if self.pending.storing else self._load(store)
        for i, good in enumerate(verdicts[: len(self.keys)]):
            self.verdicts[i] = good is True

    def _store(self, store: BlockStore) -> list[bool]:
        if self.deletions:
            store.delete(self.deletions)
        if not self.slots or self.pending.expired:
            return []
        for name, buffer in zip(self.names, self.buffers, strict=True):
            seal(buffer, name, self.payload_bytes, self.layout)
        return store.put(self.names, self.buffers)

    def _load(self, store: BlockStore) -> list[bool]:
        if self.pending.expired:
            return []
        names = self.names
        for buffer in self.buffers:
            unseal(buffer)
        got = store.get(names, self.buffers)
        good = [
            there is True and seal_holds(buffer, name, self.payload_bytes, self.layout)
            for there, name, buffer in zip(got, names, self.buffers, strict=True)
        ]
        self.broken = [n for n, was, is_ in zip(names, got, good, strict=True) if was and not is_]
        return good
