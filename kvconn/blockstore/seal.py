"""A stored object carries its own name, length and checksum, and is checked on load (K4).

An object is one slot: the chunk's payload, then zeros, then in the last :data:`SEAL_BYTES` the
seal.  It stands at the end so that the payload keeps the slot's alignment.
"""

from __future__ import annotations

import struct

import xxhash

from kvconn.geometry import SLOT_ALIGNMENT
from kvconn.identity import FORMAT_VERSION

__all__ = ["SEAL_BYTES", "object_bytes", "seal", "seal_holds", "unseal"]

SEAL_BYTES = 160

_MAGIC = b"kvconn\r\n"
_FIELDS = struct.Struct("<8sHHQ")
"""Magic, format version, length of the id, length of the payload; then the id."""
_CHECKSUM_BYTES = 16
_ID_BYTES = SEAL_BYTES - _FIELDS.size - _CHECKSUM_BYTES


def object_bytes(payload_bytes: int) -> int:
    """Bytes of an object whose chunk has ``payload_bytes``: with its seal, aligned up."""
    return -(-(payload_bytes + SEAL_BYTES) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def _head(object_id: bytes, payload_bytes: int) -> bytes:
    if len(object_id) > _ID_BYTES:
        msg = f"an object's name has {len(object_id)} bytes: at most {_ID_BYTES} fit its seal"
        raise ValueError(msg)
    fields = _FIELDS.pack(_MAGIC, FORMAT_VERSION, len(object_id), payload_bytes)
    return fields + object_id.ljust(_ID_BYTES, b"\0")


def _checksum(buffer: memoryview) -> bytes:
    """XXH3-128 of everything before the checksum itself."""
    return xxhash.xxh3_128_digest(buffer[:-_CHECKSUM_BYTES])


def seal(buffer: memoryview, object_id: bytes, payload_bytes: int) -> None:
    """Complete ``buffer``, whose first ``payload_bytes`` are a chunk, to an object."""
    buffer[payload_bytes:-SEAL_BYTES] = bytes(len(buffer) - SEAL_BYTES - payload_bytes)
    buffer[-SEAL_BYTES:-_CHECKSUM_BYTES] = _head(object_id, payload_bytes)
    buffer[-_CHECKSUM_BYTES:] = _checksum(buffer)


def unseal(buffer: memoryview) -> None:
    """Make sure that what was in ``buffer`` cannot complete an object that is read short."""
    buffer[-_CHECKSUM_BYTES:] = bytes(_CHECKSUM_BYTES)


def seal_holds(buffer: memoryview, object_id: bytes, payload_bytes: int) -> bool:
    """Whether ``buffer`` is exactly the object ``object_id``, bit for bit as it was sealed."""
    head = buffer[-SEAL_BYTES:-_CHECKSUM_BYTES] == _head(object_id, payload_bytes)
    return head and buffer[-_CHECKSUM_BYTES:] == _checksum(buffer)
