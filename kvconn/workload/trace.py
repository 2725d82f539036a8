"""Requests, and the file format that carries them: one JSON object per line.

The format is that of the traces published with Mooncake (Qin et al., *Mooncake: Trading More
Storage for Less Computation*, USENIX FAST 2025)::

    {"timestamp": 0, "input_length": 1300, "output_length": 500, "hash_ids": [0, 1, 2]}

``timestamp`` is in milliseconds from the start of the trace, lengths are in tokens, and
``hash_ids`` names one block of 512 tokens each, in order.  Equal ids mean equal content *and*
equal content before it.  Other fields of the object are ignored.
"""

from __future__ import annotations

import gzip
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from kvconn.errors import TraceError
from kvconn.workload._lines import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from os import PathLike

BLOCK_TOKENS = 512
"""Tokens that one id names in the published traces."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a workload; a ``ValueError`` says which number cannot be."""

    timestamp_ms: int
    """Arrival, in milliseconds from the start of the trace."""
    input_length: int
    """Tokens of the prompt, everything said before included."""
    output_length: int
    """Tokens of the answer."""
    hash_ids: tuple[int, ...]
    """One id per block of the prompt, the last one possibly partial."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens per id; not part of a line, so a reader must be told when it is not 512."""

    def __post_init__(self) -> None:
        for name in ("timestamp_ms", "input_length", "output_length"):
            if getattr(self, name) < 0:
                msg = f"{name.removesuffix('_ms')} is negative ({getattr(self, name)})"
                raise ValueError(msg)
        if min(self.hash_ids, default=0) < 0:
            msg = f"an id in hash_ids is negative ({min(self.hash_ids)})"
            raise ValueError(msg)
        if self.block_tokens < 1:
            msg = f"blocks of {self.block_tokens} tokens do not exist: pass block_tokens >= 1"
            raise ValueError(msg)
        needed = -(-self.input_length // self.block_tokens)
        if len(self.hash_ids) != needed:
            msg = (
                f"input_length {self.input_length} needs {needed} hash_ids of "
                f"{self.block_tokens} tokens, not {len(self.hash_ids)} (is block_tokens right?)"
            )
            raise ValueError(msg)

    @property
    def whole_blocks(self) -> tuple[int, ...]:
        """The ids that name whole blocks: a partial last block is never stored."""
        return self.hash_ids[: self.input_length // self.block_tokens]


class _Line(msgspec.Struct, rename={"timestamp_ms": "timestamp"}, gc=False):
    """The fields as a line spells them; their types are checked while it is decoded."""

    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_DECODER = msgspec.json.Decoder(_Line)
_ENCODER = msgspec.json.Encoder()
_NOT_JSON = (msgspec.DecodeError, RecursionError)
_NOT_JSON_WORD = re.compile(r"\b(NaN|Infinity)\b")


def read_trace(
    path: str | PathLike[str], *, block_tokens: int = BLOCK_TOKENS
) -> Iterator[TraceRequest]:
    """Stream the requests of a plain or gzipped trace, in the file's order.

    Gzip is recognised by content, not by name.  Blank lines are skipped.  The file is opened by
    the first ``next``, never held whole, and closed when the iterator is exhausted or closed.
    Raises :class:`~kvconn.errors.TraceError` with file, line, reason and remedy at the first
    line that is not a request, and at the end of a file without any.
    """
    if block_tokens < 1:
        msg = f"blocks of {block_tokens} tokens do not exist: pass block_tokens >= 1"
        raise ValueError(msg)
    return _read(Path(path), block_tokens)


def _read(path: Path, block_tokens: int) -> Iterator[TraceRequest]:
    first = True
    for number, text in read_lines(path):
        yield _request(text, block_tokens, f"{path}, line {number}", first=first)
        first = False
    if first:
        msg = f"{path} has no requests: give a .jsonl or .jsonl.gz trace with one request per line"
        raise TraceError(msg)


def _request(text: str, block_tokens: int, place: str, *, first: bool) -> TraceRequest:
    try:
        line = _DECODER.decode(text)
        return TraceRequest(
            line.timestamp_ms, line.input_length, line.output_length, line.hash_ids, block_tokens
        )
    except (ValueError, RecursionError) as error:
        remedy = "give a trace, one JSON object per line" if first else "remove it"
        msg = f"{place}: {_reason(text, error)}: correct the line or {remedy}"
        raise TraceError(msg) from error


def _reason(text: str, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError) or not isinstance(error, _NOT_JSON):
        return str(error)
    # The decoder names a byte only; these words are what Python's own json module writes.
    if word := _NOT_JSON_WORD.search(text):
        return f"not JSON, which has no {word[0]}"
    return f"not JSON ({error})"


def write_trace(path: str | PathLike[str], requests: Iterable[TraceRequest]) -> None:
    """Write ``requests`` as lines that :func:`read_trace` reads; gzipped if ``path`` ends in .gz.

    The same requests give the same bytes, also gzipped (within one version of zlib): neither name
    nor time is stored.
    """
    path = Path(path)
    with ExitStack() as stack:
        stored = stack.enter_context(path.open("wb"))
        stream: IO[bytes] | gzip.GzipFile = stored
        if path.suffix == ".gz":
            stream = stack.enter_context(gzip.GzipFile("", "wb", 9, stored, mtime=0))
        for r in requests:
            line = _Line(r.timestamp_ms, r.input_length, r.output_length, r.hash_ids)
            stream.write(_ENCODER.encode(line) + b"\n")
