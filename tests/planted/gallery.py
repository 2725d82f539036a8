"""Backends with one planted bug each, and the tests of the kit that must turn red over them.

A bug is in a hook of a backend, in its worker, in a store, in its options, or in kvconn itself.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from healthy import MemoryBackend, MemoryConfig, MemoryWorker
from pydantic import ConfigDict

from kvconn.backend import PluginConfig
from kvconn.blockstore import BlockStore, BlockStoreBackend, Capabilities, StoreConfig
from kvconn.identity import Shard
from kvconn.scheduler import SchedulerConnector
from kvconn.types import ABSENT, BlockState, Permissions, StorePlan, TransferKind
from kvconn.worker import WorkerConnector

HIT, MISS = bytes([BlockState.HIT]), bytes([BlockState.MISS])
PENDING = bytes([BlockState.PENDING])


@dataclass(frozen=True)
class Bug:
    """A planted bug."""

    says: str
    caught_by: tuple[str, ...]
    backend: type
    patches: dict[str, Any] = field(default_factory=dict)
    """What of kvconn itself is replaced while it is planted, by its dotted name."""

    def make(self, place: Path, capacity: int) -> Any:
        """One more instance."""
        options = {"capacity": capacity}
        if "path" in self.backend.Config.model_fields:
            options["path"] = place
        return self.backend(self.backend.Config(**options))


BUGS: list[Bug] = []


IMPATIENT = {
    "kvconn.testing.rig.PATIENCE_S": 1.0,
    "kvconn.testing.suite.failures.PATIENCE_S": 1.0,
}
"""Where a bug is that something never happens."""


def bug(says: str, *caught_by: str, never: bool = False) -> Callable[[type], type]:
    """Plant the decorated backend, or store, or worker."""

    def plant(kind: type) -> type:
        if issubclass(kind, BlockStore):
            backend = type(f"{kind.__name__}Backend", (FileBackend,), {"Store": kind})
        elif issubclass(kind, MemoryWorker):
            backend = type(f"{kind.__name__}Backend", (MemoryBackend,), {"Worker": kind})
        else:
            backend = kind
        backend.__module__ = __name__
        globals()[backend.__name__] = backend
        BUGS.append(Bug(says, caught_by, backend, IMPATIENT if never else {}))
        return kind

    return plant


def core_bug(says: str, *caught_by: str, patches: dict[str, Any], store: bool = False) -> None:
    """Plant a bug in kvconn itself, under an honest backend."""
    BUGS.append(Bug(says, caught_by, FileBackend if store else MemoryBackend, patches))


# -- an honest store of files, which other processes can use, too --------------------------------


class FileConfig(StoreConfig):
    path: Path


class FileStore(BlockStore):
    capabilities = Capabilities(persistent=True)

    def open(self, namespace):
        self.space = namespace.digest

    def path(self, name: bytes) -> Path:
        return self.config.path / f"{name.hex()}.object"

    def exists(self, ids):
        return [self.path(name).exists() for name in ids]

    def get(self, ids, buffers):
        return [self.read(name, buffer) for name, buffer in zip(ids, buffers, strict=True)]

    def read(self, name, buffer):
        try:
            held = self.path(name).read_bytes()
        except FileNotFoundError:
            return False
        if len(held) != len(buffer):
            return False
        buffer[:] = held
        return True

    def put(self, ids, buffers):
        for name, buffer in zip(ids, buffers, strict=True):
            self.write(name, bytes(buffer))
        return [True] * len(ids)

    def write(self, name, content):
        temporary = self.config.path / f"{uuid.uuid4().hex}.tmp"
        temporary.write_bytes(content)
        temporary.rename(self.path(name))

    def delete(self, ids):
        return [self.remove(name) for name in ids]

    def remove(self, name):
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            return False
        return True

    def scan(self):
        paths = sorted(self.config.path.glob("*.object"), key=lambda path: path.stat().st_mtime_ns)
        names = [bytes.fromhex(path.stem) for path in paths]
        return [name for name in names if name[:16] == self.space]


class FileBackend(BlockStoreBackend):
    contract_version = 1
    tier = "files"
    Store = FileStore
    Config = FileConfig


# -- hooks that are wrong -------------------------------------------------------------------------


@bug(
    "prefetches when a request touches, also for one that must not read",
    "test_R1_a_skipping_request_leases_nothing_on_any_tier",
)
class Prefetches(MemoryBackend):
    def touch(self, request, keys):
        super().touch(request, keys)
        self._index.lookup(request.id, keys)


@bug(
    "does not hear what a skipping request touches",
    "test_R1_what_a_skipping_request_touches_is_spared",
)
class DeafToTouch(MemoryBackend):
    def touch(self, request, keys):
        if not request.skip_reading_prefix_cache:
            super().touch(request, keys)


@bug(
    "forgets a lease when a request is aborted",
    "test_L1_a_lease_ends_with_its_request_or_when_it_is_given_up",
    "test_L1_what_was_leased_can_be_evicted_after_its_request_was_aborted",
)
class ForgetsOnAbort(MemoryBackend):
    def request_finished(self, request):
        self._touched.discard(request.id)


@bug(
    "keeps a lease that is released",
    "test_R2_a_lease_is_released_before_the_skip_takes_effect",
    "test_R2_the_lease_goes_whatever_the_request_does_first_with_its_new_flag",
)
class KeepsReleased(MemoryBackend):
    def release(self, request):
        pass

    def request_finished(self, request):
        self._index.release(request.id)


@bug(
    "evicts leased blocks",
    "test_L1_a_leased_hit_is_not_evicted_while_the_cache_is_filled",
)
class EvictsLeased(MemoryBackend):
    def prepare_store(self, request, keys):
        for owner in list(self._index._leases):
            self._index.release(owner)
        return super().prepare_store(request, keys)


@bug(
    "drops everybody's lease when one request ends",
    "test_L1_two_requests_lease_the_same_blocks_and_the_first_to_end_frees_none",
)
class DropsOthers(MemoryBackend):
    def request_finished(self, request):
        super().request_finished(request)
        for owner in list(self._index._leases):
            self._index.release(owner)


@bug("leases never run out", "test_L1_a_lease_runs_out")
class NeverExpires(MemoryBackend):
    def step(self):
        return None


@bug(
    "the next lookup adds to the lease instead of replacing it",
    "test_L1_the_next_lookup_replaces_the_lease",
)
class AddsLeases(MemoryBackend):
    times = 0

    def lookup(self, request, keys):
        self.times += 1
        self._index.lookup(f"{request.id} {self.times}", keys)
        return super().lookup(request, keys)

    def release(self, request):
        super().release(request)
        for owner in [o for o in self._index._leases if o.startswith(f"{request.id} ")]:
            self._index.release(owner)


@bug(
    "keeps a lease when the next lookup finds nothing",
    "test_L1_a_lookup_that_misses_replaces_the_lease_too",
)
class KeepsAfterAMiss(KeepsReleased):
    def lookup(self, request, keys):
        held = [self._index.has(key) for key in keys]
        return super().lookup(request, keys) if any(held) else MISS * len(keys)


@bug(
    "takes a new lease each time it is asked",
    "test_L1_asking_again_in_every_step_holds_one_lease",
    "test_F4_asking_again_in_every_step_makes_nothing_grow",
)
class GrowsLeases(AddsLeases):
    pass


@bug(
    "a load keeps the lease of what it does not name",
    "test_L1_a_load_releases_what_it_does_not_name",
)
class KeepsTheRest(MemoryBackend):
    def prepare_load(self, request, keys):
        transfer = super().prepare_load(request, keys)
        self._index.lookup(request.id, getattr(self, "asked", {}).get(request.id, []))
        return transfer

    def lookup(self, request, keys):
        self.asked = {**getattr(self, "asked", {}), request.id: list(keys)}
        return super().lookup(request, keys)


@bug(
    "never evicts",
    "test_L1_what_is_not_leased_may_be_evicted",
    "test_L6_what_was_evicted_can_be_stored_again",
)
class NeverEvicts(MemoryBackend):
    def _at_most(self):
        return self._index.room


@bug(
    "serves a block before its store is complete",
    "test_L3_a_store_cannot_be_found_before_it_is_complete",
)
class ServesEarly(MemoryBackend):
    def lookup(self, request, keys):
        known = {*self._index._writing}
        found = 0
        while found < len(keys) and (keys[found] in known or self._index.has(keys[found])):
            found += 1
        super().lookup(request, keys)
        return HIT * found + MISS * (len(keys) - found)


@bug(
    "stores a key again that is being stored",
    "test_L3_a_key_that_is_being_stored_is_not_stored_twice",
)
class StoresTwice(MemoryBackend):
    def prepare_store(self, request, keys):
        self._index._abandoned.update(self._index._writing.values())
        self._index._writing.clear()
        return super().prepare_store(request, keys)


@bug("stores again what is there", "test_L3_a_key_that_is_there_is_not_stored_again")
class StoresAgain(MemoryBackend):
    def prepare_store(self, request, keys):
        self._index.forget(keys)
        return super().prepare_store(request, keys)


@bug(
    "takes a failed store for stored",
    "test_L3_a_failed_store_leaves_no_entry_and_no_room_taken",
    "test_L3_a_store_that_failed_on_another_rank_is_found_on_no_tier",
    "test_L3_half_a_failed_store_leaves_the_good_half",
    "test_F1_a_key_without_a_verdict_has_failed",
)
class TrustsStores(MemoryBackend):
    def complete_transfer(self, transfer, verdicts):
        if transfer.kind is TransferKind.STORE:
            verdicts = [True] * len(verdicts)
        super().complete_transfer(transfer, verdicts)


@bug(
    "counts a failed load as loaded",
    "test_F1_a_failed_key_is_a_miss_to_everyone_at_once",
    "test_F1_another_lease_does_not_keep_a_failed_key_loadable",
    "test_F1_a_failed_key_is_not_offered_to_that_request_again_though_stored_anew",
)
class TrustsLoads(MemoryBackend):
    def complete_transfer(self, transfer, verdicts):
        if transfer.kind is TransferKind.LOAD:
            verdicts = [True] * len(verdicts)
        super().complete_transfer(transfer, verdicts)


@bug("one failed key fails its whole store", "test_L3_half_a_failed_store_leaves_the_good_half")
class AllOrNothing(MemoryBackend):
    def complete_transfer(self, transfer, verdicts):
        super().complete_transfer(transfer, [all(verdicts)] * len(verdicts))


@bug(
    "drops a key's new copy when an old load of it fails",
    "test_F1_two_requests_that_fail_on_one_key_leave_its_new_copy_alone",
)
class DropsNewCopies(MemoryBackend):
    def complete_transfer(self, transfer, verdicts):
        super().complete_transfer(transfer, verdicts)
        if transfer.kind is TransferKind.LOAD:
            bad = [k for k, good in zip(transfer.keys, verdicts, strict=True) if not good]
            self._index.forget(bad)


@bug("tells of what was never stored", "test_L3_events_say_only_what_can_be_found")
class TellsLies(MemoryBackend):
    def prepare_store(self, request, keys):
        self._events.stored(keys)
        return super().prepare_store(request, keys)


@bug(
    "leaks the room of a store whose request is gone",
    "test_L4_a_request_may_end_while_its_store_runs",
    "test_L2_random_runs_agree_with_the_model_and_leave_nothing_held",
)
class LeaksStores(MemoryBackend):
    def request_finished(self, request):
        super().request_finished(request)
        self.gone = {*getattr(self, "gone", ()), request.id}

    def complete_transfer(self, transfer, verdicts):
        if transfer.request_id not in getattr(self, "gone", ()):
            super().complete_transfer(transfer, verdicts)


@bug(
    "leaks a load when its request is preempted",
    "test_L4_a_request_may_end_while_its_load_runs",
    "test_L4_it_may_come_back_and_load_again_while_its_load_runs",
)
class LeaksLoads(LeaksStores):
    def complete_transfer(self, transfer, verdicts):
        if transfer.kind is TransferKind.STORE:
            MemoryBackend.complete_transfer(self, transfer, verdicts)
        else:
            super().complete_transfer(transfer, verdicts)


@bug(
    "forgets which load it pinned for once the request is gone",
    "test_L4_blocks_under_a_running_load_are_not_evicted",
    "test_L4_no_room_under_a_running_load_is_given_to_a_store",
)
class UnpinsLoads(MemoryBackend):
    def prepare_load(self, request, keys):
        transfer = super().prepare_load(request, keys)
        self.pinned_for = {**getattr(self, "pinned_for", {}), request.id: transfer}
        return transfer

    def request_finished(self, request):
        transfer = getattr(self, "pinned_for", {}).pop(request.id, None)
        if transfer is not None:
            self._index._unpin(transfer.locations)
        super().request_finished(request)


@bug(
    "refuses a request that comes back while its store runs",
    "test_L4_it_may_be_preempted_between_lookup_and_load_and_store_again",
)
class RefusesTheReturned(MemoryBackend):
    def lookup(self, request, keys):
        seen = self.__dict__.setdefault("seen", set())
        if request.id in seen:
            return MISS * len(keys)
        seen.add(request.id)
        return super().lookup(request, keys)


@bug(
    "gives room under a running store away when its request ends",
    "test_L4_no_room_under_a_running_store_is_given_to_another",
)
class FreesStores(MemoryBackend):
    def request_finished(self, request):
        super().request_finished(request)
        index = self._index
        index._free += index._writing.values()
        index._writing.clear()


@bug(
    "completes transfers in the order in which it made them",
    "test_L4_transfers_may_end_in_any_order",
)
class InOrder(MemoryBackend):
    def prepare_store(self, request, keys):
        plan = super().prepare_store(request, keys)
        if plan is not None:
            self.__dict__.setdefault("order", []).append(plan.transfer.id)
        return plan

    def complete_transfer(self, transfer, verdicts):
        if transfer.kind is TransferKind.STORE:
            first = self.order.pop(0)
            verdicts = [good and first == transfer.id for good in verdicts]
        super().complete_transfer(transfer, verdicts)


@bug(
    "does not empty itself",
    "test_L5_reset_empties_and_says_what_it_did",
    "test_L5_a_leased_block_is_a_miss_after_reset_and_its_room_comes_back",
    "test_L5_nothing_stale_is_loaded_when_keys_are_stored_anew_after_a_reset",
)
class ResetsNothing(MemoryBackend):
    def reset(self):
        return {self.tier: len(self._index)}


@bug(
    "a store that is on its way survives a reset",
    "test_L5_a_store_in_flight_during_reset_comes_to_nothing",
)
class SparesFlights(MemoryBackend):
    def reset(self):
        writing = dict(self._index._writing)
        dropped = super().reset()
        self._index._writing.update(writing)
        self._index._abandoned -= set(writing.values())
        return dropped


@bug(
    "an old store takes the new copy of its key away when it ends",
    "test_L5_what_is_stored_after_reset_stays_though_an_older_store_ends_later",
)
class OldTakesNew(MemoryBackend):
    era = 0

    def reset(self):
        self.era += 1
        return super().reset()

    def prepare_store(self, request, keys):
        plan = super().prepare_store(request, keys)
        if plan is not None:
            self.__dict__.setdefault("eras", {})[plan.transfer.id] = self.era
        return plan

    def complete_transfer(self, transfer, verdicts):
        super().complete_transfer(transfer, verdicts)
        if self.__dict__.get("eras", {}).get(transfer.id, self.era) != self.era:
            self._index.forget(transfer.keys)


@bug(
    "stores in flight do not count against the capacity",
    "test_L6_stores_in_flight_count_against_the_capacity",
    "test_L6_more_than_fits_is_never_found",
)
class TwiceAsMuch(MemoryBackend):
    def chunks_that_fit(self, geometry):
        return 2 * super().chunks_that_fit(geometry)

    def collect_stats(self):
        figures = super().collect_stats()
        return {**figures, "capacity": figures["capacity"] // 2}


@bug(
    "evicts although what is offered is declined",
    "test_L6_a_store_is_declined_while_everything_is_held",
)
class EvictsForNothing(MemoryBackend):
    def prepare_store(self, request, keys):
        plan = super().prepare_store(request, keys)
        return plan or StorePlan(evicted=[b"whatever is here"])


@bug(
    "takes the trailing keys when room is short",
    "test_L6_what_does_not_fit_is_declined_and_the_leading_keys_are_taken",
)
class TakesTheEnd(MemoryBackend):
    def prepare_store(self, request, keys):
        return super().prepare_store(request, keys[-self._index.capacity :])


@bug("evicts more than it needs", "test_L6_only_as_much_is_evicted_as_is_needed_and_it_is_said")
class EvictsTooMuch(MemoryBackend):
    def prepare_store(self, request, keys):
        if self._index.room < len(keys):
            extra = self._index.make_room(len(keys) + 2)
            plan = super().prepare_store(request, keys)
            return StorePlan(plan.accepted, plan.transfer, extra)
        return super().prepare_store(request, keys)


@bug(
    "lets a transfer outlast its request's deadline",
    "test_L8_a_transfer_lasts_no_longer_than_its_request_may",
)
class IgnoresDeadlines(MemoryBackend):
    def _transfer(self, kind, request, keys, entries, evicted=()):
        request = type(request)(request.id)
        return super()._transfer(kind, request, keys, entries, evicted)


@bug(
    "changes the list of keys that it is shown",
    "test_F2_hooks_leave_the_keys_that_they_are_shown_as_they_are",
)
class ChangesArguments(MemoryBackend):
    def prepare_store(self, request, keys):
        plan = super().prepare_store(request, keys)
        keys.sort()
        return plan


@bug(
    "answers for fewer keys than it was asked about",
    "test_L2_the_connector_is_used_without_an_error_of_the_backend",
)
class AnswersShort(MemoryBackend):
    def lookup(self, request, keys):
        return super().lookup(request, keys)[:-1]


@bug(
    "raises when a request is released that it does not know",
    "test_L2_releasing_twice_or_unknown_requests_is_harmless",
)
class RaisesOnRelease(MemoryBackend):
    def request_finished(self, request):
        self._touched.remove(request.id)
        super().request_finished(request)


@bug("holds something for every request it ever saw", "test_L2_at_rest_nothing_is_held")
class NeverAtRest(MemoryBackend):
    stores = 0

    def prepare_store(self, request, keys):
        self.stores += 1
        return super().prepare_store(request, keys)

    def collect_stats(self):
        return {**super().collect_stats(), "reservations": self.stores}


@bug("sleeps on the scheduler's thread", "test_F4_scheduler_side_calls_do_no_io_and_do_not_sleep")
class Sleeps(MemoryBackend):
    def lookup(self, request, keys):
        time.sleep(0.001)
        return super().lookup(request, keys)


@bug(
    "opens a socket on the scheduler's thread",
    "test_F4_scheduler_side_calls_do_no_io_and_do_not_sleep",
)
class Connects(MemoryBackend):
    def touch(self, request, keys):
        socket.socket().close()
        super().touch(request, keys)


@bug("raises from close", "test_F9_close_may_be_called_twice_and_says_that_nothing_was_left")
class RaisesFromClose(MemoryBackend):
    def close(self, deadline):
        raise OSError


@bug(
    "does not return from close while transfers run",
    "test_F9_close_returns_in_time_with_transfers_on_their_way",
)
class WaitsInClose(MemoryWorker):
    def close(self, deadline):
        time.sleep(min(deadline, 1.0) + 2.5)
        return []


@bug("leaves a thread running", "test_F9_nothing_is_left_running_after_close", never=True)
class LeavesAThread(MemoryBackend):
    def open_scheduler(self, geometry, namespace):
        super().open_scheduler(geometry, namespace)
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()


# -- workers that are wrong -----------------------------------------------------------------------


@bug("says twice how a transfer ended", "test_L2_a_worker_says_once_how_a_transfer_ended")
class CompletesTwice(MemoryWorker):
    def poll(self):
        ended = super().poll()
        before, self.before = getattr(self, "before", []), ended
        return [*before, *ended]


@bug("never says how a load ended", "test_L4_it_may_come_back_and_load_again_while_its_load_runs")
class SwallowsOne(MemoryWorker):
    def poll(self):
        ended = super().poll()
        return ended[:1]


@bug("writes a block that is absent", "test_L7_a_load_leaves_the_blocks_alone_that_the_engine_has")
class WritesAbsent(MemoryWorker):
    def submit(self, transfer, blocks):
        whole = [[max(0, block) for block in row] for row in blocks]
        super().submit(transfer, whole)


@bug(
    "is off by one page",
    "test_L8_a_load_writes_the_pages_it_was_given_and_no_others",
    "test_L4_a_request_may_end_while_its_load_runs",
)
class OffByOne(MemoryWorker):
    def submit(self, transfer, blocks):
        if transfer.kind is TransferKind.LOAD:
            blocks = [[block if block == ABSENT else block + 1 for block in row] for row in blocks]
        super().submit(transfer, blocks)


@bug("takes pages for neighbours", "test_L8_pages_that_lie_in_any_order_are_found_again")
class TakesNeighbours(MemoryWorker):
    def submit(self, transfer, blocks):
        first = blocks[0][0] if blocks and blocks[0] else 0
        if first != ABSENT and transfer.kind is TransferKind.STORE:
            blocks = [[first + 2 * i, first + 2 * i + 1] for i in range(len(blocks))]
        super().submit(transfer, blocks)


@bug(
    "copies pages after they were flushed",
    "test_L4_pages_may_be_used_again_once_a_store_is_flushed",
)
class CopiesLate(MemoryWorker):
    def submit(self, transfer, blocks):
        self.__dict__.setdefault("late", []).append((transfer, blocks))

    def poll(self):
        for transfer, blocks in self.__dict__.pop("late", []):
            super().submit(transfer, blocks)
        return super().poll()


@bug("zeroes the pages that it stored", "test_L8_a_store_changes_no_page")
class ZeroesPages(MemoryWorker):
    def submit(self, transfer, blocks):
        super().submit(transfer, blocks)
        if transfer.kind is TransferKind.STORE:
            slots = self.copier._pool.tensor
            kept = slots.clone()
            slots.zero_()
            self.copier.scatter(blocks, transfer.locations).wait()
            slots.copy_(kept)


@bug(
    "loses the last chunk of a store",
    "test_L3_every_chunk_of_a_store_can_be_loaded_the_last_one_too",
)
class LosesTheLast(MemoryWorker):
    def submit(self, transfer, blocks):
        if transfer.kind is TransferKind.LOAD:
            super().submit(transfer, blocks)
            return
        self.copier.gather(blocks[:-1], transfer.locations[:-1]).wait()
        self.ended.append((transfer.id, [True] * len(transfer.keys)))


@bug("copies every page twice", "test_F4_a_worker_copies_each_page_once")
class CopiesTwice(MemoryWorker):
    def submit(self, transfer, blocks):
        super().submit(transfer, blocks)
        super().submit(transfer, blocks)
        self.ended.pop()


@bug(
    "swallows a hang: waits without a deadline",
    "test_F3_waiting_for_a_transfer_ends_at_the_deadline_or_before",
)
class WaitsForEver(MemoryWorker):
    def wait(self, transfer_ids, deadline):
        if 10**12 in list(transfer_ids):
            time.sleep(2.5)


@bug(
    "leaks the slots of rows that do not fit",
    "test_F2_rows_that_do_not_fit_fail_the_transfer_and_leak_no_slot",
)
class LeaksSlots(MemoryBackend):
    def complete_transfer(self, transfer, verdicts):
        if any(verdicts):
            super().complete_transfer(transfer, verdicts)


@bug("stops working after failures", "test_F2_after_many_failed_transfers_the_next_operations_work")
class GivesUp(MemoryBackend):
    failures = 0

    def complete_transfer(self, transfer, verdicts):
        self.failures += not any(verdicts)
        super().complete_transfer(transfer, verdicts)

    def prepare_store(self, request, keys):
        return None if self.failures > 5 else super().prepare_store(request, keys)


@bug(
    "forgets the remainder when a part of a hit is loaded",
    "test_L1_an_accepted_part_of_a_hit_is_leased_until_the_load",
)
class ForgetsParts(MemoryBackend):
    def prepare_load(self, request, keys):
        wanted = super().lookup(request, list(keys))
        transfer = super().prepare_load(request, keys)
        self._loading += bool(wanted) and len(keys) < 4
        return transfer


@bug(
    "loads no more than one chunk at a time",
    "test_L1_a_hit_can_be_loaded_or_its_loss_is_a_failed_key_and_nothing_worse",
)
class LoadsOne(MemoryBackend):
    def prepare_load(self, request, keys):
        return super().prepare_load(request, keys[:1])


# -- stores that are wrong ------------------------------------------------------------------------


@bug(
    "truncates names",
    "test_K1_a_key_that_differs_in_one_bit_is_another_key",
    "test_K1_objects_whose_names_differ_in_one_bit_are_kept_apart",
)
class Truncates(FileStore):
    def path(self, name):
        return super().path(name[:-1])

    def scan(self):
        return ()


@bug("takes names for text", "test_K1_keys_of_any_bytes_are_kept_apart")
class TakesText(FileStore):
    def path(self, name):
        return self.config.path / f"{name.strip(bytes(1) + b' ').hex()}.object"

    def scan(self):
        return ()


@bug(
    "drops the namespace from the name",
    "test_K2_two_namespaces_in_one_store_keep_their_own_bytes_under_equal_keys",
    "test_K2_a_scan_names_no_object_of_another_namespace",
)
class DropsNamespace(FileStore):
    def path(self, name):
        return super().path(name[16:])

    def scan(self):
        return [self.space + bytes.fromhex(p.stem) for p in self.config.path.glob("*.object")]


@bug(
    "drops the shard from the name",
    "test_K2_each_rank_gets_its_own_shard_back",
    "test_K2_chunks_of_another_number_of_shards_are_a_miss",
)
class DropsShard(FileStore):
    def path(self, name):
        return super().path(name[:18] + name[22:])

    def scan(self):
        for path in self.config.path.glob("*.object"):
            name = bytes.fromhex(path.stem)
            for shard in (b"\0\0\1\0", b"\0\0\2\0", b"\1\0\2\0"):
                yield name[:18] + shard + name[18:]


class OneStoresForAll(MemoryWorker):
    def submit(self, transfer, blocks):
        if transfer.kind is TransferKind.STORE and self.copier.replica:
            self.ended.append((transfer.id, [True] * len(transfer.keys)))
        else:
            super().submit(transfer, blocks)


@bug(
    "lets one worker store what each would need in memory of its own",
    "test_K2_workers_that_hold_the_same_shard_all_get_it_back",
)
class OneStoresIntoItself(MemoryBackend):
    Worker = OneStoresForAll

    def open_worker(self, pool, caches, namespace, shard):
        side = super().open_worker(pool, caches, namespace, shard)
        side.copier.replica = shard.replica
        return side


@bug(
    "stores what workers hold in common under a name for each of them",
    "test_K2_what_workers_hold_in_common_is_stored_as_one_shard",
)
class NameForEachReplica(FileBackend):
    def open_worker(self, pool, caches, namespace, shard):
        if shard.replicas > 1:
            shard = Shard(shard.replica, shard.replicas)
        return super().open_worker(pool, caches, namespace, shard)


@bug(
    "lists what is there to every namespace",
    "test_K2_chunks_of_another_namespace_are_a_miss",
    "test_K2_a_scan_names_no_object_of_another_namespace",
)
class ListsAll(FileStore):
    def scan(self):
        names = [bytes.fromhex(path.stem) for path in self.config.path.glob("*.object")]
        return [self.space + name[16:] for name in names]


@bug(
    "keeps the buffer instead of its bytes",
    "test_L8_a_store_keeps_no_buffer_after_the_call",
    "test_L8_what_is_stored_is_a_copy_and_not_the_engines_pages",
)
class KeepsBuffers(FileStore):
    held: ClassVar[dict] = {}

    def put(self, ids, buffers):
        super().put(ids, buffers)
        self.held.update(zip(ids, buffers, strict=True))
        return [True] * len(ids)

    def read(self, name, buffer):
        if name not in self.held:
            return super().read(name, buffer)
        buffer[:] = bytes(self.held[name])[: len(buffer)]
        return True


@bug(
    "uses Python's hash() in names",
    "test_F7_a_process_that_is_killed_leaves_nothing_that_loads_wrong",
)
class UsesHash(FileStore):
    def path(self, name):
        return self.config.path / f"{hash(name):x}-{name.hex()}.object"

    def scan(self):
        names = [bytes.fromhex(p.stem.partition("-")[2]) for p in self.config.path.glob("*.object")]
        return [name for name in names if name[:16] == self.space]


@bug(
    "shares one temporary name", "test_F8_threads_that_use_one_store_get_whole_objects_and_no_error"
)
class OneTemporary(FileStore):
    def write(self, name, content):
        temporary = self.config.path / "object.tmp"
        temporary.write_bytes(content)
        time.sleep(0.0005)
        temporary.rename(self.path(name))


@bug(
    "takes a lock of its own process for everybody's",
    "test_F8_processes_that_share_a_store_load_no_wrong_byte_and_meet_no_error",
)
class OwnProcessOnly(FileStore):
    def open(self, namespace):
        super().open(namespace)
        owner = self.config.path / "owner"
        if owner.exists() and owner.read_text() != str(os.getpid()):
            msg = "another process uses this store"
            raise OSError(msg)
        owner.write_text(str(os.getpid()))


@bug("writes in place", "test_F8_threads_that_use_one_store_get_whole_objects_and_no_error")
class InPlace(FileStore):
    def write(self, name, content):
        with self.path(name).open("r+b" if self.path(name).exists() else "wb") as file:
            for start in range(0, len(content), 1024):
                file.write(content[start : start + 1024])
                file.flush()
                time.sleep(0.0005)


@bug(
    "does not delete",
    "test_F2_a_deleted_object_is_gone_at_once_and_can_be_put_again",
    "test_L3_a_failed_store_leaves_no_object",
    "test_L6_a_store_holds_no_more_objects_than_fit",
    "test_L5_what_was_reset_does_not_come_back_when_it_is_opened_again",
    "test_L6_a_store_that_is_opened_smaller_than_it_was_shrinks_to_its_capacity",
    "test_L3_an_abandoned_store_is_not_found_by_the_next_process",
    "test_F7_a_scan_names_what_is_there_once_each_and_nothing_else",
)
class DoesNotDelete(FileStore):
    def remove(self, name):
        return self.path(name).exists()


@bug(
    "says that everything is there",
    "test_F2_what_is_not_there_is_said_not_to_be_and_nothing_is_raised",
)
class SaysYes(FileStore):
    def exists(self, ids):
        return [True] * len(ids)


@bug("does not replace what is there", "test_F2_an_object_that_is_put_again_is_replaced")
class KeepsTheFirst(FileStore):
    def write(self, name, content):
        if not self.path(name).exists():
            super().write(name, content)


@bug("cannot take an empty batch", "test_F2_nothing_is_an_empty_batch")
class NeedsOne(FileStore):
    def get(self, ids, buffers):
        len(ids) / len(buffers)
        return super().get(ids, buffers)


@bug("changes the buffers that it stores", "test_F2_arguments_are_left_as_they_are")
class ChangesBuffers(FileStore):
    def write(self, name, content):
        super().write(name, content)

    def put(self, ids, buffers):
        answer = super().put(ids, buffers)
        for buffer in buffers:
            buffer[0] = 0xAA
        return answer


@bug("gets an object of another size", "test_F5_an_object_of_another_size_is_not_got")
class AnySize(FileStore):
    def read(self, name, buffer):
        held = self.path(name).read_bytes()
        buffer[: len(held)] = held[: len(buffer)]
        return True


@bug(
    "keeps objects in the process",
    "test_K2_another_instance_finds_what_was_put",
    "test_F7_after_a_restart_what_was_complete_is_a_hit_and_loads_right",
    "test_F7_what_an_engine_left_without_closing_is_found",
    "test_K2_two_engines_with_equal_namespaces_share",
)
class InTheProcess(FileStore):
    def open(self, namespace):
        super().open(namespace)
        self.born = time.time_ns()

    def scan(self):
        return ()

    def exists(self, ids):
        return [
            self.path(name).exists() and self.path(name).stat().st_mtime_ns >= self.born
            for name in ids
        ]


@bug("raises when it is closed again", "test_F9_a_store_may_be_closed_twice")
class ClosesOnce(FileStore):
    closed = False

    def close(self):
        if self.closed:
            raise OSError
        self.closed = True


@bug("puts every object twice", "test_F4_one_object_is_put_once_and_got_once_in_batches")
class PutsTwiceBackend(FileBackend):
    def open_worker(self, pool, caches, namespace, shard):
        side = super().open_worker(pool, caches, namespace, shard)
        operations = side._operations
        put = operations.put
        operations.put = lambda *arguments: (put(*arguments), put(*arguments))[1]
        return side


@bug(
    "asks the store on the scheduler's thread", "test_F4_the_scheduler_never_calls_the_store_itself"
)
class AsksItself(FileBackend):
    def lookup(self, request, keys):
        self._operations.store.exists(self._ids_of(keys))
        return super().lookup(request, keys)


@bug(
    "keeps a false hit for ever",
    "test_F1_an_object_that_is_gone_is_a_failed_key_and_its_neighbours_are_loaded",
    "test_F5_an_object_that_changed_is_a_miss_and_is_removed",
)
class FalseHit(FileBackend):
    def complete_transfer(self, transfer, verdicts):
        super().complete_transfer(transfer, [True] * len(verdicts))


@bug(
    "answers PENDING for ever", "test_L3_a_store_cannot_be_found_before_it_is_complete", never=True
)
class PendingForEver(FileBackend):
    def lookup(self, request, keys):
        states = super().lookup(request, keys)
        return states.replace(MISS, PENDING)


# -- options that are wrong -----------------------------------------------------------------------


class Anything(MemoryConfig):
    model_config = ConfigDict(extra="ignore")


class Mutable(MemoryConfig):
    model_config = ConfigDict(frozen=False)


class PlainNumbers(PluginConfig):
    capacity: int


class OpenSecret(MemoryConfig):
    api_token: str = ""


@bug("ignores options that it does not know", "test_C1_an_unknown_option_is_refused")
class TakesAnything(MemoryBackend):
    Config = Anything


@bug("lets its options be changed", "test_C1_options_cannot_change_once_they_were_checked")
class LetsChange(MemoryBackend):
    Config = Mutable


@bug("takes a size without a unit", "test_C2_a_capacity_is_written_with_its_unit")
class NoUnits(MemoryBackend):
    Config = PlainNumbers


@bug("shows its secret", "test_C3_options_that_hold_secrets_are_of_a_secret_type")
class ShowsSecret(MemoryBackend):
    Config = OpenSecret


@bug(
    "was written for another contract",
    "test_C1_the_class_speaks_this_contract_and_its_hooks_have_their_signatures",
)
class OtherContract(MemoryBackend):
    contract_version = 99


@bug(
    "opens without room for one chunk",
    "test_C1_a_capacity_below_one_chunk_on_every_rank_is_refused",
)
class AnyCapacity(MemoryBackend):
    def open_scheduler(self, geometry, namespace):
        if self.chunks_that_fit(geometry):
            super().open_scheduler(geometry, namespace)


# -- kvconn itself is wrong -----------------------------------------------------------------------

PERMIT = "kvconn.policies.prefix_skip.PrefixSkipPolicy.permit"
CONNECTOR = "kvconn.scheduler.SchedulerConnector"

core_bug(
    "the skip policy forgets the flag for reading",
    "test_R1_a_skipping_request_reaches_no_backend_to_read",
    "test_R1_no_byte_moves_towards_the_engine_for_a_skipping_request",
    "test_R3_a_load_that_an_engine_asks_for_all_the_same_is_refused_and_counted",
    "test_R4_a_skipping_request_is_bypassed_and_neither_query_nor_hit",
    patches={PERMIT: lambda _, request: Permissions(write=not request.skip_writing_prefix_cache)},
)
core_bug(
    "the skip policy forgets the flag for writing",
    "test_R5_a_request_that_must_not_write_offers_nothing_to_a_backend",
    "test_R5_nothing_of_a_request_that_must_not_write_is_there_for_others",
    patches={PERMIT: lambda _, request: Permissions(read=not request.skip_reading_prefix_cache)},
)
core_bug(
    "the skip policy takes one flag for both",
    "test_R1_a_skipping_request_still_starts_touches_stores_and_finishes",
    "test_R1_what_a_skipping_request_stored_is_a_hit_to_a_later_plain_one",
    "test_R5_a_request_that_must_not_write_goes_on_reading",
    patches={
        PERMIT: lambda _, request: Permissions(
            read=not (request.skip_reading_prefix_cache or request.skip_writing_prefix_cache),
            write=not (request.skip_reading_prefix_cache or request.skip_writing_prefix_cache),
        )
    },
)
core_bug(
    "a request's flags are read once and never again",
    "test_R2_a_request_whose_flag_is_taken_back_may_read_again",
    "test_R2_a_lease_is_released_before_the_skip_takes_effect",
    patches={"kvconn.requests.RequestState.same_flags": lambda _self, _request: True},
)


def _counts_each(honest):
    def lookup(self, request, keys, computed_tokens=0):
        answer = honest(self, request, keys, computed_tokens)
        self._requests[request.id].counted = False
        return answer

    return lookup


core_bug(
    "every lookup of a waiting request is a query",
    "test_R4_a_plain_request_that_asks_in_every_step_is_one_query",
    patches={f"{CONNECTOR}.lookup": _counts_each(SchedulerConnector.lookup)},
)


def _completes_again(honest):
    def complete_transfer(self, transfer, verdicts):
        self._inflight.setdefault(transfer.id, transfer)
        honest(self, transfer, verdicts)

    return complete_transfer


core_bug(
    "whatever is said to have ended is taken for in flight",
    "test_L2_a_second_completion_is_an_error_in_tests",
    "test_L2_a_second_completion_is_counted_in_production_and_the_first_stands",
    "test_L2_a_transfer_of_somebody_else_is_unknown",
    patches={
        f"{CONNECTOR}.complete_transfer": _completes_again(SchedulerConnector.complete_transfer)
    },
)
core_bug(
    "close does not say what it left",
    "test_F9_close_says_which_transfers_nobody_completed",
    patches={f"{CONNECTOR}.close": lambda _self, deadline=5.0: []},
)


def _forgets_closed(honest):
    def submit(self, transfer, blocks):
        if not self._closed:
            honest(self, transfer, blocks)

    return submit


core_bug(
    "what a closed worker is given is never heard of again",
    "test_F9_a_transfer_given_to_a_closed_worker_failed",
    patches={"kvconn.worker.WorkerConnector.submit": _forgets_closed(WorkerConnector.submit)},
)


def _asks_twice(honest):
    def prepare_store(self, request, keys):
        self._prepare_store(request, list(keys))
        return honest(self, request, keys)

    return prepare_store


core_bug(
    "a backend is asked twice",
    "test_F4_one_request_costs_one_call_of_each_hook",
    patches={f"{CONNECTOR}.prepare_store": _asks_twice(SchedulerConnector.prepare_store)},
)
core_bug(
    "rows are not checked",
    "test_L7_a_store_with_an_absent_block_is_refused",
    patches={"kvconn.worker._check_rows": lambda _transfer, _blocks: None},
)
core_bug(
    "the salt is left out of keys",
    "test_K3_content_under_two_salts_has_no_key_in_common",
    patches={
        "kvconn.testing.suite.identity.chain_keys": lambda contents, salt: [
            b"%16d" % content for content in contents
        ]
    },
)
core_bug(
    "seals are not looked at",
    "test_K4_objects_exchanged_under_their_names_are_misses",
    "test_K4_random_bytes_in_the_place_of_an_object_are_a_miss",
    "test_F5_an_object_that_changed_is_a_miss_and_is_removed",
    "test_F2_over_a_store_that_fails_corrupts_lies_and_reorders_no_wrong_byte_is_loaded",
    store=True,
    patches={"kvconn.blockstore.jobs.seals_hold": lambda buffers, *_rest: [True] * len(buffers)},
)


def _never_late(honest):
    def submit(self, transfer, blocks):
        honest(self, transfer, blocks)
        self._deadlines[transfer.id] += 60

    return submit


core_bug(
    "nobody looks at the clock while a store hangs",
    "test_F3_a_store_that_hangs_costs_blocks_and_the_engine_goes_on",
    store=True,
    patches=IMPATIENT
    | {
        "kvconn.worker.WorkerConnector.submit": _never_late(WorkerConnector.submit),
        "kvconn.blockstore.worker.StoreWorker._expire": lambda _self: None,
    },
)


def _at_home(honest):
    home = threading.get_ident()

    def close(self, deadline=5.0):
        if threading.get_ident() != home:
            raise RuntimeError
        return honest(self, deadline)

    return close


core_bug(
    "close is for the scheduler's thread only",
    "test_F9_close_may_come_from_another_thread",
    patches={f"{CONNECTOR}.close": _at_home(SchedulerConnector.close)},
)


@bug("writes other bytes than it was given", "test_F2_what_was_put_is_got_back_byte_for_byte")
class WritesOthers(FileStore):
    def put(self, ids, buffers):
        for name, buffer in zip(ids, reversed(buffers), strict=True):
            self.write(name, bytes(buffer))
        return [True] * len(ids)
