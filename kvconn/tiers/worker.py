"""Two backends as one, worker side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kvconn.backend import Verdicts, WorkerSide
from kvconn.guard import Guard
from kvconn.tiers.bounce import Bounce
from kvconn.tiers.orders import (
    FAST,
    SLOW,
    LoadOrders,
    MoveOrders,
    Placement,
    StoreOrders,
    orders_of,
)
from kvconn.types import ABSENT, BlockRows, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.memory import HostPool, KVCaches

__all__ = ["Tier", "TieredWorker"]

_MOST_UNCLAIMED = 4096
"""Ends of background transfers that no ``MOVE`` asked for; an engine may lose one."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier's side, and how to open another one over other pages."""

    side: WorkerSide
    open_over: Callable[[KVCaches], WorkerSide]


@dataclass(slots=True, eq=False)
class _Running:
    """A load or store that the engine waits for."""

    transfer: Transfer
    rows: BlockRows
    verdicts: list[bool] = field(init=False)
    left: set[int] = field(default_factory=set)
    """Its tiers' transfers that have not ended."""
    promotion: Placement | None = None

    def __post_init__(self) -> None:
        self.verdicts = [False] * len(self.transfer.keys)


@dataclass(frozen=True, slots=True)
class _Part:
    """Which keys of a composition's transfer one of a tier's moves, as indices in it."""

    whole: _Running
    places: Sequence[int]


