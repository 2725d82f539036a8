"""All that lies in a directory, seen in one walk that also collects what dead processes left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from kvconn_disk.engines import is_alive
from kvconn_disk.layout import OBJECT, SPARE, TEMPORARY, token_of

__all__ = ["Tree", "bytes_of", "remove_leftover", "walk"]


def bytes_of(status: os.stat_result) -> int:
    """What the file system says that it takes."""
    return status.st_blocks * 512


@dataclass(slots=True)
class Tree:
    """What a walk found."""

    bytes: int = 0
    """Of everything, directories included."""
    objects: list[tuple[float, str, int]] = field(default_factory=list)
    """Time of last use, path, bytes."""
    spares: list[tuple[str, int]] = field(default_factory=list)


def walk(root: str) -> Tree:
    """Raises ``OSError`` when ``root`` cannot be read; what vanishes meanwhile is passed over."""
    tree = Tree(bytes_of(os.stat(root)))
    for entry in _entries(root):
        _add(tree, root, entry)
    return tree


def _entries(directory: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        yield from entries


def _add(tree: Tree, root: str, entry: os.DirEntry[str]) -> None:
    with suppress(OSError):
        if entry.name.endswith(TEMPORARY) and remove_leftover(root, entry.path):
            return
        status = entry.stat(follow_symlinks=False)
        size = bytes_of(status)
        tree.bytes += size
        if entry.name.endswith(OBJECT):
            tree.objects.append((status.st_mtime, entry.path, size))
        elif entry.name.endswith(SPARE):
            tree.spares.append((entry.path, size))
        elif entry.is_dir(follow_symlinks=False):
            for below in _entries(entry.path):
                _add(tree, root, below)


def remove_leftover(root: str, path: str) -> bool:
    """Remove a temporary file whose writer is dead; whether it was one."""
    if is_alive(root, token_of(os.path.basename(path))):
        return False
    with suppress(OSError):
        os.unlink(path)
        return True
    return False
