"""Sizes that people type: `8GiB`, `8GB`, or a number of bytes (C2)."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, ByteSize, Field
from pydantic_core import PydanticCustomError

__all__ = ["Capacity", "Per", "humanise"]

_SIZE = re.compile(r"\s*\d+(\.\d+)?\s*([KMGTPE]i?B|B)?\s*", re.IGNORECASE)


class Per(StrEnum):
    """What one size is the size of; a plugin annotates its field with it and the log says so."""

    PROCESS = "per process"
    TOTAL = "in total"


def _only_whole_sizes(value: object) -> object:
    # pydantic reads "1,5GiB" as one byte, "8Gbit" as a size and "8G" as decimal without a word.
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole or (isinstance(value, str) and _SIZE.fullmatch(value)):
        return value
    kind, text = "size", "write a size like 8GiB, 8GB or 8589934592"
    raise PydanticCustomError(kind, text)


Capacity = Annotated[ByteSize, Field(gt=0), BeforeValidator(_only_whole_sizes)]
"""Field type for a plugin's sizes; ``Annotated[Capacity, Per.TOTAL]`` also says of what."""


def humanise(size: int) -> str:
    """``200.0GiB (214748364800 bytes)``."""
    return f"{ByteSize(size).human_readable()} ({int(size)} bytes)"
