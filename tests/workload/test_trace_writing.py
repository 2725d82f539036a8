"""Writing a trace: what was written is read back, and the same bytes come out each time."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconn.workload import TraceRequest, read_trace, write_trace

if TYPE_CHECKING:
    from pathlib import Path

REQUESTS = [TraceRequest(0, 600, 5, (0, 1)), TraceRequest(3, 512, 6, (0,))]


@st.composite
def requests(draw: st.DrawFn, block_tokens: int) -> TraceRequest:
    ids = tuple(draw(st.lists(st.integers(0, 2**128), max_size=20)))
    unfilled = draw(st.integers(0, block_tokens - 1)) if ids else 0
    time, answer = draw(st.tuples(st.integers(0, 2**63), st.integers(0, 2**31)))
    return TraceRequest(time, len(ids) * block_tokens - unfilled, answer, ids, block_tokens)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
@pytest.mark.parametrize("block_tokens", [1, 16, 512])
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_what_is_written_is_read_back(
    tmp_path: Path, name: str, block_tokens: int, data: st.DataObject
) -> None:
    written = data.draw(st.lists(requests(block_tokens), min_size=1, max_size=10))
    write_trace(tmp_path / name, written)
    assert list(read_trace(tmp_path / name, block_tokens=block_tokens)) == written


def test_a_line_has_the_fields_of_the_published_traces(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.jsonl", REQUESTS)
    first = json.loads((tmp_path / "trace.jsonl").read_text().splitlines()[0])
    assert first == {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}


def test_only_a_name_that_ends_in_gz_is_gzipped(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.gz.jsonl", REQUESTS)
    write_trace(tmp_path / "a.jsonl.gz", REQUESTS)
    plain = (tmp_path / "a.gz.jsonl").read_bytes()
    assert plain.startswith(b'{"timestamp":0,')
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()) == plain


def test_neither_time_nor_name_is_in_a_gzipped_trace(tmp_path: Path) -> None:
    names = [tmp_path / "one.gz", tmp_path / "other.gz"]
    for name in names:
        write_trace(name, REQUESTS)
    one, other = (name.read_bytes() for name in names)
    assert one == other
    assert one[3] == 0  # no name (RFC 1952, FLG)
    assert one[4:8] == bytes(4)  # no time (MTIME)


def test_requests_are_written_as_they_come(tmp_path: Path) -> None:
    def endless() -> object:
        while True:
            yield REQUESTS[0]
            if (tmp_path / "trace.jsonl").stat().st_size:
                raise InterruptedError

    with pytest.raises(InterruptedError):
        write_trace(tmp_path / "trace.jsonl", endless())  # type: ignore[arg-type]
