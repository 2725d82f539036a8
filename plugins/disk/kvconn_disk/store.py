"""One file per object, written under another name and renamed: it is there whole or not at all.

::

    <path>/<namespace>/namespace.json     what the namespace means, for people
    <path>/<namespace>/<2 hex>/<id>.kv    an object; its name is its id, in hex
    <path>/<namespace>/<2 hex>/*.tmp      one that is being written
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kvconn.blockstore import BlockStore, Capabilities
from kvconn.errors import ConfigurationError
from kvconn.guard import Guard

if TYPE_CHECKING:
    from kvconn.identity import Namespace
    from kvconn_disk.backend import DiskConfig

__all__ = ["DiskStore"]

_OBJECT, _TEMPORARY = ".kv", ".tmp"
_ABANDONED_AFTER_S = 3600.0
"""Nobody takes an hour to write one object."""


class DiskStore(BlockStore):
    """Directory and files are created for their owner alone."""

    config: DiskConfig
    capabilities = Capabilities(persistent=True)

    def __init__(self, config: DiskConfig) -> None:
        super().__init__(config)
        self._guard = Guard("kvconn-disk")

    def open(self, namespace: Namespace) -> None:
        """Make the namespace's directory; a ``ConfigurationError`` when that cannot be."""
        self._home = Path(self.config.path) / namespace.digest.hex()
        try:
            _make_private(self._home)
            description = json.dumps(namespace.describe(), indent=2, default=str)
            self._write(self._home / "namespace.json", memoryview(description.encode()))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            path = str(self.config.path)
            shown = path if path.isprintable() else repr(path)
            msg = (
                f"disk: {shown} cannot be written ({why}): name a directory "
                "that this user may create and write"
            )
            raise ConfigurationError(msg) from None

    def exists(self, ids: Sequence[bytes]) -> list[bool]:
        return [self._path(name).exists() for name in ids]

    def get(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        return [self._get(name, buffer) for name, buffer in zip(ids, buffers, strict=True)]

    def put(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        return [self._put(name, buffer) for name, buffer in zip(ids, buffers, strict=True)]

    def delete(self, ids: Sequence[bytes]) -> list[bool]:
        return [_succeeds(os.unlink, self._path(name)) for name in ids]

    def scan(self) -> Iterable[bytes]:
        """Ids by time of last write; temporary files that nobody finished are removed."""
        found: list[tuple[float, bytes]] = []
        for path in (*self._home.glob(f"*{_TEMPORARY}"), *self._home.glob("??/*")):
            # Others share the directory: a file may be gone by now, or be none of ours.
            with suppress(OSError, ValueError):
                written = path.stat().st_mtime
                if path.suffix == _OBJECT:
                    name = bytes.fromhex(path.stem)
                    if path == self._path(name):  # else nobody would find it
                        found.append((written, name))
                elif path.suffix == _TEMPORARY and written < time.time() - _ABANDONED_AFTER_S:
                    path.unlink()
        return [name for _, name in sorted(found)]

    def _path(self, name: bytes) -> Path:
        text = name.hex()
        return self._home / text[-2:] / (text + _OBJECT)

    def _put(self, name: bytes, buffer: memoryview) -> bool:
        try:
            self._write(self._path(name), buffer)
        except OSError as error:
            self._guard.failed("put", error, "the object is not stored")
            return False
        return True

    def _get(self, name: bytes, buffer: memoryview) -> bool:
        try:
            with self._path(name).open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                return size == len(buffer) and _fill(file.fileno(), buffer)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._guard.failed("get", error, "the object is a miss")
            return False

    def _write(self, path: Path, buffer: memoryview) -> None:
        """All of ``buffer`` under ``path``, or nothing."""
        temporary = f"{path}.{os.getpid()}-{secrets.token_hex(8)}{_TEMPORARY}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            file = os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            _make_private(path.parent)
            file = os.open(temporary, flags, 0o600)
        try:
            try:
                while buffer:
                    buffer = buffer[os.write(file, buffer) :]
            finally:
                os.close(file)
            Path(temporary).replace(path)
        except BaseException:
            _succeeds(os.unlink, temporary)
            raise


def _make_private(directory: Path) -> None:
    """``mkdir -p`` whose every directory is its owner's alone: ``parents=True`` ignores a mode."""
    if not directory.parent.exists():
        _make_private(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def _fill(file: int, buffer: memoryview) -> bool:
    """Read until ``buffer`` is full; ``False`` when the file ends before."""
    while buffer:
        count = os.readv(file, [buffer])
        if not count:
            return False
        buffer = buffer[count:]
    return True


def _succeeds(call: Callable[..., object], *arguments: object) -> bool:
    try:
        call(*arguments)
    except OSError:
        return False
    return True
