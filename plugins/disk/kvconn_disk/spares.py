"""Files of deleted objects whose blocks the next objects take.

Writing over blocks that a file has costs a file system nothing but the write; new blocks have to be
found, recorded and marked as written, and deleted ones given back, which on ext4 makes stores two
to three times slower than the disk.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from contextlib import suppress

from kvconn_disk.layout import SPARE

__all__ = ["Spares"]

_MOST = 256
_MOST_BYTES = 256 << 20


class Spares:
    """Of one namespace; processes find each other's.  Any thread."""

    def __init__(self, directory: str, token: str) -> None:
        self._directory = directory
        self._token = token
        self._numbers = itertools.count()
        self._known: deque[tuple[int, str]] = deque()
        """Size and path."""
        self._seen = 0
        """When the directory last changed, as far as it was looked at."""

    def keep(self, path: str, size: int) -> bool:
        """Make the file ``path`` of ``size`` bytes a spare one; ``False`` when it is to go."""
        if len(self._known) >= min(_MOST, _MOST_BYTES // max(size, 1)):
            return False
        spare = f"{self._directory}/{size}-{self._token}-{next(self._numbers)}{SPARE}"
        try:
            os.rename(path, spare)
        except OSError:
            return False
        self._known.append((size, spare))
        return True

    def take(self, size: int, to: str) -> bool:
        """Move one of ``size`` bytes to ``to``, if there is any."""
        if not self._known:
            self._look()
        with suppress(IndexError):
            while True:
                has, spare = self._known.popleft()
                if has == size:
                    with suppress(OSError):  # else somebody else took it
                        os.rename(spare, to)
                        return True
        return False

    def _look(self) -> None:
        """What others made spare, if anything changed."""
        with suppress(OSError, ValueError):
            changed = os.stat(self._directory).st_mtime_ns
            if changed != self._seen:
                self._seen = changed
                for name in os.listdir(self._directory)[:_MOST]:
                    self._known.append((int(name.partition("-")[0]), f"{self._directory}/{name}"))
