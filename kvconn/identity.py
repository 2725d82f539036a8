"""Digests that name content: the one place where keys, namespaces and object ids are computed.

Every digest is BLAKE2b (RFC 7693) with 16 bytes of output over a *typed, length-prefixed*
encoding, so that no two different inputs encode to the same bytes, and nothing depends on
``PYTHONHASHSEED``, on the process or on the order of a mapping.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = [
    "DIGEST_BYTES",
    "FORMAT_VERSION",
    "MAX_KEY_BYTES",
    "Key",
    "Namespace",
    "Shard",
    "chain_keys",
    "content_key",
    "object_id",
    "parse_object_id",
]

DIGEST_BYTES = 16
"""Length of every digest: 128 bits."""

MAX_KEY_BYTES = 64
"""Length of the longest key that an engine may hand in: 512 bits."""

FORMAT_VERSION = 1
"""Version of the bytes inside a chunk; part of every namespace."""

Key = bytes
"""Names one chunk's content; opaque to a backend."""


def _encode(value: object, into: list[bytes]) -> None:
    """Append the typed, length-prefixed form of ``value``; a type without one is a TypeError."""
    if value is None:
        into.append(b"n")
    elif isinstance(value, bool):
        into.append(b"T" if value else b"F")
    elif isinstance(value, int):
        _framed(b"i", b"%x" % int(value), into)  # hex: CPython limits the length of decimals
    elif isinstance(value, float):
        into.append(b"d" + struct.pack("<d", value))
    elif isinstance(value, str):
        # JSON can carry a lone surrogate into a salt; it is a name like any other.
        _framed(b"s", value.encode("utf-8", "surrogatepass"), into)
    elif isinstance(value, bytes | bytearray | memoryview):
        _framed(b"b", bytes(value), into)
    elif isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        _sequence(b"m", [part for pair in sorted(value.items()) for part in pair], into)
    elif isinstance(value, tuple | list):
        _sequence(b"l", value, into)
    else:
        what = type(value).__name__
        msg = f"cannot name content of type {what}: pass bytes, str, numbers or tuples"
        raise TypeError(msg)


def _framed(tag: bytes, payload: bytes, into: list[bytes]) -> None:
    into.append(tag + struct.pack("<Q", len(payload)) + payload)


def _sequence(tag: bytes, parts: Iterable[object], into: list[bytes]) -> None:
    parts = list(parts)
    into.append(tag + struct.pack("<Q", len(parts)))
    for part in parts:
        _encode(part, into)


def _digest(purpose: bytes, *parts: object) -> bytes:
    encoded: list[bytes] = []
    _sequence(b"l", parts, encoded)
    return hashlib.blake2b(b"".join(encoded), digest_size=DIGEST_BYTES, person=purpose).digest()


def content_key(*parts: object) -> Key:
    """The key of a chunk whose content is decided by ``parts``.

    ``parts`` are bytes, strings, numbers, ``None``, booleans, or tuples, lists and string-keyed
    mappings of these.  They must carry everything that decides the bytes: the tokens and all
    tokens before them, a tenant salt, the LoRA id, multimodal content (guarantee K3).
    """
    return _digest(b"kvconn key", *parts)


def chain_keys(contents: Iterable[object], *, parent: Key = b"", salt: object = None) -> list[Key]:
    """One key per element of ``contents``, each naming its content and everything before it.

    ``parent`` is the key that the first element follows, empty at the start of a sequence;
    ``salt`` is mixed into every key (tenant, LoRA id and the like).
    """
    keys: list[Key] = []
    for content in contents:
        parent = content_key(parent, salt, content)
        keys.append(parent)
    return keys


@dataclass(frozen=True, slots=True)
class Namespace:
    """All that decides what a chunk's bytes mean, apart from the tokens (guarantee K2).

    Two engines share stored chunks exactly when their namespaces are equal.  Ranks are not part
    of it: they are the :class:`Shard`.
    """

    model: str
    revision: str = ""
    dtype: str = ""
    layout: str = ""
    block_tokens: int = 0
    blocks_per_chunk: int = 1
    groups: tuple[tuple[object, ...], ...] = ()
    """Per KV-cache group: whatever decides its pages (layers, heads, head size, page bytes)."""
    weights_epoch: int = 0
    """Counts in-place weight updates; a chunk of other weights is a miss."""
    format_version: int = FORMAT_VERSION
    extra: tuple[tuple[str, object], ...] = field(default=())

    @property
    def digest(self) -> bytes:
        """16 bytes that differ when any field differs."""
        return _digest(b"kvconn space", *(getattr(self, name) for name in self.__slots__))

    def describe(self) -> dict[str, object]:
        """The fields by name, for a human-readable description beside stored objects."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``index`` of ``count`` of a chunk; KV that all ranks replicate is shard 0 of 1."""

    index: int = 0
    count: int = 1
    replica: int = 0
    """Which of the workers that hold this part, from 0; no part of any object's name."""
    replicas: int = 1

    def __post_init__(self) -> None:
        for what, index, count in (
            ("shard", self.index, self.count),
            ("replica", self.replica, self.replicas),
        ):
            if not 0 <= index < count:
                msg = f"{what} {index} of {count} does not exist: count from 0 to count - 1"
                raise ValueError(msg)


_OBJECT = struct.Struct(f"<{DIGEST_BYTES}sHHH")


def object_id(namespace: bytes, group: int, shard: Shard, key: Key) -> bytes:
    """The name under which one shard of one chunk is stored; any difference is another object.

    ``namespace`` is :attr:`Namespace.digest`.  The parts stand side by side, each of them of a
    fixed length but the key, which is last: :func:`parse_object_id` is the inverse.
    """
    return _OBJECT.pack(namespace, group, shard.index, shard.count) + key


def parse_object_id(name: bytes) -> tuple[bytes, int, Shard, Key]:
    """``(namespace, group, shard, key)`` of an object; ``ValueError`` when it is not a name."""
    if len(name) < _OBJECT.size + DIGEST_BYTES:
        msg = f"{len(name)} bytes are too short for an object's name"
        raise ValueError(msg)
    namespace, group, index, count = _OBJECT.unpack_from(name)
    return namespace, group, Shard(index, count), name[_OBJECT.size :]
