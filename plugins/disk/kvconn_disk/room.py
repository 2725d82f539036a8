"""Room in a directory: reserved before anything is written, settled afterwards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kvconn_disk.engines import Engine, others_alive
from kvconn_disk.evictor import Evictor
from kvconn_disk.layout import TEMPORARY, Home
from kvconn_disk.spares import Spares
from kvconn_disk.tree import bytes_of, walk
from kvconn_disk.usage import Usage

if TYPE_CHECKING:
    from kvconn_disk.backend import DiskConfig

__all__ = ["BLOCK", "GROWTH", "Room", "Write", "rounded"]

BLOCK = 4096
GROWTH = 2 * BLOCK
"""What one new name may add to a directory: a block, and another one when it splits."""


class Write:
    """One object that is being stored."""

    __slots__ = ("aside", "at", "folder", "old", "path", "size", "spare", "temporary")

    def __init__(self, at: int, home: Home, name: bytes, size: int, temporary: str) -> None:
        self.at = at
        self.folder = home.folder_of(name)
        self.path = home.path_of(name)
        self.size = size
        self.temporary = temporary
        self.aside = ""
        """Another name of the file that was there before."""
        self.spare = False
        """It takes the blocks of a spare file."""
        self.old = 0
        """Bytes of its directory before."""


class Room:
    """Of a directory that can be written: who is in it, and how much it takes.  Any thread."""

    def __init__(self, root: str, home: Home, config: DiskConfig) -> None:
        capacity = int(config.capacity)
        self.engine = Engine(root)
        try:
            self.usage = Usage(root, capacity)
        except BaseException:
            self.engine.close()
            raise
        self.spares = Spares(home.spares, self.engine.token)
        self.evictor = Evictor(root, self.usage, int(config.low_watermark * capacity))
        self._root = root
        self._numbers = itertools.count()
        if self.usage.begin(alone=not others_alive(root, self.engine.token)):
            self.usage.count(lambda: walk(root).bytes)

    def begin(self, writes: Sequence[Write]) -> tuple[list[Write], int]:
        """Those that there is room for, and the bytes reserved for them."""
        for write in writes:
            write.old = _folder_bytes(write.folder)
            write.spare = self.spares.take(write.size, write.temporary)
        need = sum(_need(write) for write in writes)
        if self.usage.reserve(need):
            begun, reserved = list(writes), need
        else:
            begun = [write for write in writes if self.usage.reserve(_need(write))]
            reserved = sum(_need(write) for write in begun)
            self.evictor.wake()
            for write in writes:
                if write.spare and write not in begun:
                    self._drop_spare(write)
        for write in begun:
            self._make_way(write)
        return begun, reserved

    def _make_way(self, write: Write) -> None:
        """See that there is a directory, and hold on to what the write will take the name from."""
        with suppress(FileExistsError, FileNotFoundError):
            if not write.old:
                os.mkdir(write.folder, 0o700)
        aside = f"{write.path}.{self.engine.token}-{next(self._numbers)}{TEMPORARY}"
        with suppress(OSError):
            if os.access(write.path, os.F_OK):
                os.link(write.path, aside)
                write.aside = aside

    def _let_go(self, write: Write, *, replaced: bool) -> None:
        """Whoever holds the last link to a replaced file takes it off the counter."""
        with suppress(OSError):
            status = os.lstat(write.aside)
            os.unlink(write.aside)
            if replaced and status.st_nlink == 1:
                self.usage.release(bytes_of(status))

    def _drop_spare(self, write: Write) -> None:
        with suppress(OSError):
            os.unlink(write.temporary)
        self.usage.release(rounded(write.size))

    def end(self, begun: Sequence[Write], ends: Sequence[int], reserved: int) -> None:
        """Settle what was reserved with what was taken."""
        taken = 0
        for write, end in zip(begun, ends, strict=True):
            if write.aside:
                self._let_go(write, replaced=not end)
            taken += max(0, _folder_bytes(write.folder) - write.old)
            if not end and not write.spare:
                taken += _file_bytes(write.path, write.size)
            elif end and write.spare:
                self.usage.release(rounded(write.size))
        self.usage.settle(reserved, taken)

    def close(self, deadline: float) -> None:
        """Leave the directory; a running eviction is waited for, ``deadline`` seconds at most."""
        self.evictor.close(deadline)
        self.usage.end(alone=not others_alive(self._root, self.engine.token))
        self.usage.close()
        self.engine.close()


def _need(write: Write) -> int:
    """At most so many bytes more than before."""
    return (0 if write.spare else rounded(write.size)) + GROWTH + (0 if write.old else BLOCK)


def rounded(size: int) -> int:
    """What a file of ``size`` bytes takes."""
    return -(-size // BLOCK) * BLOCK


def _folder_bytes(folder: str) -> int:
    try:
        return bytes_of(os.stat(folder))
    except OSError:
        return 0


def _file_bytes(path: str, size: int) -> int:
    """What a stored object takes; as much as it should where it is gone already."""
    try:
        return max(bytes_of(os.stat(path)), rounded(size))
    except OSError:
        return rounded(size)
