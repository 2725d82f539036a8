"""Loads that wait for a slot, and which of them wait for one and the same object.

Several requests that want one chunk at the same time make one call of the store; its slot is
copied to the pages of each.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from kvconn.blockstore.jobs import Job, Pending

__all__ = ["Loads"]

_Wanted = tuple[Pending, int]
"""One key of one transfer."""


class Loads:
    """The engine's thread only."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Pending, Sequence[int]]] = deque()
        """Keys that have no slot yet."""
        self._followers: dict[bytes, list[_Wanted]] = {}
        """By the object that is queued for another transfer."""
        self._flying: dict[bytes, tuple[Job, int]] = {}
        """By the object that a job loads: where."""

    def add(self, pending: Pending, keys: Sequence[int]) -> None:
        """Queue what nobody loads yet; the rest waits for those who do."""
        alone: list[int] = []
        for key in keys:
            name = pending.names[key]
            if name in self._flying:
                job, at = self._flying[name]
                job.waiting[at].append((pending, key))
            elif name in self._followers:
                self._followers[name].append((pending, key))
            else:
                self._followers[name] = []
                alone.append(key)
        if alone:
            self._queue.append((pending, alone))

    def first(self) -> tuple[Pending, Sequence[int]] | None:
        """Whose turn it is, and for which keys; ``None`` when nothing waits for a slot."""
        return self._queue[0] if self._queue else None

    def started(self, job: Job) -> None:
        """``job`` took the leading keys of the first."""
        pending, keys = self._queue.popleft()
        if len(job.keys) < len(keys):
            self._queue.appendleft((pending, keys[len(job.keys) :]))
        for at, name in enumerate(job.names):
            self._flying[name] = (job, at)
            followers = self._followers.pop(name)
            if followers:
                job.waiting[at] += followers

    def ended(self, job: Job) -> dict[Pending, list[tuple[int, int]]]:
        """Per transfer that waits for ``job``, its keys and where in the job they are."""
        wanted: defaultdict[Pending, list[tuple[int, int]]] = defaultdict(list)
        for at, (key, name) in enumerate(zip(job.keys, job.names, strict=True)):
            if self._flying.get(name) == (job, at):
                del self._flying[name]
            wanted[job.pending].append((key, at))
            for follower, its in job.waiting.get(at, ()):
                wanted[follower].append((its, at))
        return wanted

    def expired(self, pending: Pending) -> None:
        """``pending`` waits no longer; who waited for what it had queued is queued instead.

        What it has flying goes on, and those who follow get it when it comes.
        """
        orphans = [
            follower
            for owner, keys in self._queue
            if owner is pending
            for key in keys
            for follower in self._followers.pop(owner.names[key])
        ]
        self._queue = deque(entry for entry in self._queue if entry[0] is not pending)
        for owner, key in orphans:
            if not owner.expired:
                self.add(owner, (key,))

    def clear(self) -> None:
        """Start nothing more."""
        self._queue.clear()
        self._followers.clear()
