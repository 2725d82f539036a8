"""The contract, one page: what kvconn asks of a policy and of a backend, and when.

Threads: every scheduler-side hook is called from one thread, the engine's scheduler; every
worker-side call from one thread per worker.  Scheduler-side hooks do no I/O, take no lock that
another thread holds for long, and never sleep.  ``keys`` is always a list of ``bytes`` in prefix
order that the callee must not change or keep; a request appears in at most one call of each kind
per engine step.  What a raised exception means is said with each hook; it never reaches the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pluggy

from kvconn.types import BlockState, Hits, KVEvent, Permissions, Request, StorePlan, Transfer

if TYPE_CHECKING:
    from kvconn.backend import PoolSize, WorkerSide
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import HostPool, KVCaches

CONTRACT_VERSION = 1
"""What a plugin writes as ``contract_version``; a change that breaks plugins raises it."""

PROJECT = "kvconn"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Optional: a method named like a hook is one, with or without this marker."""

# The bodies below are documentation and are never run.
# mypy: disable-error-code="empty-body"


class PolicySpec:
    """A policy may narrow what a request does; it can never grant, and holds no blocks.

    Every policy is asked, each in its own ``try``, and the answers are intersected.  A policy
    that raises denies.
    """

    @hookspec
    def permit(self, request: Request) -> Permissions | None:
        """May ``request`` read, may it write?  ``None``: both.

        When a request starts, and again whenever it is presented with other flags.
        """

    @hookspec
    def admit(self, request: Request, keys: list[Key]) -> Sequence[Key] | None:
        """Which of the offered ``keys`` may be stored?  ``None``: all.

        Once per offer, before ``prepare_store``.  Keys that were not offered are ignored.
        """

    @hookspec
    def accept(self, request: Request, hits: Hits) -> int | None:
        """How many of the ``hits.chunks`` leading hits to use?  ``None``: all; 0: a miss.

        Once per lookup that found something, after the backend answered.
        """


class BackendSpec:
    """A backend holds blocks.  See the module's docstring for threads."""

    # -- opening ---------------------------------------------------------------------------

    @hookspec
    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        """Get ready for scheduler-side calls.  Once.

        Raises :class:`~kvconn.errors.CapacityTooSmall` and other configuration errors, which do
        reach the caller: a connector that cannot work does not open.
        """

    @hookspec
    def pool_size(self, geometry: Geometry) -> PoolSize:
        """Slots that a worker's host pool needs, and the bytes of each.  Once per half.

        A slot holds at least ``geometry.slot_bytes``; a chunk lies at its start.
        """

    @hookspec
    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        """The half that moves bytes between ``caches`` (engine pages) and the backend.  Once."""

    # -- a request's life, scheduler side --------------------------------------------------

    @hookspec
    def request_started(self, request: Request) -> None:
        """A request begins, whatever its flags.  Raising is counted and ignored."""

    @hookspec
    def lookup(self, request: Request, keys: list[Key]) -> Sequence[BlockState] | bytes:
        """One state per key (``bytes`` of states is the fastest form); raising is all ``MISS``.

        Leases the leading run of hits to ``request`` and replaces what an earlier lookup of the
        same request leased.  A waiting request asks again in every step.
        """

    @hookspec
    def release(self, request: Request) -> None:
        """Give up the request's lease, if it has one."""

    @hookspec
    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        """A ``LOAD`` of a leading run of ``keys`` that now owns their lease.

        What the transfer does not name is released.  ``None``, or raising: nothing to load.
        """

    @hookspec
    def touch(self, request: Request, keys: list[Key]) -> None:
        """``keys`` were used: eviction should spare them.  Unknown keys are no error."""

    @hookspec
    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        """Which of the offered ``keys`` to store, and what had to go for them.

        In-flight stores count against the capacity.  ``None``, or raising: nothing is stored.
        """

    @hookspec
    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        """``transfer`` ended; ``verdicts[i]`` says whether ``transfer.keys[i]`` moved, everywhere.

        Exactly once per transfer, perhaps after its request finished.  Stored keys become
        visible here; a failed key is a miss to everyone from here on, leased or not.
        """

    @hookspec
    def request_finished(self, request: Request) -> None:
        """A request ended; give up what it holds, except its running transfers."""

    # -- the whole, scheduler side ---------------------------------------------------------

    @hookspec
    def holds(self, keys: list[Key]) -> Sequence[bool]:
        """Which keys a lookup would find, without a lease and for no request.

        For compositions, at any time.  Raising: none.
        """

    @hookspec
    def step(self) -> Sequence[Transfer] | None:
        """Once per engine step: leases that ran out, background work that ended.

        Answers transfers of kind ``MOVE``, work of the backend's own that belongs to no request:
        workers are given them with no rows, after every transfer that was prepared before.
        ``None``, or raising: none.
        """

    @hookspec
    def has_pending_work(self) -> bool:
        """Must an idle engine go on stepping?  After each step."""

    @hookspec
    def reset(self) -> Mapping[str, int]:
        """Forget every block; per tier, how many were dropped."""

    @hookspec
    def take_events(self) -> Sequence[KVEvent]:
        """What was stored and removed since the last call."""

    @hookspec
    def collect_stats(self) -> Mapping[str, float]:
        """Figures by name: at least ``leases``, ``reservations``, ``entries`` and ``capacity``."""

    @hookspec
    def close(self, deadline: float) -> None:
        """Give everything back within ``deadline`` seconds.  Perhaps twice."""
