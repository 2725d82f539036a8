"""Whether a directory's file system really lets the page cache be passed by."""

from __future__ import annotations

import mmap
import os
import secrets
from contextlib import suppress

__all__ = ["supports_direct"]

_PAGE = 4096


def supports_direct(directory: str) -> bool:
    """Write and read back one block; some file systems accept the flag and fail the call."""
    flag = getattr(os, "O_DIRECT", 0)
    path = f"{directory}/.direct-{secrets.token_hex(8)}"
    if not flag:
        return False
    with mmap.mmap(-1, _PAGE) as out, mmap.mmap(-1, _PAGE) as back:
        out.write(secrets.token_bytes(_PAGE))
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flag | os.O_CLOEXEC, 0o600)
            try:
                written = os.pwritev(file, [out], 0)
                read = os.preadv(file, [back], 0)
            finally:
                os.close(file)
        except OSError:
            return False
        finally:
            with suppress(OSError):
                os.unlink(path)
        return written == read == _PAGE and out[:] == back[:]
