"""The lines of a plain or gzipped text file, one at a time, with errors that name the place."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvconn.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedIOBase
    from pathlib import Path

GZIP_MAGIC = b"\x1f\x8b"
"""First two bytes of every gzip member (RFC 1952, section 2.3.1)."""

MAX_LINE_BYTES = 16 << 20
"""Longest line read, in bytes.  Without a bound, a file that is not text is one line in memory."""


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of ``path`` that are not blank, each with its number from 1.

    Holds one line and the file's buffer.  Raises :class:`~kvconn.errors.TraceError` where the
    file cannot be read, ends inside a gzip stream, is not UTF-8 or has an endless line.
    """
    number = 0
    try:
        with _opened(path) as stream:
            while raw := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                if not raw.isspace():
                    yield number, _text(raw, path, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"{path}, line {number + 1}: the gzip stream is cut or damaged: fetch the file again"
        raise TraceError(msg) from error
    except FileNotFoundError as error:
        msg = f"{path} does not exist: give the path of a .jsonl or .jsonl.gz trace"
        raise TraceError(msg) from error
    except IsADirectoryError as error:
        msg = f"{path} is a directory: give the path of one .jsonl or .jsonl.gz trace in it"
        raise TraceError(msg) from error
    except OSError as error:
        msg = f"{path} cannot be read ({error.strerror or error}): give a file that can be"
        raise TraceError(msg) from error


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    with path.open("rb") as stored:
        # Peeking, not seeking: a trace may come through a pipe.
        if stored.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            with gzip.GzipFile(fileobj=stored) as unpacked:
                yield unpacked
        else:
            yield stored


def _text(raw: bytes, path: Path, number: int) -> str:
    if len(raw) > MAX_LINE_BYTES:
        msg = (
            f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes: "
            "give a trace with one request per line"
        )
        raise TraceError(msg)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        msg = (
            f"{path}, line {number}: not UTF-8 text (byte {error.start} of the line): "
            "give a .jsonl or .jsonl.gz trace saved as UTF-8"
        )
        raise TraceError(msg) from error
