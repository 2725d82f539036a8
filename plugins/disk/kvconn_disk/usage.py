"""How many bytes a directory takes, agreed upon by every process in it.

A counter in a small file, changed under a lock.  It is never too low: what is about to be written
is added before, what is deleted is subtracted after.  A process that dies in between leaves it too
high, which the next count mends.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvconn_disk.layout import USAGE

__all__ = ["Usage"]

_FIELDS = struct.Struct("<8sQQQQQ")
"""Magic; bytes in use; of these reserved and not settled; added since a count began; open stores;
state."""
_MAGIC = b"kvusage1"
_CLEAN, _DIRTY, _COUNTING = 0, 1, 2


class _Figures:
    __slots__ = ("added", "opens", "reserved", "state", "used")

    def __init__(self, used: int, reserved: int, added: int, opens: int, state: int) -> None:
        self.used, self.reserved, self.added = used, reserved, added
        self.opens, self.state = opens, state

    def packed(self) -> bytes:
        return _FIELDS.pack(_MAGIC, self.used, self.reserved, self.added, self.opens, self.state)


class Usage:
    """The counter of one directory.  Any thread; raises ``OSError`` where it cannot be kept."""

    def __init__(self, root: str, capacity: int) -> None:
        self._path = f"{root}/{USAGE}"
        self._capacity = capacity
        self._lock = threading.Lock()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._open()
        except BaseException:
            os.close(self._file)
            raise

    def _open(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            status = os.fstat(self._file)
            self._inode = status.st_ino
            if status.st_size < _FIELDS.size:
                # Nobody knows what is there: no room until it has been counted.
                os.pwrite(self._file, _Figures(self._capacity, 0, 0, 0, _DIRTY).packed(), 0)
            self._map = mmap.mmap(self._file, _FIELDS.size)
            if self._map[:8] != _MAGIC:
                self._map[:] = _Figures(self._capacity, 0, 0, 0, _DIRTY).packed()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def current(self) -> bool:
        """Whether this is still the file that others see: the directory may have gone."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except OSError:
            return False

    @contextmanager
    def _locked(self) -> Iterator[_Figures]:
        with self._lock:  # between threads; the other one is between processes
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                figures = _Figures(*_FIELDS.unpack(self._map[:])[1:])
                yield figures
                self._map[:] = figures.packed()
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    @property
    def used(self) -> int:
        """Bytes in use, reservations included."""
        return int(_FIELDS.unpack(self._map[:])[1])

    def reserve(self, size: int) -> bool:
        """Set ``size`` bytes aside; ``False`` when there is no room."""
        with self._locked() as figures:
            if figures.used + size > self._capacity:
                return False
            figures.used += size
            figures.reserved += size
            figures.added += size
            return True

    def settle(self, reserved: int, taken: int) -> None:
        """Of ``reserved`` bytes, ``taken`` were; more than reserved if it could not be foreseen."""
        with self._locked() as figures:
            figures.used = max(0, figures.used + taken - reserved)
            figures.reserved = max(0, figures.reserved - reserved)
            figures.added += max(0, taken - reserved)

    def release(self, size: int) -> None:
        """So many bytes are gone."""
        if size:
            with self._locked() as figures:
                figures.used = max(0, figures.used - size)

    def begin(self, *, alone: bool) -> bool:
        """A store opens; whether it must count: somebody died here, or nobody ever counted."""
        with self._locked() as figures:
            if alone:
                figures.reserved = figures.opens = 0
            must_count = figures.state != _CLEAN and alone
            figures.opens += 1
            figures.state = max(figures.state, _DIRTY)
            return must_count

    def end(self) -> None:
        """A store closes; the last one leaves the counter as good as counted, if nobody died."""
        with self._locked() as figures:
            figures.opens = max(0, figures.opens - 1)
            if not figures.opens and not figures.reserved and figures.state == _DIRTY:
                figures.state = _CLEAN

    def count(self, bytes_there: Callable[[], int]) -> None:
        """Set the counter to what is there, while others go on.

        What is added meanwhile may be counted twice, what is deleted not at all: never too low.
        """
        with self._locked() as figures:
            figures.added = figures.reserved
            figures.state = _COUNTING
        there = bytes_there()
        with self._locked() as figures:
            figures.used = there + figures.added
            figures.added = 0
            figures.state = _DIRTY

    def close(self) -> None:
        """Give the file back.  May be called twice."""
        with self._lock:
            if self._file >= 0:
                self._map.close()
                os.close(self._file)
                self._file = -1
