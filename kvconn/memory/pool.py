"""The host memory that kvconn owns: all that any I/O call ever touches (guarantee L8)."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import torch

from kvconn.errors import ConfigurationError, MisuseError
from kvconn.geometry import SLOT_ALIGNMENT
from kvconn.memory.pinning import pin, unpin

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HostPool"]

HUGE_PAGE = 2 << 20
_FREE, _IN_USE, _QUARANTINED = 0, 1, 2
_WORDS = ("free", "in use", "quarantined")


class HostPool:
    """``slots`` slots of ``slot_bytes`` bytes in one anonymous mapping.

    Opening touches no memory: pages come with their first write, unless ``device`` is a CUDA
    device, which has the whole mapping pinned and registered.  Staging slots are handed out by
    :meth:`acquire`; a backend whose slots are resident and chosen by the scheduler side addresses
    them directly and never calls it.  ``acquire``, ``release`` and ``quarantine`` may be called
    from any thread.
    """

    def __init__(
        self, slot_bytes: int, slots: int, *, device: torch.device | str | None = None
    ) -> None:
        """Raises :class:`ValueError` for a size that is not a positive multiple of 4096."""
        if slot_bytes < SLOT_ALIGNMENT or slot_bytes % SLOT_ALIGNMENT or slots < 0:
            msg = (
                f"{slots} slots of {slot_bytes} bytes: give a count of at least 0 and a size that "
                f"is a positive multiple of {SLOT_ALIGNMENT}"
            )
            raise ValueError(msg)
        self.slot_bytes = slot_bytes
        self.slots = slots
        self._map = _reserve(slot_bytes * slots)
        raw = np.frombuffer(self._map, np.uint8)
        # Huge pages start on multiples of their size, and so should the first slot.
        skip = -raw.ctypes.data % HUGE_PAGE if len(raw) > HUGE_PAGE else 0
        self._array: NDArray[np.uint8] = raw[skip : skip + slot_bytes * slots]
        self._view = memoryview(self._map)[skip : skip + slot_bytes * slots]
        self._base = raw.ctypes.data + skip
        self.tensor = torch.from_numpy(self._array).view(slots, slot_bytes)
        """``uint8 [slots, slot_bytes]`` over the same memory."""
        self._pinned = pin(self._base, slot_bytes * slots, device)
        self._lock = threading.Lock()
        self._state = bytearray(slots)
        # A stack that pops ascending ids: neighbours copy in one call, warm slots are re-used.
        self._stack = list(range(slots - 1, -1, -1))
        self._quarantined = 0
        self._closed = False

    def buffer(self, slot: int) -> memoryview:
        """The writable bytes of ``slot``; raises :class:`MisuseError` where there is none."""
        at = self._offset(slot)
        return self._view[at : at + self.slot_bytes]

    @property
    def memory(self) -> memoryview:
        """All slots, one after the other."""
        return self._view

    def address(self, slot: int) -> int:
        """The address of the first byte of ``slot``, a multiple of 4096."""
        return self._base + self._offset(slot)

    def acquire(self, n: int = 1) -> list[int] | None:
        """``n`` free slots, now the caller's, or ``None`` when there are fewer; never waits."""
        if n < 0 or self._closed:
            msg = (
                f"{n} slots asked of {'a closed' if self._closed else 'a'} pool: ask for 0 or more"
            )
            raise MisuseError(msg)
        with self._lock:
            if n > len(self._stack):
                return None
            taken = self._stack[: -n - 1 : -1]
            del self._stack[len(self._stack) - n :]
            for slot in taken:
                self._state[slot] = _IN_USE
            return taken

    def release(self, ids: Sequence[int]) -> None:
        """Give slots back, in use or quarantined.

        Raises :class:`MisuseError`, and gives none back, when one is free or named twice.
        """
        with self._lock:
            self._check(ids, _IN_USE, _QUARANTINED)
            for slot in reversed(ids):
                self._quarantined -= self._state[slot] == _QUARANTINED
                self._state[slot] = _FREE
                self._stack.append(slot)

    def quarantine(self, ids: Sequence[int]) -> None:
        """Set slots aside that an I/O call past its deadline may still touch, until released."""
        with self._lock:
            self._check(ids, _IN_USE)
            for slot in ids:
                self._state[slot] = _QUARANTINED
            self._quarantined += len(ids)

    def prefault(self) -> None:
        """Take all memory now: what is not pinned is otherwise taken page by page, when written.

        Before anything is stored.  On a virtual machine the first write to 4 MB took 10 ms, the
        next one 1 ms.
        """
        self._array[::SLOT_ALIGNMENT] = 0

    @property
    def free(self) -> int:
        """How many slots :meth:`acquire` could hand out."""
        return len(self._stack)

    @property
    def quarantined(self) -> int:
        """How many slots wait for a call that outlived its deadline."""
        return self._quarantined

    def close(self) -> None:
        """Give the memory back; what still views it keeps it alive until it is gone too.

        May be called twice, from any thread.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._stack.clear()
        if self._pinned:
            unpin(self._base)
        self._view.release()
        self.tensor = torch.empty(0, self.slot_bytes, dtype=torch.uint8)
        self._array = np.empty(0, np.uint8)
        with suppress(BufferError):  # a view is still out there; the last one unmaps
            self._map.close()

    def _offset(self, slot: int) -> int:
        if self._closed or not 0 <= slot < self.slots:
            msg = f"slot {slot} of {'a closed pool' if self._closed else f'{self.slots}'}: no such"
            raise MisuseError(msg)
        return slot * self.slot_bytes

    def _check(self, ids: Sequence[int], *allowed: int) -> None:
        if len(set(ids)) != len(ids):
            msg = f"slots {list(ids)} name one of them twice: name each once"
            raise MisuseError(msg)
        for slot in ids:
            if not 0 <= slot < self.slots or self._state[slot] not in allowed:
                state = _WORDS[self._state[slot]] if 0 <= slot < self.slots else "none of the pool"
                msg = f"slot {slot} is {state}: give each slot back once, by who acquired it"
                raise MisuseError(msg)


def _reserve(nbytes: int) -> mmap.mmap:
    """Anonymous private memory, untouched; room for alignment where huge pages can be used."""
    size = nbytes + HUGE_PAGE if nbytes >= HUGE_PAGE else max(nbytes, SLOT_ALIGNMENT)
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, ValueError) as error:
        msg = f"this machine has no {size} bytes of host memory to give: lower the capacity"
        raise ConfigurationError(msg) from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without transparent huge pages; slower, not wrong
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
