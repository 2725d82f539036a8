"""Geometry, keys by entry, transfers as bytes, events, and what a request remembers."""

from __future__ import annotations

import gc
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconn.events import EventLog
from kvconn.geometry import SLOT_ALIGNMENT, Geometry
from kvconn.keytable import SPAN_BITS, KeyTable
from kvconn.requests import RequestState
from kvconn.types import (
    ABSENT,
    EventKind,
    KVEvent,
    Permissions,
    Request,
    Transfer,
    TransferKind,
    new_transfer_id,
    seconds_left,
)

SIZES = st.integers(1, 5000)

# -- geometry ----------------------------------------------------------------------------------


@given(SIZES, SIZES, SIZES)
def test_a_slot_is_the_smallest_aligned_memory_that_holds_a_chunk(tokens, nbytes, blocks):
    geometry = Geometry(tokens, nbytes, blocks)
    assert geometry.slot_bytes % SLOT_ALIGNMENT == 0
    assert geometry.chunk_bytes <= geometry.slot_bytes < geometry.chunk_bytes + SLOT_ALIGNMENT
    assert geometry.chunk_tokens == tokens * blocks


@pytest.mark.parametrize("name", ["block_tokens", "block_bytes", "blocks_per_chunk", "ranks"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_size_below_one_is_refused_by_name(name, value):
    sizes = {"block_tokens": 1, "block_bytes": 1, name: value}
    with pytest.raises(ValueError, match=rf"{name} is {value}: it must be at least 1"):
        Geometry(**sizes)


@pytest.mark.parametrize(
    ("chunks", "computed", "rows"),
    [
        (range(2), 0, [[10, 11, 12], [13, 14, 15]]),
        (range(1, 3), 0, [[13, 14, 15], [16, 17, 18]]),
        (range(1, 3), 3, [[13, 14, 15], [16, 17, 18]]),
        (range(1, 3), 4, [[ABSENT, 14, 15], [16, 17, 18]]),
        (range(1, 3), 5, [[ABSENT, ABSENT, 15], [16, 17, 18]]),
        (range(1, 3), 6, [[ABSENT] * 3, [16, 17, 18]]),
        (range(1, 3), 99, [[ABSENT] * 3, [16, 17, 18]]),
        (range(2, 2), 99, []),
    ],
)
def test_rows_name_each_chunks_blocks_less_what_the_engine_has(chunks, computed, rows):
    geometry = Geometry(4, 1, blocks_per_chunk=3)
    assert geometry.rows(range(10, 19), chunks, computed) == rows


# -- key table ---------------------------------------------------------------------------------


def test_every_entry_finds_its_key_also_across_spans():
    table, count = KeyTable(), 3 << SPAN_BITS
    table.reach(count)
    for entry in range(count):
        table.spans[entry >> SPAN_BITS][entry] = entry.to_bytes(16, "big")
    assert all(table[entry] == entry.to_bytes(16, "big") for entry in range(count))


@given(st.lists(st.integers(0, 5000)))
def test_room_is_made_for_all_entries_below_and_never_taken_away(reached):
    table = KeyTable()
    for entries in reached:
        table.reach(entries)
    most = max(reached, default=0)
    assert most <= len(table.spans) << SPAN_BITS < most + (1 << SPAN_BITS)


def test_the_garbage_collector_follows_no_key():
    table = KeyTable()
    table.reach(1)
    table.spans[0][0] = b"k" * 16
    gc.collect()
    assert not gc.is_tracked(table.spans[0])


# -- types -------------------------------------------------------------------------------------

TRANSFERS = st.builds(
    Transfer,
    id=st.integers(0, 2**63), kind=st.sampled_from(TransferKind), request_id=st.text(),
    keys=st.lists(st.binary()).map(tuple), locations=st.lists(st.integers(0, 2**40)).map(tuple),
    evictions=st.lists(st.binary()).map(tuple), timeout_s=st.floats(0, 1e9),
    group=st.integers(0, 65535),
)  # fmt: skip


def fields(transfer: Transfer) -> tuple:
    return msgspec.structs.astuple(transfer)


@given(TRANSFERS)
def test_a_transfer_survives_the_wire(transfer):
    again = Transfer.from_bytes(transfer.to_bytes())
    assert fields(again) == fields(transfer)
    assert isinstance(again.keys, tuple)
    assert again.kind is transfer.kind


@pytest.mark.parametrize(
    "wire", [b"", b"nonsense", b"\xc0", msgspec.msgpack.encode([1, 9, "r", []])]
)
def test_other_bytes_are_no_transfer(wire):
    with pytest.raises(msgspec.DecodeError):
        Transfer.from_bytes(wire)


def test_evictions_are_added_to_a_copy():
    transfer = Transfer(1, TransferKind.STORE, "r", (b"a",), (3,))
    other = transfer.with_evictions((b"b",))
    assert transfer.evictions == ()
    assert fields(other) == fields(Transfer(1, TransferKind.STORE, "r", (b"a",), (3,), (b"b",)))


def test_no_two_transfers_of_a_process_share_an_id():
    ids = [new_transfer_id() for _ in range(100)]
    assert sorted(set(ids)) == ids


@given(*[st.booleans()] * 4)
def test_permissions_are_combined_with_and(a, b, c, d):
    assert Permissions(a, b) & Permissions(c, d) == Permissions(a and c, b and d)


@pytest.mark.parametrize(
    ("deadline", "left"), [(None, 30.0), (0.0, 0.0), (float("inf"), 30.0), (-5.0, 0.0)]
)
def test_seconds_left_are_never_negative_and_never_more_than_otherwise(deadline, left):
    assert seconds_left(deadline, 30.0) == left


def test_seconds_left_count_from_now():
    assert 0 < seconds_left(time.monotonic() + 10, 30.0) <= 10


# -- events ------------------------------------------------------------------------------------


def test_events_are_taken_once_and_in_order():
    log = EventLog("tier", keep=True)
    log.stored([b"a", b"b"])
    log.removed([b"a"])
    log.cleared()
    assert log.take() == [
        KVEvent(EventKind.STORED, (b"a", b"b"), "tier"),
        KVEvent(EventKind.REMOVED, (b"a",), "tier"),
        KVEvent(EventKind.CLEARED, (), "tier"),
    ]
    assert log.take() == []


def test_events_about_nothing_are_none():
    log = EventLog("tier", keep=True)
    log.stored([])
    log.removed([])
    assert log.take() == []


def test_events_that_nobody_wants_are_not_kept():
    log = EventLog("tier", keep=False)
    log.stored([b"a"])
    log.removed([b"a"])
    log.cleared()
    assert log.take() == []


# -- requests ----------------------------------------------------------------------------------


def state(**flags) -> RequestState:
    return RequestState(Request("r", **flags), read=True, write=True)


def test_flags_and_parameters_make_another_request_and_a_deadline_does_not():
    same = state(params={"a": 1}).same_flags
    assert same(Request("r", params={"a": 1}, deadline=5.0))
    assert not same(Request("r", params={"a": 2}))
    assert not same(Request("r", params={"a": 1}, skip_reading_prefix_cache=True))
    assert not same(Request("r", params={"a": 1}, skip_writing_prefix_cache=True))


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise ValueError  # as an array does

    __hash__ = None


def test_parameters_that_cannot_be_compared_make_another_request():
    known = state(params={"image": Incomparable()})
    assert known.same_flags(known.request)
    assert not known.same_flags(Request("r", params={"image": Incomparable()}))


def test_keys_up_to_the_first_that_failed_are_offered():
    known = state()
    assert known.before_failed([b"a", b"b"]) == [b"a", b"b"]
    known.remember_failed([b"b"])
    known.remember_failed([b"d"])
    assert known.before_failed([b"a", b"b", b"c"]) == [b"a"]
    assert known.before_failed([b"c", b"d"]) == [b"c"]
