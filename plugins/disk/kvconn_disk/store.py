"""Objects as files, each written under another name and renamed: there whole or not at all."""

from __future__ import annotations

import errno
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvconn.blockstore import BlockStore, Capabilities
from kvconn.errors import ConfigurationError
from kvconn.guard import Guard
from kvconn_disk.direct import supports_direct
from kvconn_disk.files import best_io
from kvconn_disk.layout import DESCRIPTION, TEMPORARY, Home
from kvconn_disk.room import BLOCK, GROWTH, Room, Write, rounded
from kvconn_disk.tree import bytes_of, remove_leftover

if TYPE_CHECKING:
    from kvconn.identity import Namespace
    from kvconn_disk.backend import DiskConfig

__all__ = ["DiskStore"]

_NAME_BYTES = 256
"""What a name takes of its directory, with room that is not used."""
_FOLDERS = 256
_THREADS = 8
_AGAIN_S = 1.0
"""Between two attempts to make a directory that is not there or cannot be written."""


class DiskStore(BlockStore):
    """Directory and files are created for their owner alone.  Any number of processes share it."""

    config: DiskConfig

    def __init__(self, config: DiskConfig) -> None:
        super().__init__(config)
        self._io, parallel = best_io()
        self.capabilities = Capabilities(shared=config.shared, persistent=True, parallel=parallel)
        self._guard = Guard("kvconn-disk")
        self._root = os.path.abspath(config.path)
        self._direct = False
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._ready: Room | None = None
        self._not_before = 0.0

    def objects_that_fit(self, capacity: int, object_bytes: int) -> int:
        """Directories and what is reserved for those that grow count, too."""
        each, room = rounded(object_bytes) + _NAME_BYTES, max(0, capacity - 16 * BLOCK)
        folder = BLOCK + GROWTH
        few = min(_FOLDERS, room // (each + folder))  # a directory for each of them
        return few + max(0, room - few * (each + folder)) // each if few == _FOLDERS else few

    # -- opening ---------------------------------------------------------------------------

    def open(self, namespace: Namespace) -> None:
        """Make the namespace's directory.

        A ``ConfigurationError`` when it is not there and cannot be made.  One that is there and
        cannot be written now, full or read-only, serves what it has.
        """
        self._space = namespace
        self._home = Home(self._root, namespace.digest)
        try:
            self._prepare()
        except (OSError, ValueError) as error:
            if not os.access(self._root, os.R_OK | os.X_OK) or isinstance(error, ValueError):
                raise ConfigurationError(self._explain(error)) from None
            self._guard.failed("open", error, "nothing is stored until it can be written")

    def _explain(self, error: Exception) -> str:
        why = getattr(error, "strerror", None) or error
        path = str(self.config.path)
        shown = path if path.isprintable() else repr(path)
        return (
            f"disk: {shown} cannot be written ({why}): name a directory "
            "that this user may create and write"
        )

    def _prepare(self) -> None:
        """Everything that storing needs; raises where it cannot be had."""
        _make_private(Path(self._home.spares))
        described = Path(self._home.path, DESCRIPTION)
        if not described.exists():
            text = json.dumps(self._space.describe(), indent=2, default=str)
            beside = Path(f"{described}.{os.getpid()}-{next(self._numbers)}{TEMPORARY}")
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(text)
            beside.replace(described)
        self._direct = self.config.direct == "auto" and supports_direct(self._home.path)
        self._ready = Room(self._root, self._home, self.config)

    def _usable(self) -> Room | None:
        """What storing needs, made anew when the directory has gone; ``None`` if it cannot be."""
        ready = self._ready
        if ready is not None and ready.usage.current:
            return ready
        with self._lock:
            if self._ready is ready and time.monotonic() >= self._not_before:
                self._not_before = time.monotonic() + _AGAIN_S
                try:
                    if ready is not None:
                        ready.close(0.0)
                    self._ready = None
                    self._prepare()
                except (OSError, ValueError) as error:
                    self._guard.failed("put", error, "nothing is stored until it can be written")
            return self._ready

    # -- objects ---------------------------------------------------------------------------

    def exists(self, ids: Sequence[bytes]) -> list[bool]:
        return [os.access(self._home.path_of(name), os.F_OK) for name in ids]

    def get(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        paths = [self._home.path_of(name) for name in ids]
        ends = self._io.read_files(
            [path.encode() for path in paths], list(buffers), self._direct, _THREADS
        )
        for path, end in zip(paths, ends, strict=True):
            if end == errno.EBADMSG:  # of another size: none of ours any more (F5)
                self._remove(path)
        self._tell("get", ends, "they are misses", but=(errno.ENOENT, errno.EBADMSG))
        return [not end for end in ends]

    def put(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        ready = self._usable()
        if ready is None:
            return [False] * len(ids)
        ends = [errno.EDQUOT] * len(ids)
        writes = [
            Write(i, self._home, name, len(buffer), self._temporary(ready, name))
            for i, (name, buffer) in enumerate(zip(ids, buffers, strict=True))
        ]
        begun = ready.begin(writes)
        answers = self._io.write_files(
            [write.temporary.encode() for write in begun.writes],
            [write.path.encode() for write in begun.writes],
            [buffers[write.at] for write in begun.writes],
            self._direct,
            self.config.sync == "close",
            _THREADS,
        )
        for write, end in zip(begun.writes, answers, strict=True):
            ends[write.at] = end
        ready.end(begun, answers)
        self._tell("put", ends, "they are not stored", but=(errno.EDQUOT,))
        return [not end for end in ends]

    def _temporary(self, ready: Room, name: bytes) -> str:
        number = next(self._numbers)
        return f"{self._home.path_of(name)}.{ready.engine.token}-{number}{TEMPORARY}"

    def delete(self, ids: Sequence[bytes]) -> list[bool]:
        return [self._remove(self._home.path_of(name), spare=True) for name in ids]

    def _remove(self, path: str, *, spare: bool = False) -> bool:
        try:
            status = os.lstat(path)
            ready = self._ready
            if spare and ready is not None and ready.spares.keep(path, status.st_size):
                return True
            os.unlink(path)
        except FileNotFoundError:
            return False
        if ready is not None:
            ready.usage.release(bytes_of(status))
        return True

    def scan(self) -> Iterator[bytes]:
        """Ids by time of last use; temporary files whose writers are dead are removed."""
        found: list[tuple[float, bytes]] = []
        for folder in self._home.folders:
            with suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    # Others share the directory: a file may be gone by now, or be none of ours.
                    with suppress(OSError, ValueError):
                        if entry.name.endswith(TEMPORARY):
                            remove_leftover(self._root, entry.path)
                            continue
                        name = self._home.id_of(entry.name)
                        if self._home.path_of(name) == entry.path:  # else nobody would find it
                            found.append((entry.stat().st_mtime, name))
        found.sort()
        return iter([name for _, name in found])

    def size(self) -> int | None:
        return None if self._ready is None else self._ready.usage.used

    def close(self) -> None:
        if self._ready is not None:
            self._ready.close(1.0)

    def _tell(self, call: str, ends: Sequence[int], consequence: str, but: Sequence[int]) -> None:
        for end in set(ends) - {0, *but}:
            self._guard.failed(call, OSError(end, os.strerror(end)), consequence)


def _make_private(directory: Path) -> None:
    """``mkdir -p`` whose every directory is its owner's alone: ``parents=True`` ignores a mode."""
    if not directory.parent.exists():
        _make_private(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)
