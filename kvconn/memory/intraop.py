"""Keeping torch from using more threads for a copy than the caller gave it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

__all__ = ["one_intraop_thread"]


@contextmanager
def one_intraop_thread() -> Iterator[None]:
    """Torch operators that this thread calls inside use this thread alone.

    ``torch.set_num_threads`` would do it for the whole process: an engine thread that first uses
    torch meanwhile would keep one thread for ever.  OpenMP's own setting is per calling thread.
    Where torch was built without OpenMP nothing changes, and copies are right all the same.
    """
    openmp = _openmp()
    before = openmp.omp_get_max_threads() if openmp else 1
    if before == 1:
        yield
        return
    openmp.omp_set_num_threads(1)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)


@cache
def _openmp() -> Any:  # noqa: ANN401 - a ctypes library has the attributes that it has
    """The OpenMP runtime that torch itself is linked to, or ``None``."""
    library = ctypes.CDLL(torch._C.__file__)  # noqa: SLF001 - the only handle to torch's libraries
    return library if hasattr(library, "omp_set_num_threads") else None
