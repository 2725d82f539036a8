"""XXH3-128 of several buffers, in one native call where ``kvconn-native`` is installed.

Each call into the ``xxhash`` package gives the interpreter lock up and takes it back, which in an
engine that spins while it waits costs more than the hashing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

import xxhash

__all__ = ["xxh3_128"]

_THREADS = 2


def _in_turn(buffers: Sequence[memoryview]) -> list[bytes]:
    return [xxhash.xxh3_128_digest(buffer) for buffer in buffers]


def _fastest() -> Callable[[Sequence[memoryview]], list[bytes]]:
    try:
        native = import_module("kvconn_native")
    except ImportError:
        return _in_turn
    return lambda buffers: list(native.xxh3_128(list(buffers), _THREADS))


xxh3_128 = _fastest()
"""The 16 bytes of each buffer, big-endian as the algorithm's authors write them."""
