"""A stored object carries its own name, length and checksum, and is checked on load (K4).

The checksum is XXH3-128 of everything before it.

An object is one slot: the chunk's payload, then zeros, then in the last :data:`SEAL_BYTES` the
seal.  It stands at the end so that the payload keeps the slot's alignment.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kvconn.blockstore.checksums import xxh3_128
from kvconn.geometry import SLOT_ALIGNMENT
from kvconn.identity import DIGEST_BYTES, FORMAT_VERSION, content_key

__all__ = [
    "SEAL_BYTES",
    "UNKNOWN_LAYOUT",
    "layout_digest",
    "object_bytes",
    "opened",
    "seal",
    "seals_hold",
    "unseal",
]

SEAL_BYTES = 160

_MAGIC = b"kvconn\r\n"
_FIELDS = struct.Struct("<8sHHQ")
"""Magic, format version, length of the id, length of the payload; then the layout and the id."""
_CHECKSUM_BYTES = 16
_LAYOUT_BYTES = DIGEST_BYTES
_ID_BYTES = SEAL_BYTES - _FIELDS.size - _LAYOUT_BYTES - _CHECKSUM_BYTES

UNKNOWN_LAYOUT = bytes(_LAYOUT_BYTES)


def layout_digest(page_bytes: Sequence[int], blocks_per_chunk: int) -> bytes:
    """How pages stand in a chunk: one that was stored with other pages must not be loaded.

    A namespace should tell such chunks apart; this is for the one that does not.
    """
    return content_key("layout", list(page_bytes), blocks_per_chunk)


def object_bytes(payload_bytes: int) -> int:
    """Bytes of an object whose chunk has ``payload_bytes``: with its seal, aligned up."""
    return -(-(payload_bytes + SEAL_BYTES) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def _head(object_id: bytes, payload_bytes: int, layout: bytes) -> bytes:
    if len(object_id) > _ID_BYTES:
        msg = f"an object's name has {len(object_id)} bytes: at most {_ID_BYTES} fit its seal"
        raise ValueError(msg)
    fields = _FIELDS.pack(_MAGIC, FORMAT_VERSION, len(object_id), payload_bytes)
    return fields + layout + object_id.ljust(_ID_BYTES, b"\0")


def seal(
    buffers: Sequence[memoryview],
    object_ids: Sequence[bytes],
    payload_bytes: int,
    layout: bytes = UNKNOWN_LAYOUT,
) -> None:
    """Complete each buffer, whose first ``payload_bytes`` are a chunk, to an object."""
    for buffer, object_id in zip(buffers, object_ids, strict=True):
        buffer[payload_bytes:-SEAL_BYTES] = bytes(len(buffer) - SEAL_BYTES - payload_bytes)
        buffer[-SEAL_BYTES:-_CHECKSUM_BYTES] = _head(object_id, payload_bytes, layout)
    checksums = xxh3_128([buffer[:-_CHECKSUM_BYTES] for buffer in buffers])
    for buffer, checksum in zip(buffers, checksums, strict=True):
        buffer[-_CHECKSUM_BYTES:] = checksum


def unseal(buffer: memoryview) -> None:
    """Make sure that what was in ``buffer`` cannot complete an object that is read short."""
    buffer[-_CHECKSUM_BYTES:] = bytes(_CHECKSUM_BYTES)


def seals_hold(
    buffers: Sequence[memoryview],
    object_ids: Sequence[bytes],
    payload_bytes: int,
    layout: bytes = UNKNOWN_LAYOUT,
) -> list[bool]:
    """Whether each buffer is exactly the object of that id, bit for bit as it was sealed."""
    heads = [
        buffer[-SEAL_BYTES:-_CHECKSUM_BYTES] == _head(object_id, payload_bytes, layout)
        for buffer, object_id in zip(buffers, object_ids, strict=True)
    ]
    # Not worth reading what is not ours.
    checksums = iter(
        xxh3_128([b[:-_CHECKSUM_BYTES] for b, ours in zip(buffers, heads, strict=True) if ours])
    )
    return [
        ours and buffer[-_CHECKSUM_BYTES:] == next(checksums)
        for buffer, ours in zip(buffers, heads, strict=True)
    ]


def opened(buffer: memoryview) -> bytes | None:
    """The id of the whole object in ``buffer``, whatever its payload; ``None`` if it is none."""
    if len(buffer) < SEAL_BYTES:
        return None
    head = bytes(buffer[-SEAL_BYTES:-_CHECKSUM_BYTES])
    magic, version, id_bytes, payload_bytes = _FIELDS.unpack_from(head)
    fits = id_bytes <= _ID_BYTES and object_bytes(payload_bytes) == len(buffer)
    if (magic, version) != (_MAGIC, FORMAT_VERSION) or not fits:
        return None
    (checksum,) = xxh3_128([buffer[:-_CHECKSUM_BYTES]])
    if bytes(buffer[-_CHECKSUM_BYTES:]) != checksum:
        return None
    start = _FIELDS.size + _LAYOUT_BYTES
    return head[start : start + id_bytes]
