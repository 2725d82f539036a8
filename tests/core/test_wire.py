"""Transfers as bytes: whatever arrives is a transfer or is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvconn.types import Transfer, TransferKind

WHOLE = Transfer(7, TransferKind.STORE, "request", (b"a" * 16, b"b" * 16), (0, 1), (b"c" * 16,))
WIRE = WHOLE.to_bytes()


def is_refused_or_a_transfer(wire: bytes) -> None:
    try:
        transfer = Transfer.from_bytes(wire)
    except msgspec.DecodeError:
        return
    assert isinstance(transfer.id, int)
    assert isinstance(transfer.kind, TransferKind)
    assert all(isinstance(key, bytes) for key in (*transfer.keys, *transfer.evictions))
    assert all(isinstance(place, int) for place in transfer.locations)


@given(st.binary(max_size=80))
def test_nonsense_is_refused(wire):
    is_refused_or_a_transfer(wire)


@given(st.integers(0, len(WIRE) - 1), st.integers(0, 255))
@example(at=4, byte=0xFF)  # inside the request's id: no UTF-8 any more
def test_a_changed_byte_is_refused_or_makes_another_transfer(at, byte):
    wire = bytearray(WIRE)
    wire[at] = byte
    is_refused_or_a_transfer(bytes(wire))


@given(st.integers(0, len(WIRE) - 1))
def test_a_cut_transfer_is_refused(length):
    with pytest.raises(msgspec.DecodeError):
        Transfer.from_bytes(WIRE[:length])


def test_a_newer_peer_may_add_fields_and_an_older_one_leave_the_last_out():
    fields = list(msgspec.msgpack.decode(WIRE))
    for wire in (fields[:4], [*fields, "what is to come"]):
        assert Transfer.from_bytes(msgspec.msgpack.encode(wire)).keys == WHOLE.keys
