"""What lies in a store's directory: counted, verified, repaired, while engines use it or not."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kvconn.blockstore.seal import opened
from kvconn_disk.files import read_unmarked
from kvconn_disk.layout import DESCRIPTION, ENGINES, Home
from kvconn_disk.tree import bytes_of, walk
from kvconn_disk.usage import Usage

__all__ = ["Inspection", "SpaceFound", "inspect_directory"]

_ATTEMPTS = 2
"""A file that is found bad is looked at again: an engine may have taken it for another object."""


@dataclass(slots=True)
class SpaceFound:
    """One namespace."""

    digest: str
    meaning: dict[str, object]
    """Its description's fields; empty when that cannot be read."""
    objects: int = 0
    bytes: int = 0
    """Of its objects, as the file system counts."""
    oldest_use: float | None = None
    """Seconds since the epoch."""
    newest_use: float | None = None
    verified: int = 0
    bad: list[str] = field(default_factory=list)
    """Files that are not what they were stored as."""
    removed: int = 0


@dataclass(slots=True)
class Inspection:
    """One directory."""

    path: str
    bytes: int
    """Of everything in it, directories included."""
    spares: int
    engines: int
    """Stores that have it open now."""
    namespaces: list[SpaceFound]

    @property
    def bad(self) -> int:
        """Objects that were found bad and are still there."""
        return sum(len(space.bad) - space.removed for space in self.namespaces)


def inspect_directory(
    root: Path,
    *,
    verify: bool = False,
    repair: bool = False,
    on_object: Callable[[int, int], None] = lambda _done, _all: None,
) -> Inspection:
    """Look at everything once; ``verify`` reads every object, ``repair`` removes what is bad.

    Collects temporary files whose writers are dead, as every engine does.  ``on_object`` hears how
    many objects of how many were verified.  Raises ``OSError`` when ``root`` cannot be read.
    """
    tree = walk(str(root))
    spaces = {space.digest: space for space in _spaces(root)}
    for used, path, size in tree.objects:
        space = spaces.get(Path(path).parent.parent.name)
        if space is not None:
            space.objects += 1
            space.bytes += size
            space.oldest_use = min(used, space.oldest_use or used)
            space.newest_use = max(used, space.newest_use or used)
    if verify or repair:
        paths = [path for _, path, _ in sorted(tree.objects)]
        for done, path in enumerate(paths, 1):
            space = spaces.get(Path(path).parent.parent.name)
            if space is not None:
                _verify(root, space, path, repair=repair)
            on_object(done, len(paths))
    engines = [name for name in _names(root / ENGINES) if not name.startswith(".")]
    return Inspection(str(root), tree.bytes, len(tree.spares), len(engines), list(spaces.values()))


def _spaces(root: Path) -> Iterator[SpaceFound]:
    for name in sorted(_names(root)):
        described = root / name / DESCRIPTION
        if described.exists():
            meaning: dict[str, object] = {}
            with suppress(OSError, ValueError):
                meaning = json.loads(described.read_text())
            yield SpaceFound(name, meaning)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _verify(root: Path, space: SpaceFound, path: str, *, repair: bool) -> None:
    good = _is_good(root, space.digest, path)
    if good is None:
        return  # gone meanwhile
    space.verified += 1
    if good:
        return
    space.bad.append(path)
    if repair:
        with suppress(OSError):
            size = bytes_of(os.lstat(path))
            os.unlink(path)
            space.removed += 1
            _release(root, size)


def _is_good(root: Path, digest: str, path: str) -> bool | None:
    """``None`` when it is gone."""
    name = os.path.basename(path)
    for _ in range(_ATTEMPTS):
        try:
            size = os.stat(path).st_size
        except OSError:
            return None
        if not size:
            return False
        with mmap.mmap(-1, size) as memory, memoryview(memory) as buffer:
            end = read_unmarked(path.encode(), buffer)
            sealed = None if end else opened(buffer)
        if sealed is not None:
            with suppress(ValueError):
                return sealed == Home(str(root), bytes.fromhex(digest)).id_of(name)
    return False


def _release(root: Path, size: int) -> None:
    usage = Usage(str(root), 0)
    usage.release(size)
    usage.close()
