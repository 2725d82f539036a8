"""Who uses a directory now: each open store holds a lock that dies with its process."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import suppress

from kvconn_disk.layout import ENGINES

__all__ = ["Engine", "is_alive", "others_alive"]


class Engine:
    """The mark of one open store.  Raises ``OSError`` where it cannot be set."""

    def __init__(self, root: str) -> None:
        self.token = secrets.token_hex(8)
        self._path = f"{root}/{ENGINES}/{self.token}"
        beside = f"{root}/{ENGINES}/.{self.token}"
        with suppress(FileExistsError):
            os.mkdir(f"{root}/{ENGINES}", 0o700)
        self._file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(beside, self._path)  # locked before anybody can look
        except OSError:
            self.close()
            with suppress(OSError):
                os.unlink(beside)
            raise

    def close(self) -> None:
        """Take the mark away.  May be called twice."""
        if self._file >= 0:
            with suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
            self._file = -1


def is_alive(root: str, token: str) -> bool:
    """Whether the store with this mark is open; a dead one's mark is removed."""
    path = f"{root}/{ENGINES}/{token}"
    if not token or "/" in token:
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # who knows
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(file)


def others_alive(root: str, token: str) -> bool:
    """Whether any other store is open here."""
    try:
        names = os.listdir(f"{root}/{ENGINES}")
    except OSError:
        return False
    alive = [is_alive(root, name) for name in names if name.lstrip(".") != token]
    return any(alive)  # of all: those of the dead are removed