class TieredWorker:
    """The engine's worker thread only, like each of its sides."""

    def __init__(self, fast: Tier, slow: Tier, caches: KVCaches, *, owned: HostPool) -> None:
        """``owned``: the pool of the slow tier, which goes with this worker."""
        self._tiers = fast, slow
        self._sides: list[WorkerSide] = [fast.side, slow.side]
        self._caches = caches
        self._owned = owned
        self._bounce: Bounce | None = None
        self._guard = Guard("tiers (worker)")
        self._parts: dict[int, _Part] = {}
        self._promoting: dict[int, _Running] = {}
        """By the store into the fast tier, the load whose pages it reads."""
        self._background: dict[int, tuple[Sequence[int], int]] = {}
        """Running background transfers: which keys of how many were begun."""
        self._unclaimed: dict[int, Verdicts] = {}
        self._claims: dict[int, int] = {}
        """By background transfer, the ``MOVE`` to report it under."""
        self._relayed: dict[int, int] = {}
        """By a tier's own ``MOVE``, ours."""
        self._ended: list[tuple[int, Verdicts]] = []

    # -- orders ----------------------------------------------------------------------------

    def submit(self, transfer: Transfer, blocks: BlockRows) -> None:
        if transfer.kind is TransferKind.MOVE:
            self._claim(transfer, orders_of(transfer, MoveOrders))
        elif transfer.kind is TransferKind.LOAD:
            self._load(transfer, blocks, orders_of(transfer, LoadOrders))
        else:
            self._store(transfer, blocks, orders_of(transfer, StoreOrders))

    def _load(self, transfer: Transfer, blocks: BlockRows, orders: LoadOrders) -> None:
        whole = _Running(transfer, blocks, promotion=orders.promotion)
        if orders.promotion is not None:
            self._announce(orders.promotion)
        at = 0
        for _, part in orders.parts:
            whole.left.add(part.id)
            self._parts[part.id] = _Part(whole, range(at, at + len(part.keys)))
            at += len(part.keys)
        at = 0
        for tier, part in orders.parts:
            self._begin(tier, part, blocks[at : at + len(part.keys)])
            at += len(part.keys)

    def _store(self, transfer: Transfer, blocks: BlockRows, orders: StoreOrders) -> None:
        whole = _Running(transfer, blocks)
        whole.verdicts = [True] * len(transfer.keys)  # of what goes to the slow tier, the move says
        rows = dict(zip(transfer.keys, blocks, strict=True))
        if orders.through is not None:
            self._begin_background(SLOW, orders.through, [rows[k] for k in orders.through.keys])
        placement, tier, store = orders.placement, SLOW, orders.direct
        if placement is not None:
            self._demote(placement)
            tier, store = FAST, placement.store
        if store is not None:
            whole.left.add(store.id)
            place = {key: i for i, key in enumerate(transfer.keys)}
            self._parts[store.id] = _Part(whole, [place[key] for key in store.keys])
            self._begin(tier, store, [rows[key] for key in store.keys])

    def _begin(self, tier: int, transfer: Transfer, rows: BlockRows) -> None:
        try:
            self._sides[tier].submit(transfer, rows)
        except BaseException as error:  # noqa: BLE001 - F2: that tier's part fails, the other goes on
            self._guard.failed("submit", error, "the tier's part failed")
            self._hear(transfer.id, [])

    def _begin_background(self, tier: int, transfer: Transfer, rows: BlockRows) -> None:
        self._background[transfer.id] = range(len(transfer.keys)), len(transfer.keys)
        self._begin(tier, transfer, rows)

    def _announce(self, promotion: Placement) -> None:
        """It comes after a load: until then nobody may think that it came to nothing."""
        for transfer in (promotion.store, *(one.demoted for one in promotion.demotions)):
            self._background[transfer.id] = (), len(transfer.keys)

    def _demote(self, placement: Placement) -> None:
        """What is evicted for ``placement`` goes down before its slots are written."""
        for demotion in placement.demotions:
            self._demote_some(demotion.evicted, demotion.demoted)

    def _demote_some(self, evicted: Transfer, demoted: Transfer) -> None:
        begun: Sequence[int] = ()
        try:
            if self._bounce is None:
                fast, slow = self._tiers
                self._bounce = Bounce(self._caches, fast.open_over, slow.open_over)
                self._sides.append(self._bounce.slow)
            begun = self._bounce.move(evicted, demoted)
        except BaseException as error:  # noqa: BLE001 - F2: it is lost, as what is evicted may be
            self._guard.failed("demote", error, "what was evicted is lost")
        self._background[demoted.id] = begun, len(demoted.keys)
        if not begun:
            self._hear(demoted.id, [])

    def _promote(self, whole: _Running, placement: Placement) -> None:
        """What was loaded lies in the engine's pages, which are still this load's."""
        store = placement.store
        place = {key: i for i, key in enumerate(whole.transfer.keys)}
        good = [
            i
            for i, key in enumerate(store.keys)
            if whole.verdicts[place[key]] and ABSENT not in whole.rows[place[key]]
        ]
        self._demote(placement)
        self._background[store.id] = good, len(store.keys)
        self._promoting[store.id] = whole
        some = msgspec.structs.replace(
            store,
            keys=tuple(store.keys[i] for i in good),
            locations=tuple(store.locations[i] for i in good) if store.locations else (),
        )
        if good:
            self._begin(FAST, some, [whole.rows[place[key]] for key in some.keys])
        else:
            self._hear(store.id, [])

    def _claim(self, move: Transfer, orders: MoveOrders) -> None:
        """``move`` reports a background transfer: one that has ended, runs, or never began."""
        if orders.inner is not None:
            self._relayed[orders.inner.id] = move.id
            self._begin(orders.tier, orders.inner, [])
        elif orders.awaited in self._background:
            self._claims[orders.awaited] = move.id
        else:
            self._ended.append((move.id, self._unclaimed.pop(orders.awaited, [])))

    # -- ends ------------------------------------------------------------------------------

    def poll(self) -> Sequence[tuple[int, Verdicts]]:
        self._collect()
        ended, self._ended = self._ended, []
        return ended

    def _collect(self) -> None:
        for side in self._sides:
            ended: list[tuple[int, Verdicts]] = self._guard.call_for(
                list, side.poll, otherwise=[], consequence="its transfers go on"
            )
            for transfer_id, verdicts in ended:
                self._hear(transfer_id, verdicts)

    def _hear(self, transfer_id: int, verdicts: Verdicts) -> None:
        if (part := self._parts.pop(transfer_id, None)) is not None:
            self._part_ended(transfer_id, part, verdicts)
        elif transfer_id in self._background:
            self._background_ended(transfer_id, verdicts)
        elif (move := self._relayed.pop(transfer_id, None)) is not None:
            self._ended.append((move, verdicts))

    def _part_ended(self, transfer_id: int, part: _Part, verdicts: Verdicts) -> None:
        whole = part.whole
        verdicts = [*verdicts, *[False] * len(part.places)]
        for place, good in zip(part.places, verdicts, strict=False):
            whole.verdicts[place] = bool(good)
        whole.left.discard(transfer_id)
        if whole.left:
            return
        promotion, whole.promotion = whole.promotion, None
        if promotion is not None:
            self._promote(whole, promotion)
        else:
            self._ended.append((whole.transfer.id, whole.verdicts))

    def _background_ended(self, transfer_id: int, verdicts: Verdicts) -> None:
        begun, count = self._background.pop(transfer_id)
        whole = [False] * count
        for i, good in zip(begun, verdicts, strict=False):
            whole[i] = bool(good)
        move = self._claims.pop(transfer_id, None)
        if move is not None:
            self._ended.append((move, whole))
        else:
            self._unclaimed[transfer_id] = whole
            while len(self._unclaimed) > _MOST_UNCLAIMED:
                del self._unclaimed[next(iter(self._unclaimed))]
        loaded = self._promoting.pop(transfer_id, None)
        if loaded is not None:
            self._ended.append((loaded.transfer.id, loaded.verdicts))

    # -- the whole -------------------------------------------------------------------------

    def flush(self, transfer_ids: Iterable[int], deadline: float) -> bool:
        """Both tiers' stores of these; what runs in the background has read its pages as well."""
        wanted = set(transfer_ids)
        stores = [i for i, part in self._parts.items() if part.whole.transfer.id in wanted]
        ends = time.monotonic() + deadline
        answers = [
            side.flush([*stores, *self._background], max(0.0, ends - time.monotonic()))
            for side in self._sides
        ]
        return all(answer is not False for answer in answers)

    def wait(self, transfer_ids: Iterable[int], deadline: float) -> None:
        wanted, ends = set(transfer_ids), time.monotonic() + deadline
        while (inner := self._inner(wanted)) and (left := ends - time.monotonic()) > 0:
            for side in self._sides:
                side.wait(inner, left / len(self._sides))
                self._collect()
                if not (inner := self._inner(wanted)):
                    return

    def _inner(self, wanted: set[int]) -> list[int]:
        """The tiers' transfers that ``wanted`` wait for."""
        return [
            *(i for i, part in self._parts.items() if part.whole.transfer.id in wanted),
            *(i for i, whole in self._promoting.items() if whole.transfer.id in wanted),
            *(i for i, move in self._claims.items() if move in wanted),
            *(i for i, move in self._relayed.items() if move in wanted),
        ]

    def figures(self) -> Mapping[str, float]:
        """Those of each tier that has any."""
        figures: dict[str, float] = {}
        for side in self._sides[:2]:
            figures |= getattr(side, "figures", dict)()
        return figures

    def close(self, deadline: float) -> Sequence[int]:
        ends = time.monotonic() + deadline
        left: set[int] = set()
        sides: list[WorkerSide | Bounce] = [*self._sides[:2]]
        if self._bounce is not None:
            sides.append(self._bounce)
        for side in sides:
            with suppress(Exception):
                left.update(side.close(max(0.0, ends - time.monotonic())))
        if not left:
            self._owned.close()
        running = {part.whole.transfer.id for part in self._parts.values()}
        return sorted({*running, *self._claims.values(), *self._relayed.values()} | left)
