"""Reading a trace: what is a request, what is not, and what is said about it."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconn.errors import TraceError
from kvconn.workload import TraceRequest, read_trace
from kvconn.workload._lines import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIELDS: dict[str, Any] = {
    "timestamp": 27,
    "input_length": 1300,
    "output_length": 9,
    "hash_ids": [4, 5, 6],
}
REQUEST = TraceRequest(27, 1300, 9, (4, 5, 6))
GOOD = json.dumps(FIELDS).encode() + b"\n"


def line(**changes: object) -> bytes:
    return json.dumps(FIELDS | changes).encode() + b"\n"


def trace(tmp_path: Path, content: bytes, name: str = "trace.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def complaint(path: Path, after: int = 0) -> str:
    """What the reader says, having given ``after`` requests; always names the file, in one line."""
    requests = read_trace(path)
    for _ in range(after):
        assert next(requests) == REQUEST
    with pytest.raises(TraceError) as caught:
        next(requests)
    said = str(caught.value)
    assert said.startswith(str(path))
    assert "\n" not in said
    return said


def test_a_line_becomes_a_request(tmp_path: Path) -> None:
    assert list(read_trace(trace(tmp_path, GOOD))) == [REQUEST]


def test_a_path_may_be_a_string(tmp_path: Path) -> None:
    assert list(read_trace(str(trace(tmp_path, GOOD)))) == [REQUEST]


def test_the_last_line_needs_no_newline(tmp_path: Path) -> None:
    assert list(read_trace(trace(tmp_path, GOOD + GOOD.rstrip()))) == [REQUEST, REQUEST]


def test_blank_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    path = trace(tmp_path, b"\n" + GOOD + b"  \t\r\n" + GOOD + b"{}\n")
    assert ", line 5: " in complaint(path, after=2)


def test_other_fields_are_ignored(tmp_path: Path) -> None:
    assert list(read_trace(trace(tmp_path, line(session="a", turn=None)))) == [REQUEST]


def test_gzip_is_recognised_by_content_under_any_name(tmp_path: Path) -> None:
    path = trace(tmp_path, gzip.compress(GOOD), "trace.jsonl")
    assert list(read_trace(path)) == [REQUEST]


def test_a_plain_trace_may_be_named_gz(tmp_path: Path) -> None:
    assert list(read_trace(trace(tmp_path, GOOD, "trace.jsonl.gz"))) == [REQUEST]


def test_a_gzip_file_of_several_members_is_one_trace(tmp_path: Path) -> None:
    path = trace(tmp_path, gzip.compress(GOOD) + gzip.compress(GOOD))
    assert list(read_trace(path)) == [REQUEST, REQUEST]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        pytest.param(b"{oops}\n", "not JSON", id="not JSON"),
        pytest.param(GOOD[:30] + b"\n", "not JSON", id="half a line"),
        pytest.param(GOOD.rstrip() + GOOD, "not JSON", id="two requests in one line"),
        pytest.param(b'{"x": ' + b"[" * 100_000 + b"\n", "not JSON", id="nested without end"),
        pytest.param(b"[27, 1300, 9, [4, 5, 6]]\n", "Expected `object`, got `array`", id="array"),
        pytest.param(b"27\n", "Expected `object`, got `int`", id="number"),
        pytest.param(line(timestamp=True), "got `bool` - at `$.timestamp`", id="bool"),
        pytest.param(line(timestamp=2.5), "got `float` - at `$.timestamp`", id="float"),
        pytest.param(line(output_length=None), "got `null` - at `$.output_length`", id="null"),
        pytest.param(line(input_length="1300"), "got `str` - at `$.input_length`", id="string"),
        pytest.param(line(hash_ids=[4, 5, False]), "got `bool` - at `$.hash_ids[2]`", id="bool id"),
        pytest.param(line(hash_ids=["a", "b", "c"]), "got `str` - at `$.hash_ids[0]`", id="str id"),
        pytest.param(line(hash_ids=7), "Expected `array`, got `int`", id="ids not an array"),
        pytest.param(line(timestamp=float("nan")), "has no NaN", id="NaN"),
        pytest.param(line(output_length=float("inf")), "has no Infinity", id="Infinity"),
        pytest.param(line(timestamp=-1), "timestamp is negative (-1)", id="negative time"),
        pytest.param(line(input_length=-1, hash_ids=[]), "input_length is negative", id="neg. in"),
        pytest.param(line(output_length=-9), "output_length is negative (-9)", id="negative out"),
        pytest.param(line(hash_ids=[4, -5, 6]), "an id in hash_ids is negative (-5)", id="neg. id"),
        pytest.param(line(hash_ids=[4, 5]), "needs 3 hash_ids of 512 tokens, not 2", id="few ids"),
        pytest.param(line(hash_ids=[4, 5, 6, 7]), "needs 3 hash_ids", id="many ids"),
        pytest.param(line(input_length=1024), "needs 2 hash_ids", id="one id too many at a bound"),
        pytest.param(line(input_length=1537), "needs 4 hash_ids", id="one id too few past a bound"),
        pytest.param(b'{"note": "caf\xe9"}\n', "not UTF-8 text (byte 13", id="Latin-1"),
    ],
)
def test_a_bad_line_is_named_with_its_reason(tmp_path: Path, bad: bytes, reason: str) -> None:
    said = complaint(trace(tmp_path, GOOD + bad + GOOD), after=1)
    assert ", line 2: " in said
    assert reason in said
    assert "correct the line or remove it" in said or "saved as UTF-8" in said


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    fields = {name: value for name, value in FIELDS.items() if name != field}
    said = complaint(trace(tmp_path, GOOD + json.dumps(fields).encode()), after=1)
    assert f"line 2: Object missing required field `{field}`" in said


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "not UTF-8", id="PNG"),
        pytest.param(b"timestamp,input_length\n0,1300\n", "one JSON object per line", id="CSV"),
        pytest.param(b"0,1300\n", "one JSON object per line", id="CSV without a header"),
        pytest.param(b"[\n" + GOOD + b"]\n", "one JSON object per line", id="one JSON array"),
        pytest.param('{"timestamp": 0}\n'.encode("utf-16"), "not UTF-8", id="UTF-16"),
        pytest.param(gzip.compress(b"\x89PNG\r\n\x1a\n"), "not UTF-8", id="gzipped PNG"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_at_its_first_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    said = complaint(trace(tmp_path, content))
    assert ", line 1: " in said
    assert reason in said


@pytest.mark.parametrize("content", [b"", b"\n \n", gzip.compress(b""), gzip.compress(b"\n")])
def test_a_file_without_requests_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "has no requests: give" in complaint(trace(tmp_path, content))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "does not exist: give" in complaint(tmp_path / "absent.jsonl")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "is a directory: give" in complaint(tmp_path)


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    assert "cannot be read (Not a directory)" in complaint(trace(tmp_path, GOOD) / "trace.jsonl")


@pytest.mark.parametrize("kept", [2, 10, 15, -1])
def test_a_cut_gzip_stream_is_refused(tmp_path: Path, kept: int) -> None:
    path = trace(tmp_path, gzip.compress(GOOD, mtime=0)[:kept])
    with pytest.raises(TraceError, match=r"line \d: the gzip stream is cut or damaged"):
        list(read_trace(path))


@pytest.mark.parametrize("at", [3, 10, -8, -1])
def test_a_damaged_gzip_stream_is_refused(tmp_path: Path, at: int) -> None:
    content = bytearray(gzip.compress(GOOD, mtime=0))
    content[at] ^= 0xFF
    with pytest.raises(TraceError, match="cut or damaged"):
        list(read_trace(trace(tmp_path, bytes(content))))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.binary() | st.lists(st.sampled_from([GOOD, *GOOD.split()])).map(b"".join))
def test_no_content_raises_anything_but_a_trace_error(tmp_path: Path, content: bytes) -> None:
    path = trace(tmp_path, content)
    try:
        requests = list(read_trace(path))
    except TraceError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert set(requests) == {REQUEST}


def test_the_first_request_comes_before_the_rest_is_read(tmp_path: Path) -> None:
    path = trace(tmp_path, GOOD)
    with path.open("r+b") as stream:
        stream.truncate(1 << 30)  # sparse: a gigabyte of zeros that takes no room
    tracemalloc.start()
    try:
        requests = read_trace(path)
        assert next(requests) == REQUEST
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        with pytest.raises(TraceError, match=f"line 2: longer than {MAX_LINE_BYTES} bytes"):
            next(requests)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_LINE_BYTES
    finally:
        tracemalloc.stop()


def test_a_gzipped_trace_is_unpacked_while_it_is_read(tmp_path: Path) -> None:
    whole = gzip.compress(GOOD + bytes(1 << 20), compresslevel=0)
    assert ", line 2: " in complaint(trace(tmp_path, whole[: len(whole) // 2]), after=1)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = trace(tmp_path, pack(GOOD * 50_000))  # 4 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_trace(path)) == 50_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_line_appended_while_reading_is_read(tmp_path: Path) -> None:
    path = trace(tmp_path, GOOD)
    requests = read_trace(path)
    assert next(requests) == REQUEST
    with path.open("ab") as stream:
        stream.write(line(timestamp=28))
    assert [request.timestamp_ms for request in requests] == [28]


def test_the_file_is_closed_with_the_iterator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []
    path = trace(tmp_path, GOOD * 2)
    really_open = type(path).open

    def watched(where: Path, mode: str) -> object:
        opened.append(really_open(where, mode))
        return opened[-1]

    monkeypatch.setattr(type(path), "open", watched)
    requests = read_trace(path)
    assert not opened
    next(requests)
    requests.close()  # type: ignore[attr-defined]  # the iterator is a generator
    assert [stream.closed for stream in opened] == [True]


def test_a_trace_of_other_blocks_is_read_with_their_size(tmp_path: Path) -> None:
    path = trace(tmp_path, line(input_length=40))
    assert "needs 1 hash_ids of 512 tokens, not 3 (is block_tokens right?)" in complaint(path)
    (request,) = read_trace(path, block_tokens=16)
    assert request.whole_blocks == (4, 5)


def test_blocks_without_tokens_are_refused_at_the_call(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="block_tokens >= 1"):
        read_trace(tmp_path, block_tokens=0)


@pytest.mark.parametrize(
    ("tokens", "ids", "whole"),
    [
        (0, (), ()),
        (1, (7,), ()),
        (511, (7,), ()),
        (512, (7,), (7,)),
        (513, (7, 8), (7,)),
        (1024, (7, 8), (7, 8)),
    ],
)
def test_a_partial_last_block_is_not_a_whole_block(
    tokens: int, ids: tuple[int, ...], whole: tuple[int, ...]
) -> None:
    assert TraceRequest(0, tokens, 1, ids).whole_blocks == whole


def test_a_request_that_cannot_be_is_not_made() -> None:
    with pytest.raises(ValueError, match="needs 2 hash_ids"):
        TraceRequest(0, 513, 1, (7,))
    with pytest.raises(ValueError, match="blocks of 0 tokens"):
        TraceRequest(0, 0, 1, (), block_tokens=0)
