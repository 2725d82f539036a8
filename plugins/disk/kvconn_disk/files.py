"""Whole files in and out, in batches, one number per file: 0 or an ``errno``.

The pure way.  ``kvconn-native`` has functions of the same names and arguments that do a batch in
one call on threads of its own, without the interpreter lock; :data:`io` is the better of the two.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Protocol, cast

__all__ = ["IO", "PureIO", "best_io", "read_unmarked"]

_DIRECT = getattr(os, "O_DIRECT", 0)
_YOUNG_S = 60.0
"""A file that was used less long ago does not get another time of use."""
_READS = 3
"""A file that keeps changing while it is read is not there."""


class IO(Protocol):
    """What both ways offer.  Any thread."""

    def read_files(
        self, paths: list[bytes], buffers: list[memoryview], direct: bool, threads: int
    ) -> list[int]:
        """Fill each buffer; ``EBADMSG`` when a file is of another size.  Marks it as used."""

    def write_files(
        self,
        temporaries: list[bytes],
        paths: list[bytes],
        buffers: list[memoryview],
        direct: bool,
        sync: bool,
        threads: int,
    ) -> list[int]:
        """Write each buffer to its temporary file, new or not, and rename that to its path.

        On failure the temporary file is gone.
        """


class PureIO:
    """One file after the other, on the caller's thread."""

    def read_files(
        self, paths: list[bytes], buffers: list[memoryview], direct: bool, threads: int
    ) -> list[int]:
        """See :class:`IO`."""
        del threads
        return [_errno(_read, p, b, direct) for p, b in zip(paths, buffers, strict=True)]

    def write_files(
        self,
        temporaries: list[bytes],
        paths: list[bytes],
        buffers: list[memoryview],
        direct: bool,
        sync: bool,
        threads: int,
    ) -> list[int]:
        """See :class:`IO`."""
        del threads
        return [
            _errno(_write, temporary, path, buffer, direct, sync)
            for temporary, path, buffer in zip(temporaries, paths, buffers, strict=True)
        ]


def best_io() -> tuple[IO, bool]:
    """``(how files are moved, whether a batch is moved in parallel)``."""
    try:
        return cast("IO", import_module("kvconn_native")), True
    except ImportError:
        return PureIO(), False


def _errno(call: object, *arguments: object) -> int:
    try:
        call(*arguments)  # type: ignore[operator]
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def read_unmarked(path: bytes, buffer: memoryview) -> int:
    """As :meth:`IO.read_files`, without a trace: 0 or an ``errno``."""
    return _errno(_read, path, buffer, 0, 0)


def _read(path: bytes, buffer: memoryview, direct: bool, mark: int = 1) -> None:
    """A file that was deleted meanwhile may have become another object, under the same reader."""
    for _ in range(_READS):
        file = _open(path, os.O_RDONLY, direct)
        try:
            before = os.fstat(file)
            if before.st_size != len(buffer):
                raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
            _fill(file, buffer)
            if os.fstat(file).st_ctime_ns == before.st_ctime_ns:
                if mark:
                    _mark_used(file, before)
                return
        finally:
            os.close(file)
    raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))


def _fill(file: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        count = _undirected(file, os.preadv, [buffer[done:]], done)
        if not count:
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        done += count


def _mark_used(file: int, status: os.stat_result) -> None:
    """As file systems do with ``relatime``; also when the clock jumped back."""
    if abs(time.time() - status.st_mtime) > _YOUNG_S:
        with suppress(OSError):
            os.utime(file)


def _write(temporary: bytes, path: bytes, buffer: memoryview, direct: bool, sync: bool) -> None:
    try:
        file = _open(temporary, os.O_WRONLY | os.O_CREAT, direct)
        try:
            _allocate(file, len(buffer))
            done = 0
            while done < len(buffer):
                done += _undirected(file, os.pwritev, [buffer[done:]], done)
            if sync:
                os.fdatasync(file)
        finally:
            os.close(file)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _allocate(file: int, size: int) -> None:
    """Room for all of it first: a full disk is known before anything is written."""
    if os.fstat(file).st_size == size:
        return
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
    os.ftruncate(file, size)


def _open(path: bytes, flags: int, direct: bool) -> int:
    if direct:
        try:
            return os.open(path, flags | _DIRECT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _undirected(file: int, move: object, buffers: Sequence[memoryview], offset: int) -> int:
    """One call; once more through the page cache where alignment does not allow to pass it by."""
    try:
        return int(move(file, buffers, offset))  # type: ignore[operator]
    except OSError as error:
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        if error.errno != errno.EINVAL or not flags & _DIRECT:
            raise
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~_DIRECT)
        return int(move(file, buffers, offset))  # type: ignore[operator]
