"""Two backends as one, scheduler side: the fast one first, the slow one behind it.

More than two are a composition whose slow tier is a composition.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from kvconn.answers import check_load, leading_hits
from kvconn.backend import Backend, PluginConfig, PoolSize, Settings, WorkerSide
from kvconn.guard import Guard
from kvconn.memory import HostPool
from kvconn.tiers.bounce import CHUNKS
from kvconn.tiers.orders import (
    FAST,
    SLOW,
    Demotion,
    LoadOrders,
    MoveOrders,
    Placement,
    StoreOrders,
)
from kvconn.tiers.pairs import Pairs
from kvconn.tiers.sweep import Found, sweep
from kvconn.tiers.worker import Tier, TieredWorker
from kvconn.types import (
    BlockState,
    KVEvent,
    Request,
    StorePlan,
    Transfer,
    TransferKind,
    WriteMode,
    new_transfer_id,
)

if TYPE_CHECKING:
    from kvconn.geometry import Geometry
    from kvconn.identity import Key, Namespace, Shard
    from kvconn.memory import KVCaches

__all__ = ["TieredBackend", "compose"]

_HIT, _MISS, _PENDING = (
    bytes([state]) for state in (BlockState.HIT, BlockState.MISS, BlockState.PENDING)
)
_PROMOTING, _DEMOTING = Request("kvconn promotes"), Request("kvconn demotes")
_PATIENCE_S = 5.0
"""A ``MOVE`` outlasts what it reports, and the load that comes before that: its places must not be
given to others while the bytes can still come."""
_ADDED = ("leases", "reservations", "loading")
"""Figures of a backend that are the sum of its tiers'."""


def compose(tiers: Sequence[tuple[str, Backend]], write: WriteMode) -> Backend:
    """The backends in order, the fastest first, as one."""
    (name, fastest), *rest = tiers
    if not rest:
        return fastest
    behind = rest[0] if len(rest) == 1 else ("", compose(rest, write))
    return TieredBackend((name, fastest), behind, write)


