"""One transfer on its way, cut into the jobs that I/O threads run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvconn.blockstore.seal import UNKNOWN_LAYOUT, seal, seals_hold, unseal
from kvconn.types import BlockRows, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.blockstore.operations import Operations

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

    @property
    def over(self) -> bool:
        """Whether nothing is left to wait for."""
        return not self.undecided and not self.jobs

    def decide(self, keys: Sequence[int], verdicts: Sequence[bool]) -> None:
        """These keys have ended."""
        for i, good in zip(keys, verdicts, strict=True):
            self.verdicts[i] = good
        self.undecided -= len(keys)


@dataclass(slots=True, eq=False)
class Job:
    """Some keys of one transfer, a slot each.  ``run`` is called on an I/O thread."""

    pending: Pending
    keys: Sequence[int]
    """Which of the transfer's."""
    slots: list[int]
    buffers: list[memoryview]
    """The memory of each slot."""
    payload_bytes: int
    deletions: list[bytes] = field(default_factory=list)
    """What goes before anything is stored."""
    then: list[Job] = field(default_factory=list)
    """What may run after it."""
    layout: bytes = UNKNOWN_LAYOUT
    """How the chunk lies in its slot; see :func:`~kvconn.blockstore.seal.layout_digest`."""
    verdicts: list[bool] = field(init=False)
    broken: list[bytes] = field(default_factory=list)
    """Objects that turned out not to be what they were stored as."""
    waiting: defaultdict[int, list[tuple[Pending, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """By index in ``keys``, the keys of other loads that wait for the same object."""

    def __post_init__(self) -> None:
        self.verdicts = [False] * len(self.keys)

    @property
    def names(self) -> list[bytes]:
        """The object ids that this job moves."""
        return [self.pending.names[i] for i in self.keys]

    def run(self, operations: Operations) -> None:
        """Do the I/O and leave one verdict per key; whatever the store raises is raised.

        A transfer that expired before its turn moves nothing; what it was to delete must go.
        """
        if self.deletions:
            operations.delete(self.deletions)
        if self.slots and not (self.pending.expired and not self.waiting):
            move = self._store if self.pending.storing else self._load
            self.verdicts = move(operations)

    def _store(self, operations: Operations) -> list[bool]:
        names = self.names
        seal(self.buffers, names, self.payload_bytes, self.layout)
        return operations.put(names, self.buffers, self.pending.deadline)

    def _load(self, operations: Operations) -> list[bool]:
        names = self.names
        for buffer in self.buffers:
            unseal(buffer)
        got = operations.get(names, self.buffers, self.pending.deadline)
        holds = seals_hold(self.buffers, names, self.payload_bytes, self.layout)
        self.broken = [
            name for name, was, whole in zip(names, got, holds, strict=True) if was and not whole
        ]
        return [was and whole for was, whole in zip(got, holds, strict=True)]
