"""Makes room in a directory that several engines fill, whichever of them used it least recently.

An engine that is alone evicts by its own policy before it comes to this.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from kvconn.threads import Background
from kvconn_disk.layout import ENGINES
from kvconn_disk.tree import Tree, walk
from kvconn_disk.usage import Usage

__all__ = ["Evictor"]

_REST_S = 1.0
"""Between two walks over a directory."""


class Evictor:
    """One background thread at a time, over all processes."""

    def __init__(self, root: str, usage: Usage, low: int) -> None:
        """``low``: bytes in use at which it stops."""
        self._root = root
        self._usage = usage
        self._low = low
        self._work: Background | None = None
        self._not_before = 0.0
        self.evicted = 0

    def wake(self) -> None:
        """Somebody found no room.  Returns at once."""
        running = self._work is not None and self._work.running
        if not running and time.monotonic() >= self._not_before:
            self._not_before = time.monotonic() + _REST_S
            self._work = Background(self.run, "evict")

    def run(self) -> None:
        """Count what is there, and go down to the low watermark."""
        file = os.open(f"{self._root}/{ENGINES}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process is at it
        else:
            self._make_room(self._counted())
        finally:
            os.close(file)

    def _counted(self) -> Tree:
        tree = Tree()

        def there() -> int:
            nonlocal tree
            tree = walk(self._root)
            return tree.bytes

        self._usage.count(there)
        return tree

    def _make_room(self, tree: Tree) -> None:
        doomed = [*tree.spares, *((path, size) for _, path, size in sorted(tree.objects))]
        for path, size in doomed:
            if self._usage.used <= self._low:
                return
            with suppress(OSError):
                os.unlink(path)
                self._usage.release(size)
                self.evicted += 1

    def close(self, deadline: float) -> None:
        """Wait for what runs, ``deadline`` seconds at most."""
        if self._work is not None:
            self._work.join(deadline)
