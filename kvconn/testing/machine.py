"""Random interleavings of everything an engine does, compared with the model after each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvconn.identity import content_key
from kvconn.testing.model import Lease, Model
from kvconn.testing.rig import NUM_CHUNKS, PATIENCE_S, Rig
from kvconn.types import ABSENT, Request, Transfer, TransferKind

if TYPE_CHECKING:
    from kvconn.identity import Key

__all__ = ["EngineMachine", "runs_of"]

REQUESTS = [f"request-{number}" for number in range(4)]
LENGTH = 4
"""Chunks of one prompt; the engine's pages are cut into regions of as many."""
PROMPTS = [[content_key("machine", number, i) for i in range(LENGTH)] for number in range(4)]
# Two that share their beginning, as conversations do.
PROMPTS += [[*PROMPTS[0][:2], *(content_key("machine", "branch", i) for i in range(2))]]

requests = st.sampled_from(REQUESTS)
prompts = st.sampled_from(PROMPTS)
lengths = st.integers(1, LENGTH)
masks = st.one_of(
    st.just([True] * LENGTH), st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH)
)


class EngineMachine(RuleBasedStateMachine):
    """One engine over one backend; ``open_rig`` opens it, again after a restart.

    No rule has a precondition: what a backend answers may depend on its threads, and what is drawn
    must not, or hypothesis could not run the same again.
    """

    def __init__(self, open_rig: Callable[[], Rig], able: set[str]) -> None:
        super().__init__()
        self.open_rig, self.able = open_rig, able
        self.rig = open_rig()
        self.model = Model(one_tier="one_tier" in able)
        self.flags: dict[str, bool] = dict.fromkeys(REQUESTS, False)
        self.regions = list(range(0, NUM_CHUNKS, LENGTH))
        self.at: dict[int, tuple[int, list[list[int]]]] = {}
        """By transfer, where its pages begin, and its rows."""
        self.told_all = {"index", "one_tier"} <= able
        """Whether the backend's events say exactly what it holds."""

    def request(self, name: str) -> Request:
        """The request as it is now."""
        self.model.alive.add(name)
        return Request(name, skip_reading_prefix_cache=self.flags[name])

    # -- reading -----------------------------------------------------------------------------

    @rule(name=requests, keys=prompts, count=lengths, start=st.integers(0, 1))
    def lookup(self, name: str, keys: list[Key], count: int, start: int) -> None:
        """A request asks what it may load."""
        keys = keys[start : start + count] or keys
        found = self._ask(name, keys)
        self.model.leases.pop(name, None)
        if self.flags[name]:
            assert found == 0, "a request that must not read was given hits"
            return
        most, said = self.model.most(name, keys), self.model.said(name, keys)
        assert found <= most, f"{found} hits where at most {most} chunks can be there"
        if self.told_all and not self._holds_back():
            assert found == said, f"{found} hits where its events say {said}"
        if found:
            self.model.leases[name] = Lease(keys[:found])

    def _ask(self, name: str, keys: list[Key]) -> int:
        ends = time.monotonic() + PATIENCE_S
        while True:
            self._listen()
            found = self.rig.scheduler.lookup(self.request(name), list(keys))
            if found is not None:
                return int(found)
            assert time.monotonic() < ends, "a lookup is answered PENDING for ever"
            self.rig.step()
            time.sleep(0.001)

    def _holds_back(self) -> bool:
        """A circuit is open: everything may be a miss for a while."""
        figures = self.rig.figures()
        return bool(figures.get("reads") or figures.get("writes") or figures.get("recovering"))

    @rule(name=requests, count=lengths, partial=st.booleans())
    def load(self, name: str, count: int, partial: bool) -> None:
        """A request loads the beginning of what it was told."""
        if not self.regions:
            return
        lease = self.model.leases.pop(name, None)
        if lease is None or self.flags[name]:
            return
        wanted = lease.keys[:count]
        transfer = self.rig.scheduler.prepare_load(self.request(name), list(wanted))
        self._listen()
        self.model.planned(name, wanted, transfer)
        if lease.sure and "pinned" in self.able:
            assert transfer is not None, "leased hits cannot be loaded"
            assert transfer.keys == tuple(wanted), "only a part of the leased hits can be loaded"
        if transfer is None:
            return
        may = self.model.may
        assert all(key in may for key in transfer.keys) or not lease.sure, "it loads what is gone"
        self._send(transfer, partial=partial)

    @rule(name=requests, keys=prompts)
    def load_without_a_lookup(self, name: str, keys: list[Key]) -> None:
        """An engine may ask at once; a backend may know an answer, and it is a true one."""
        if name in self.model.leases or not self.regions:
            return
        most = self.model.most(name, keys)
        transfer = self.rig.scheduler.prepare_load(self.request(name), list(keys))
        if not self.flags[name]:
            self.model.planned(name, keys, transfer)
        if transfer is None:
            return
        assert not self.flags[name], "a request that must not read was given a load"
        assert len(transfer.keys) <= most, "it loads what is gone"
        self._send(transfer)

    @rule(name=requests)
    def release(self, name: str) -> None:
        """A request gives its lease up."""
        self.rig.scheduler.release(self.request(name))
        self.model.leases.pop(name, None)

    @rule(name=requests)
    def flip_the_skip(self, name: str) -> None:
        """The same request again, with the other flag."""
        self.flags[name] = not self.flags[name]
        self.rig.scheduler.touch(self.request(name), PROMPTS[0][:1])
        if self.flags[name]:
            self.model.leases.pop(name, None)

    # -- writing -----------------------------------------------------------------------------

    @rule(name=requests, keys=prompts, count=lengths)
    def store(self, name: str, keys: list[Key], count: int) -> None:
        """A request offers what it computed."""
        if not self.regions:
            return
        offered = keys[:count]
        plan = self.rig.scheduler.prepare_store(self.request(name), list(offered))
        self._listen()
        assert set(plan.accepted) <= set(offered)
        if self.told_all:
            held = set().union(*self.model.told.values())
            assert not held.intersection(plan.accepted), "it stores again what it says it holds"
        if plan.transfer is None:
            assert not plan.evicted, "it evicted for a store that it declined"
            return
        if self.told_all:
            leased = {
                key for lease in self.model.leases.values() if lease.sure for key in lease.keys
            }
            assert "pinned" not in self.able or not leased.intersection(plan.evicted), (
                "it evicted what a request has leased"
            )
        self.model.begun(plan.transfer, plan)
        self._send(plan.transfer)

    @rule(name=requests, keys=prompts)
    def touch(self, name: str, keys: list[Key]) -> None:
        """Changes nothing that can be seen at once."""
        self.rig.scheduler.touch(self.request(name), list(keys))

    # -- transfers ---------------------------------------------------------------------------

    def _send(self, transfer: Transfer, *, partial: bool = False) -> None:
        region = self.regions.pop()
        if transfer.kind is TransferKind.STORE:
            rows = self.rig.compute(transfer.keys, at=region)
        else:
            self.model.begun(transfer)
            rows = self.rig.rows(len(transfer.keys), at=region)
            self._blank(region)
            if partial:
                rows[0][0] = ABSENT
        self.at[transfer.id] = region, rows
        self.rig.submit(transfer, rows)

    def _blank(self, region: int) -> None:
        ids = [block for row in self.rig.rows(LENGTH, at=region) for block in row]
        for pages in self.rig.pages:
            for layer in pages.values():
                layer[ids] = 0

    @rule(pick=st.integers(0, 5), mask=masks)
    def complete(self, pick: int, mask: list[bool]) -> None:
        """Any transfer ends, and for some of its keys another rank says no."""
        flights = list(self.model.flights.values())
        if not flights:
            return
        transfer = flights[pick % len(flights)].transfer
        verdicts = [
            good and other for good, other in zip(self._moved(transfer), mask, strict=False)
        ]
        region, rows = self.at.pop(transfer.id)
        if transfer.kind is TransferKind.LOAD:
            self._check(transfer, rows, verdicts)
        self.rig.scheduler.complete_transfer(transfer, verdicts)
        self._listen()
        if transfer.kind is TransferKind.LOAD:
            self.model.loaded(transfer, verdicts)
        else:
            self.model.stored(transfer, verdicts)
        self._blank(region)
        self.regions.append(region)

    def _moved(self, transfer: Transfer) -> list[bool]:
        verdicts = self.rig.moved(transfer)
        if "pinned" in self.able:
            assert all(verdicts), "a transfer failed though nothing went wrong"
        return verdicts

    def _check(self, transfer: Transfer, rows: list[list[int]], verdicts: list[bool]) -> None:
        for key, row, good in zip(transfer.keys, rows, verdicts, strict=True):
            if not good:
                continue
            if row[0] != ABSENT:
                assert self.rig.holds([key], [row]), "a load left wrong bytes in the pages"
                continue
            for rank, pages in enumerate(self.rig.pages):
                for layer, page in zip(pages.values(), self.rig.content(key, rank), strict=True):
                    assert bool((layer[row[1]] == page[1]).all()), "a load left wrong bytes"
                    assert not layer[row[1] - 1].any(), "a load wrote a block that was absent"

    # -- the whole ---------------------------------------------------------------------------

    @rule(name=requests)
    def finish(self, name: str) -> None:
        """A request ends or is aborted, whatever it has on its way."""
        self.rig.scheduler.request_finished(self.request(name))
        self.model.ended(name)
        self.flags[name] = False

    @rule()
    def step(self) -> None:
        """An engine's step."""
        self.rig.step()
        self._listen()

    @rule()
    def reset(self) -> None:
        """Everything is forgotten; room comes back once it is."""
        self.rig.scheduler.reset()
        self.model.reset()
        self._listen()

    @rule()
    def restart(self) -> None:
        """The engine's process ends, and another one begins."""
        persistent = "persistent" in self.able
        remains = persistent or "one_tier" not in self.able  # a tier behind may be persistent
        self.rig.sweep()
        self._listen()
        held = set().union(*self.model.told.values()) if self.told_all else set()
        sure = persistent and not self.model.flights and not self._holds_back()
        self.rig.close()
        self.rig = self.open_rig()
        self.model.restarted(persistent=remains)
        self.at.clear()
        self.regions = list(range(0, NUM_CHUNKS, LENGTH))
        self.flags = dict.fromkeys(REQUESTS, False)
        lost = [key for key in held if not self.rig.hits([key])]
        assert not (sure and lost), f"{len(lost)} of {len(held)} chunks are gone after a restart"
        self._listen()
        self.told_all = self.told_all and not persistent
        # What is found again is no news: from here on, its events say a part of the truth.

    def _listen(self) -> None:
        self.model.heard(self.rig.scheduler.take_events())

    @invariant()
    def its_figures_are_within_bounds(self) -> None:
        """Capacity, and what is on its way."""
        if not {"one_tier", "keeps"} <= self.able:
            return
        figures = self.rig.figures()
        assert figures["entries"] + figures["reservations"] <= figures["capacity"], (
            "entries and stores in flight exceed the capacity"
        )
        assert figures["leases"] <= len(REQUESTS), "more leases than there are requests"
        assert figures["backend_errors"] == 0, "a hook of the backend raised"
        if "index" in self.able:
            moving = self.model.moving(TransferKind.STORE)
            assert figures["reservations"] == moving, "reservations are not the stores in flight"

    def teardown(self) -> None:
        """Everything ends; then nothing is held."""
        for flight in list(self.model.flights.values()):
            self.rig.scheduler.complete_transfer(flight.transfer, self._moved(flight.transfer))
        for name in REQUESTS:
            self.rig.scheduler.request_finished(self.request(name))
        self.rig.sweep()
        held = self.rig.held()
        left = self.rig.close()
        assert not held, f"at rest, yet still held: {held}"
        assert not left, f"transfers that nobody completed: {left}"


def runs_of(machine: Callable[[], EngineMachine], *, shrink: bool, **options: Any) -> None:  # noqa: ANN401 - hypothesis's
    """Run it; raises with a run that goes wrong, a short one if ``shrink``, which takes time."""
    phases = [Phase.generate, *([Phase.shrink] if shrink else [])]
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type] # anything that makes one will do
        settings=settings(
            deadline=None,
            database=None,
            stateful_step_count=50,
            suppress_health_check=list(HealthCheck),
            phases=phases,
            report_multiple_bugs=False,
            **options,
        ),
    )