class TieredBackend(Backend):
    """A tier that raises is passed over for that call and asked again by the next."""

    contract_version = 1

    def __init__(
        self, fast: tuple[str, Backend], slow: tuple[str, Backend], write: WriteMode
    ) -> None:
        """Each tier with the name it has in figures; ``""`` for one that has names of its own."""
        super().__init__(PluginConfig())
        self.names = fast[0], slow[0]
        self.tiers = fast[1], slow[1]
        self.pinned = all(tier.pinned for tier in self.tiers)  # type: ignore[misc] # of these two
        self._write = write
        self._guards = [Guard(f"tier {name or 'behind ' + fast[0]}") for name in self.names]
        self._found: dict[str, Found] = {}
        """Of requests whose hits do not all lie in the fast tier."""
        self._going: dict[int, list[tuple[int, Transfer]]] = {}
        """By transfer, the tiers' own transfers whose verdicts its verdicts are, key by key."""
        self._pairs = Pairs()
        self._moves: list[Transfer] = []
        """To be handed out by the next step."""
        self._moved: Counter[str] = Counter()

    @property
    def settings(self) -> Settings:
        """Those of every tier."""
        return self.tiers[FAST].settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        for tier in self.tiers:
            tier.settings = settings

    def _call(self, tier: int, hook: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - its own
        return self._guards[tier].call(
            hook, *arguments, otherwise=None, consequence="the tier is passed over"
        )

    # -- opening ---------------------------------------------------------------------------

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> None:
        for tier in self.tiers:
            tier.open_scheduler(geometry, namespace)

    def pool_size(self, geometry: Geometry) -> PoolSize:
        """The fast tier's; each of the others gets a pool of its own."""
        self._geometry = geometry
        return self.tiers[FAST].pool_size(geometry)

    def open_worker(
        self, pool: HostPool, caches: KVCaches, namespace: Namespace, shard: Shard
    ) -> WorkerSide:
        size = self.tiers[SLOW].pool_size(self._geometry)
        pools = pool, HostPool(size.slot_bytes, size.slots, device=caches.device)

        def opener(tier: int) -> Callable[[KVCaches], WorkerSide]:
            return lambda pages: self.tiers[tier].open_worker(pools[tier], pages, namespace, shard)

        fast, slow = (Tier(opener(tier)(caches), opener(tier)) for tier in (FAST, SLOW))
        return TieredWorker(fast, slow, caches, owned=pools[SLOW])

    # -- reading ---------------------------------------------------------------------------

    def request_started(self, request: Request) -> None:
        for i, tier in enumerate(self.tiers):
            self._call(i, tier.request_started, request)

    def lookup(self, request: Request, keys: list[Key]) -> Sequence[BlockState] | bytes:
        answer, hits, pending = self._ask(FAST, request, keys)
        if hits == len(keys):
            if request.id in self._found:
                self._let_go(self._found.pop(request.id), but={(FAST, request.id)})
            return answer
        found = self._sweep(request, keys, hits, pending=pending)
        before = self._found.pop(request.id, None)
        if before is not None:
            self._let_go(before, but=found.holders)
        self._found[request.id] = found
        rest = len(keys) - found.hits
        return _HIT * found.hits + (_PENDING if found.pending else _MISS) * rest

    def _ask(
        self, tier: int, request: Request, keys: list[Key]
    ) -> tuple[Sequence[BlockState] | bytes, int, bool]:
        try:
            answer = self.tiers[tier].lookup(request, keys)
            return (answer, *leading_hits(answer, len(keys)))
        except BaseException as error:  # noqa: BLE001 - F2
            self._guards[tier].failed("lookup", error, "the tier is passed over")
            return b"", 0, False

    def _leading(self, tier: int, request: Request, keys: list[Key]) -> tuple[int, bool]:
        return self._ask(tier, request, keys)[1:]

    def _sweep(self, request: Request, keys: list[Key], hits: int, *, pending: bool) -> Found:
        return sweep(self._leading, self._next_fast, request, keys, hits, pending=pending)

    def _next_fast(self, keys: list[Key]) -> int:
        """How many leading keys the fast tier lacks."""
        held = self._call(FAST, self.tiers[FAST].holds, keys) or ()
        return next((i for i, there in enumerate(held) if there), len(keys))

    def _let_go(self, found: Found, but: set[tuple[int, str]]) -> None:
        for segment in found.segments:
            if (segment.tier, segment.request.id) not in but:
                self._call(segment.tier, self.tiers[segment.tier].release, segment.request)

    def release(self, request: Request) -> None:
        self._call(FAST, self.tiers[FAST].release, request)
        found = self._found.pop(request.id, None)
        if found is not None:
            self._let_go(found, but={(FAST, request.id)})

    def request_finished(self, request: Request) -> None:
        found = self._found.pop(request.id, None)
        if found is not None:
            self._let_go(found, but={(FAST, request.id), (SLOW, request.id)})
        for i, tier in enumerate(self.tiers):
            self._call(i, tier.request_finished, request)

    def holds(self, keys: list[Key]) -> Sequence[bool]:
        fast, slow = (self._held(tier, keys) for tier in (FAST, SLOW))
        return [key in fast or key in slow for key in keys]

    def _held(self, tier: int, keys: list[Key]) -> set[Key]:
        held = self._call(tier, self.tiers[tier].holds, keys) or ()
        return {key for key, there in zip(keys, held, strict=False) if there}

    def touch(self, request: Request, keys: list[Key]) -> None:
        for i, tier in enumerate(self.tiers):
            self._call(i, tier.touch, request, keys)

    def prepare_load(self, request: Request, keys: list[Key]) -> Transfer | None:
        parts = self._parts(self._found_for(request, keys), keys)
        if not parts:
            return None
        transfer = Transfer(
            id=new_transfer_id(),
            kind=TransferKind.LOAD,
            request_id=request.id,
            keys=tuple(key for _, part in parts for key in part.keys),
            timeout_s=max(part.timeout_s for _, part in parts),
            payload=msgspec.msgpack.encode(LoadOrders(tuple(parts), self._promotion(parts))),
        )
        self._going[transfer.id] = parts
        return transfer

    def _found_for(self, request: Request, keys: list[Key]) -> Found:
        """What the last lookup found; anew if it was not about these keys."""
        found = self._found.pop(request.id, None)
        if found is None or found.keys[: len(keys)] != keys:
            if found is not None:
                self._let_go(found, but=set())
            _, hits, pending = self._ask(FAST, request, keys)
            found = self._sweep(request, keys, hits, pending=pending)
        return found

    def _parts(self, found: Found, keys: list[Key]) -> list[tuple[int, Transfer]]:
        """Each segment's transfer, up to the first key that cannot be loaded after all."""
        parts: list[tuple[int, Transfer]] = []
        end = 0
        for segment in found.segments:
            wanted = keys[segment.at : segment.at + segment.count]
            if segment.at > end or not wanted:
                self._call(segment.tier, self.tiers[segment.tier].release, segment.request)
                continue
            part = self._part(segment.tier, segment.request, wanted)
            if part is not None:
                parts.append((segment.tier, part))
                end += len(part.keys)
        return parts

    def _part(self, tier: int, request: Request, keys: list[Key]) -> Transfer | None:
        try:
            part = self.tiers[tier].prepare_load(request, keys)
            if part is None or not part.keys:
                return None
            check_load(part, keys)
        except BaseException as error:  # noqa: BLE001 - F2
            self._guards[tier].failed("prepare_load", error, "the tier is passed over")
            return None
        return part

    def _promotion(self, parts: Sequence[tuple[int, Transfer]]) -> Placement | None:
        """Room in the fast tier for what comes from the slow one."""
        keys = [key for tier, part in parts if tier == SLOW for key in part.keys]
        plan = self._call(FAST, self.tiers[FAST].prepare_store, _PROMOTING, keys) if keys else None
        if plan is None or plan.transfer is None:
            return None
        self._expect(FAST, plan.transfer)
        return self._placement(plan, plan.transfer)

    # -- writing ---------------------------------------------------------------------------

    def prepare_store(self, request: Request, keys: list[Key]) -> StorePlan | None:
        plan = self._call(FAST, self.tiers[FAST].prepare_store, request, keys)
        if plan is None or plan.transfer is None:
            return self._store_behind(request, keys)
        placement = self._placement(plan, plan.transfer)
        through = self._in_background(request, self._for_slow(keys, plan.accepted))
        named = {*plan.accepted, *(through.keys if through is not None else ())}
        wanted = tuple(key for key in keys if key in named)
        orders = StoreOrders(placement=placement, through=through)
        transfer = self._store(request, wanted, plan.transfer, orders)
        self._going[transfer.id] = [(FAST, plan.transfer)]
        if through is not None:
            self._pairs.bind(transfer.id, self._moves[-1].id)
        return StorePlan(wanted, transfer, plan.evicted)

    def _for_slow(self, keys: list[Key], accepted: Sequence[Key]) -> list[Key]:
        """What the slow tier gets at once: all of it, or what the fast one has no room for.

        What the fast one is storing, or loading, it has.
        """
        if self._write == "write_through":
            return keys
        held = {*accepted, *self._held(FAST, keys)}
        for parts in self._going.values():
            held.update(*(part.keys for tier, part in parts if tier == FAST))
        return [key for key in keys if key not in held]

    def _store_behind(self, request: Request, keys: list[Key]) -> StorePlan | None:
        """The fast tier has them already, has no room, or is broken."""
        keys = self._for_slow(keys, ())
        plan = self._call(SLOW, self.tiers[SLOW].prepare_store, request, keys) if keys else None
        if plan is None or plan.transfer is None:
            return None
        orders = StoreOrders(direct=plan.transfer)
        transfer = self._store(request, plan.transfer.keys, plan.transfer, orders)
        self._going[transfer.id] = [(SLOW, plan.transfer)]
        return StorePlan(transfer.keys, transfer, plan.evicted)

    def _store(
        self, request: Request, keys: Sequence[Key], inner: Transfer, orders: StoreOrders
    ) -> Transfer:
        return Transfer(
            id=new_transfer_id(),
            kind=TransferKind.STORE,
            request_id=request.id,
            keys=tuple(keys),
            timeout_s=inner.timeout_s,
            payload=msgspec.msgpack.encode(orders),
        )

    def _in_background(self, request: Request, keys: list[Key]) -> Transfer | None:
        """A store into the slow tier; it is simply not made when that tier cannot keep up."""
        plan = self._call(SLOW, self.tiers[SLOW].prepare_store, request, keys) if keys else None
        if plan is None or plan.transfer is None:
            return None
        self._expect(SLOW, plan.transfer)
        transfer: Transfer = plan.transfer
        return transfer

    def _placement(self, plan: StorePlan, store: Transfer) -> Placement:
        """With what the slow tier gets now: what was evicted, or what it could not take before."""
        if not plan.evicted_locations:
            return Placement(store)
        where = dict(zip(plan.evicted, plan.evicted_locations, strict=True))
        evicted = list(plan.evicted)
        demotions = (
            self._demotion(evicted[at : at + CHUNKS], where)
            for at in range(0, len(evicted), CHUNKS)
        )
        return Placement(store, tuple(demotion for demotion in demotions if demotion is not None))

    def _demotion(self, keys: list[Key], where: Mapping[Key, int]) -> Demotion | None:
        """Of those that the slow tier does not have and has room for."""
        demoted = self._in_background(_DEMOTING, keys)
        if demoted is None:
            return None
        evicted = Transfer(
            id=new_transfer_id(),
            kind=TransferKind.LOAD,
            request_id=_DEMOTING.id,
            keys=demoted.keys,
            locations=tuple(where[key] for key in demoted.keys),
            timeout_s=demoted.timeout_s,
        )
        return Demotion(evicted, demoted)

    def _expect(self, tier: int, transfer: Transfer) -> None:
        """A background transfer of ``tier``, reported under a ``MOVE``."""
        self._move(tier, transfer, MoveOrders(awaited=transfer.id))

    def _move(self, tier: int, transfer: Transfer, orders: MoveOrders) -> None:
        move = Transfer(
            id=new_transfer_id(),
            kind=TransferKind.MOVE,
            request_id="",
            keys=transfer.keys,
            timeout_s=2 * transfer.timeout_s + _PATIENCE_S,
            payload=msgspec.msgpack.encode(orders),
        )
        self._going[move.id] = [(tier, transfer)]
        self._moves.append(move)

    def complete_transfer(self, transfer: Transfer, verdicts: Sequence[bool]) -> None:
        said = dict(zip(transfer.keys, verdicts, strict=True))
        for known, its_keys in self._pairs.ended(transfer.id, said):
            for tier, part in self._going.pop(known, ()):
                its = [its_keys[key] for key in part.keys]
                self._count(tier, part.kind, sum(map(bool, its)))
                self._call(tier, self.tiers[tier].complete_transfer, part, its)

    def _count(self, tier: int, kind: TransferKind, moved: int) -> None:
        if kind is not TransferKind.MOVE and self.names[tier]:
            what = "loaded" if kind is TransferKind.LOAD else "stored"
            self._moved[f"{self.names[tier]}_{what}"] += moved

    # -- the whole -------------------------------------------------------------------------

    def step(self) -> Sequence[Transfer]:
        for i, tier in enumerate(self.tiers):
            for inner in self._call(i, tier.step) or ():
                self._move(i, inner, MoveOrders(tier=i, inner=inner))
        moves, self._moves = self._moves, []
        return moves

    def has_pending_work(self) -> bool:
        return bool(self._moves) or any(
            self._call(i, tier.has_pending_work) for i, tier in enumerate(self.tiers)
        )

    def reset(self) -> Mapping[str, int]:
        dropped: dict[str, int] = {}
        for i, tier in enumerate(self.tiers):
            dropped |= self._call(i, tier.reset) or {}
        return dropped

    def take_events(self) -> Sequence[KVEvent]:
        return [
            event
            for i, tier in enumerate(self.tiers)
            for event in self._call(i, tier.take_events) or ()
        ]

    def collect_stats(self) -> Mapping[str, float]:
        """Sums of what a backend must report; the rest per tier, after its name and ``_``.

        Each tier has also ``loaded`` and ``stored`` chunks, and the ``errors`` that it raised.
        """
        figures: dict[str, float] = dict.fromkeys(_ADDED, 0)
        for i, (name, tier) in enumerate(zip(self.names, self.tiers, strict=True)):
            its = dict(self._call(i, tier.collect_stats) or {})
            for figure in _ADDED:
                figures[figure] += its.pop(figure, 0)
            if name:
                moved = {what: self._moved[f"{name}_{what}"] for what in ("loaded", "stored")}
                its |= {"errors": self._guards[i].errors, **moved}
            figures |= {f"{name}_{figure}" if name else figure: its[figure] for figure in its}
        return figures

    def close(self, deadline: float) -> None:
        ends = time.monotonic() + deadline
        for i, tier in enumerate(self.tiers):
            self._call(i, tier.close, max(0.0, ends - time.monotonic()))
