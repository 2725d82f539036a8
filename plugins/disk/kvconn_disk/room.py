"""Room in a directory: reserved before anything is written, settled afterwards."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from kvconn_disk.engines import Engine, others_alive
from kvconn_disk.evictor import Evictor
from kvconn_disk.layout import TEMPORARY, Home
from kvconn_disk.spares import Spares
from kvconn_disk.tree import bytes_of, walk
from kvconn_disk.usage import Usage

if TYPE_CHECKING:
    from kvconn_disk.backend import DiskConfig

__all__ = ["BLOCK", "GROWTH", "Begun", "Room", "Write", "rounded"]

BLOCK = 4096
GROWTH = 2 * BLOCK
"""What one new name may add to a directory: a block, and another one when it splits."""


class Write:
    """One object that is being stored."""

    __slots__ = ("aside", "at", "folder", "path", "size", "spare", "temporary")

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


class Begun(NamedTuple):
    """Writes that there is room for."""

    writes: list[Write]
    folders: dict[str, int]
    """Bytes of each directory before."""
    reserved: int


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
        self._closed = False
        self._numbers = itertools.count()
        if self.usage.begin(alone=not others_alive(root, self.engine.token)):
            self.usage.count(lambda: walk(root).bytes)

    def begin(self, writes: Sequence[Write]) -> Begun:
        """Reserve room for as many of ``writes`` as there is room for, and prepare these."""
        folders = {write.folder: _folder_bytes(write.folder) for write in writes}
        growth = len(writes) * GROWTH + BLOCK * sum(not old for old in folders.values())
        if not self.usage.reserve(growth):
            self.evictor.wake()
            return Begun([], folders, 0)
        for folder, old in folders.items():
            if not old:
                with suppress(OSError):  # then writing into it says why
                    os.mkdir(folder, 0o700)
        for write in writes:
            write.spare = self.spares.take(write.size, write.temporary)
        fresh = [write for write in writes if not write.spare]
        need = sum(rounded(write.size) for write in fresh)
        if not fresh or self.usage.reserve(need):
            begun = list(writes)
        else:
            self.evictor.wake()
            begun = [w for w in writes if w.spare or self.usage.reserve(rounded(w.size))]
            need = sum(rounded(write.size) for write in begun if not write.spare)
        for write in begun:
            self._hold_old(write)
        return Begun(begun, folders, growth + need)

    def _hold_old(self, write: Write) -> None:
        """Hold on to the file that the write will take the name from, if there is one."""
        # Never the name of a temporary file: what is written there would be the old object.
        aside = f"{write.path}.{self.engine.token}-old{next(self._numbers)}{TEMPORARY}"
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

    def end(self, begun: Begun, ends: Sequence[int]) -> None:
        """Settle what was reserved with what was taken."""
        taken = sum(max(0, _folder_bytes(folder) - old) for folder, old in begun.folders.items())
        for write, end in zip(begun.writes, ends, strict=True):
            if write.aside:
                self._let_go(write, replaced=not end)
            if not end and not write.spare:
                taken += _file_bytes(write.path, write.size)
            elif end and write.spare:
                self.usage.release(rounded(write.size))
        self.usage.settle(begun.reserved, taken)

    def close(self, deadline: float) -> None:
        """Leave the directory; a running eviction is waited for, ``deadline`` seconds at most."""
        if self._closed:
            return
        self._closed = True
        self.evictor.close(deadline)
        self.usage.end()
        self.usage.close()
        self.engine.close()


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
