"""The scheduler-side half of a connector: policies first, then the backend."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from kvconn.answers import BrokenAnswer, check_load, check_moves, check_plan, leading_hits
from kvconn.backend import Backend, Settings
from kvconn.errors import (
    ConnectorClosed,
    MisuseError,
    TransferAlreadyCompleted,
    UnknownTransfer,
    WrongKey,
)
from kvconn.gate import PolicyGate
from kvconn.geometry import Geometry
from kvconn.guard import Guard
from kvconn.identity import DIGEST_BYTES, MAX_KEY_BYTES, Key, Namespace
from kvconn.policy import Policy
from kvconn.requests import RequestState
from kvconn.stats import ConnectorStats
from kvconn.threads import run_bounded
from kvconn.types import Hits, KVEvent, Request, StorePlan, Transfer, TransferKind

__all__ = ["SchedulerConnector"]

_NOTHING = StorePlan()


class SchedulerConnector:
    """What an engine's scheduler calls.  One thread; nothing here does I/O or sleeps.

    No method but the constructor raises because of a plugin.  What the engine itself does wrong
    raises a :class:`~kvconn.errors.MisuseError` when ``strict``, and is counted otherwise.
    """

    def __init__(
        self,
        backend: Backend,
        policies: Iterable[tuple[str, Policy]],
        geometry: Geometry,
        namespace: Namespace,
        *,
        name: str = "backend",
        settings: Settings | None = None,
        strict: bool = False,
    ) -> None:
        self.geometry = geometry
        self._groups = geometry.groups
        self.namespace = namespace
        self.strict = strict
        self.stats = ConnectorStats()
        self._backend = backend
        self._gate = PolicyGate(policies)
        self._guard = Guard(f"backend {name}")
        self._requests: dict[str, RequestState] = {}
        self._inflight: dict[int, Transfer] = {}
        self._completed: dict[int, None] = {}
        self._closed = False
        if settings is not None:
            backend.settings = settings
        backend.open_scheduler(geometry, namespace)
        # Bound once: a lookup of a method costs as much as a lookup of a key.
        self._lookup = backend.lookup
        self._touch = backend.touch
        self._prepare_load = backend.prepare_load
        self._prepare_store = backend.prepare_store
        self._complete = backend.complete_transfer

    # -- a request's life ------------------------------------------------------------------

    def request_started(self, request: Request) -> None:
        """Begin ``request``; the other methods do it when the engine did not."""
        self._state(request)

    def lookup(self, request: Request, keys: list[Key], computed_tokens: int = 0) -> int | None:
        """How many leading ``keys`` can be loaded and are now leased; ``None``: ask again.

        ``keys`` names the chunks from the first that the engine does not have whole, each by one
        key per KV-cache group: the answer is a multiple of their number.  ``computed_tokens`` is
        how many tokens of that first chunk the engine has.  A request that must
        not read is answered 0 without the backend hearing of it.
        """
        state = self._state(request)
        if not state.read:
            self._bypass(state)
            return 0
        if _is_late(request):
            self.release(request)
            return 0
        asked = len(keys)
        if not asked or not self._are_keys(keys):
            self.release(request)  # the earlier lease is replaced by nothing
            return 0
        usable = keys if state.failed is None else state.before_failed(keys)
        if not usable:
            self.release(request)
            return 0
        pending, found = False, 0
        try:
            found, pending = leading_hits(self._lookup(request, usable), len(usable))
        except BaseException as error:  # noqa: BLE001 - F2: whatever a backend raises is a miss
            self._guard.failed("lookup", error, "the lookup is a miss")
        state.leased = True
        if pending:
            return None
        if found and not (self._gate.accepts_all and self._groups == 1):
            found = self._accepted(request, found, computed_tokens)
        if not found:
            self.release(request)
        if not state.counted:
            state.counted = True
            self.stats.queries += asked
            self.stats.hits += found
        return found

    def _accepted(self, request: Request, found: int, computed_tokens: int) -> int:
        chunks = found // self._groups
        tokens = chunks * self.geometry.chunk_tokens - computed_tokens
        if chunks:
            chunks = self._gate.accept(request, Hits(chunks=chunks, tokens=max(0, tokens)))
        return chunks * self._groups

    def release(self, request: Request) -> None:
        """Give up what the last lookup of ``request`` leased."""
        state = self._requests.get(request.id)
        if state is not None and state.leased:
            state.leased = False
            self._call("release", request, consequence="its lease runs out by itself")

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        """A transfer of a leading run of ``keys``; what it does not name must be computed.

        Refused, counted, and the backend not asked, when the request must not read (R3).
        """
        state = self._state(request)
        if not state.read:
            self.stats.refused_loads += 1
            return None
        if _is_late(request):
            self.release(request)  # a load that must fail would cost everyone the keys
            return None
        if not keys or not self._are_keys(keys):
            self.release(request)  # what a load does not name is released
            return None
        usable = keys if state.failed is None else state.before_failed(keys)
        state.leased = state.counted = False
        transfer = self._planned_load(request, usable)
        named = len(transfer.keys) if transfer is not None else 0
        if named < len(usable):
            # A hit that cannot be loaded would be found again by the next lookup, for ever.
            state.remember_failed(usable[named : named + 1])
        return transfer

    def _planned_load(self, request: Request, usable: list[Key]) -> Transfer | None:
        try:
            transfer = self._prepare_load(request, usable)
            if transfer is None or not transfer.keys:
                return None
            check_load(transfer, usable)
        except BrokenAnswer as error:
            self._guard.failed("prepare_load", error, "nothing is loaded")
            self._give_back(transfer)
            return None
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("prepare_load", error, "nothing is loaded")
            return None
        self._inflight[transfer.id] = transfer
        return transfer

    def touch(self, request: Request, keys: list[Key]) -> None:
        """``keys`` were used, by whatever request; skipping ones included."""
        self._state(request)
        if not keys or self._closed or not self._are_keys(keys):
            return
        try:
            self._touch(request, keys)
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("touch", error, "the keys count as unused")

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan:
        """Offer ``keys``, whole chunks of final tokens (L7); the plan says which to store."""
        state = self._state(request)
        if not state.write:
            self.stats.refused_stores += 1
            return _NOTHING
        if not keys or not self._are_keys(keys):
            return _NOTHING
        stats = self.stats
        stats.offered += len(keys)
        if not self._gate.admits_all:
            keys = self._gate.admit(request, keys)
            if not keys:
                return _NOTHING
        try:
            plan = self._prepare_store(request, keys) or _NOTHING
            check_plan(plan, keys)
        except BrokenAnswer as error:
            self._guard.failed("prepare_store", error, "nothing is stored")
            self._give_back(getattr(plan, "transfer", None))
            return _NOTHING
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("prepare_store", error, "nothing is stored")
            return _NOTHING
        stats.accepted += len(plan.accepted)
        stats.evicted += len(plan.evicted)
        if plan.transfer is not None:
            self._inflight[plan.transfer.id] = plan.transfer
        return plan

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        """``transfer`` ended on every rank; a missing verdict has failed.

        Once per transfer, in any order, also after its request finished.  A second completion
        is misuse: the first verdicts stand.
        """
        try:
            verdicts = list(verdicts)
        except TypeError:
            verdicts = []  # no verdict at all: every key has failed
        prepared = self._inflight.pop(transfer.id, None)
        if prepared is None:
            self._misuse(_not_in_flight(transfer, self._completed))
            return
        transfer = prepared  # what was said then counts, whatever came back over the wire
        self._remember(transfer.id)
        count = len(transfer.keys)
        if len(verdicts) != count:
            verdicts = [*verdicts[:count], *[False] * (count - len(verdicts))]
        moved = sum(map(bool, verdicts))
        self._count(transfer.kind, moved, count - moved)
        if moved < count and transfer.kind is TransferKind.LOAD:
            state = self._requests.get(transfer.request_id)
            if state is not None:
                state.remember_failed(
                    key for key, good in zip(transfer.keys, verdicts, strict=True) if not good
                )
        try:
            self._complete(transfer, verdicts)
        except BaseException as error:  # noqa: BLE001 - F2
            self._guard.failed("complete_transfer", error, "its keys may be lost to the cache")

    def request_finished(self, request: Request) -> None:
        """``request`` ended: completed, aborted, or gone; running transfers go on."""
        state = self._requests.pop(request.id, None)
        if state is None:
            return
        self._call("request_finished", request, consequence="its lease runs out by itself")

    # -- the whole -------------------------------------------------------------------------

    def step(self) -> list[Transfer]:
        """Once per engine step.

        Answers transfers of kind ``MOVE``: hand each to every worker, with ``[]`` for rows, after
        all transfers that were prepared before, and complete it like any other.
        """
        moves: list[Transfer] = self._guard.call_for(
            check_moves,
            self._backend.step,
            otherwise=[],
            consequence="its work waits for the next step",
        )
        self._inflight.update((move.id, move) for move in moves)
        return moves

    def has_pending_work(self) -> bool:
        """Must an idle engine go on stepping?  Yes while a transfer runs."""
        if self._inflight:
            return True
        return self._guard.call_for(
            bool, self._backend.has_pending_work, otherwise=False, consequence="taken as no"
        )

    @property
    def transfers_in_flight(self) -> int:
        """Transfers prepared and not completed."""
        return len(self._inflight)

    def reset(self) -> Mapping[str, int]:
        """Empty every tier; per tier, how many chunks were dropped."""
        return self._guard.call_for(
            dict, self._backend.reset, otherwise={}, consequence="the cache may still hold blocks"
        )

    def take_events(self) -> Sequence[KVEvent]:
        """What was stored and removed since the last call."""
        return self._guard.call_for(
            list, self._backend.take_events, otherwise=[], consequence="its events are lost"
        )

    def collect_stats(self) -> dict[str, float]:
        """Our counters and the backend's figures, by name."""
        self.stats.policy_errors = self._gate.errors
        self.stats.backend_errors = self._guard.errors
        figures: dict[str, float] = self._guard.call_for(
            dict, self._backend.collect_stats, otherwise={}, consequence="its figures are missing"
        )
        return {
            **figures,
            **self.stats.as_dict(),
            "requests": len(self._requests),
            "transfers": len(self._inflight),
        }

    def close(self, deadline: float = 5.0) -> list[int]:
        """Close within ``deadline`` seconds, from any thread, perhaps twice.

        Answers the ids of the transfers that nobody completed.
        """
        if self._closed:
            return list(self._inflight)
        self._closed = True
        ends = time.monotonic() + deadline
        requests, self._requests = self._requests, {}

        def end() -> None:
            for state in requests.values():
                self._call("request_finished", state.request, consequence="ignored while closing")
            self._call("close", max(0.0, ends - time.monotonic()), consequence="ignored")

        if not run_bounded(end, deadline, "close"):
            self._guard.failed("close", TimeoutError(f"{deadline} s passed"), "left behind")
        return list(self._inflight)

    # -- inside ----------------------------------------------------------------------------

    def _state(self, request: Request) -> RequestState:
        """The state of ``request``, started or refreshed when it is new or has other flags."""
        state = self._requests.get(request.id)
        if state is not None and state.request is request:
            return state
        if self._closed:
            self._misuse(ConnectorClosed("the connector is closed: open another one"))
            return RequestState(request, read=False, write=False)
        if state is None:
            allowed = self._gate.permit(request)
            state = RequestState(request, read=allowed.read, write=allowed.write)
            self._requests[request.id] = state
            self._call("request_started", request, consequence="it is served all the same")
        elif not state.same_flags(request):
            allowed = self._gate.permit(request)
            if not allowed.read:
                self.release(request)  # R2: before the skip takes effect
            state.read, state.write = allowed.read, allowed.write
        state.request = request
        return state

    def _bypass(self, state: RequestState) -> None:
        if not state.bypassed and not self._closed:
            state.bypassed = True
            self.stats.bypassed += 1

    def _are_keys(self, keys: list[Key]) -> bool:
        """Whether ``keys`` are all ``bytes`` of one length; a plain loop is the fastest look."""
        first = keys[0]
        length = len(first) if type(first) is bytes else 0
        if DIGEST_BYTES <= length <= MAX_KEY_BYTES:
            for key in keys:
                if type(key) is not bytes or len(key) != length:
                    break
            else:
                return True
        self._misuse(
            WrongKey(
                f"a key must be bytes, {DIGEST_BYTES} to {MAX_KEY_BYTES} of them and as many as in "
                "every other: make keys with kvconn.identity.content_key"
            )
        )
        return False

    def _misuse(self, error: MisuseError) -> None:
        self.stats.misuse += 1
        if self.strict:
            raise error

    def _give_back(self, transfer: Transfer | None) -> None:
        """End a transfer that will never run, so that the backend holds nothing for it."""
        if isinstance(transfer, Transfer) and transfer.id not in self._inflight:
            failed = [False] * len(transfer.keys)
            self._call("complete_transfer", transfer, failed, consequence="ignored")

    def _call(self, hook: str, *arguments: object, consequence: str) -> None:
        self._guard.call(
            getattr(self._backend, hook), *arguments, otherwise=None, consequence=consequence
        )

    def _count(self, kind: TransferKind, moved: int, failed: int) -> None:
        stats = self.stats
        if kind is TransferKind.LOAD:
            stats.loaded += moved
            stats.failed_loads += failed
        elif kind is TransferKind.STORE:
            stats.stored += moved
            stats.failed_stores += failed

    def _remember(self, transfer_id: int) -> None:
        """Keep the last thousand completed ids, to tell a second completion from nonsense."""
        self._completed[transfer_id] = None
        if len(self._completed) > 1000:  # noqa: PLR2004
            del self._completed[next(iter(self._completed))]


def _is_late(request: Request) -> bool:
    return request.deadline is not None and time.monotonic() >= request.deadline


def _not_in_flight(transfer: Transfer, completed: Mapping[int, None]) -> MisuseError:
    if transfer.id in completed:
        return TransferAlreadyCompleted(
            f"transfer {transfer.id} was completed before: complete each transfer once"
        )
    return UnknownTransfer(
        f"transfer {transfer.id} was not prepared by this connector: complete only what "
        "prepare_load and prepare_store answered"
    )
