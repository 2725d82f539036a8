"""The extension alone: the same answers as the pure way, without the interpreter lock."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

native = pytest.importorskip("kvconn_native", reason="it was built without a C compiler")

SIZE = 8192


def aligned(byte: int, size: int = SIZE) -> memoryview:
    """Page-aligned, as slots are."""
    view = memoryview(mmap.mmap(-1, size))
    view[:] = bytes([byte]) * size
    return view


def paths(folder: Path, count: int, suffix: str = "") -> list[bytes]:
    return [os.fsencode(folder / f"{number}{suffix}") for number in range(count)]


def write(folder: Path, buffers: list, **how) -> list[int]:
    count = len(buffers)
    options = {"direct": False, "sync": False, "threads": 4, **how}
    return native.write_files(
        paths(folder, count, ".tmp"), paths(folder, count), buffers, *options.values()
    )


# -- checksums -------------------------------------------------------------------------------------


@given(st.integers(241, 5000), st.integers(0, 255), st.integers(0, 63))
def test_a_checksum_is_the_standard_one(size, seed, offset):
    memory = memoryview(bytes((seed + 7 * i) % 251 for i in range(size + offset)))[offset:]
    assert native.xxh3_128([memory], 1) == [xxhash.xxh3_128_digest(memory)]


@pytest.mark.parametrize("size", [(1 << 20) - 16, (1 << 20) + 1, (4 << 20) + 4080])
def test_checksums_of_a_batch_come_in_its_order(size):
    buffers = [memoryview(os.urandom(size)) for _ in range(5)]
    assert native.xxh3_128(buffers, 3) == [xxhash.xxh3_128_digest(b) for b in buffers]


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("sync", [False, True])
def test_what_was_written_is_read(tmp_path, direct, sync):
    out, back = [aligned(n) for n in range(9)], [aligned(99) for _ in range(9)]
    assert write(tmp_path, out, direct=direct, sync=sync) == [0] * 9
    assert native.read_files(paths(tmp_path, 9), back, direct, 4) == [0] * 9
    assert back == out
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(map(str, range(9)))


def test_what_is_not_aligned_goes_through_the_page_cache(tmp_path):
    out, back = [memoryview(bytearray(b"ab" * 5000))[1:]], [memoryview(bytearray(9999))]
    assert write(tmp_path, out, direct=True) == [0]
    assert native.read_files(paths(tmp_path, 1), back, True, 1) == [0]
    assert back == out


def test_a_new_file_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    write(tmp_path, [aligned(1)])
    os.umask(before)
    assert stat.S_IMODE((tmp_path / "0").stat().st_mode) == 0o600


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1])
def test_a_file_of_another_size_is_told(tmp_path, size):
    (tmp_path / "0").write_bytes(bytes(size))
    assert native.read_files(paths(tmp_path, 1), [aligned(0)], False, 1) == [errno.EBADMSG]


def test_one_file_that_fails_does_not_stop_the_others(tmp_path):
    write(tmp_path, [aligned(1), aligned(2), aligned(3)])
    (tmp_path / "1").unlink()
    back = [aligned(0) for _ in range(3)]
    assert native.read_files(paths(tmp_path, 3), back, False, 2) == [0, errno.ENOENT, 0]
    assert back[2] == aligned(3)


def test_a_temporary_file_that_is_there_gives_its_blocks(tmp_path):
    (tmp_path / "0.tmp").write_bytes(b"x" * 3 * SIZE)
    inode = (tmp_path / "0.tmp").stat().st_ino
    assert write(tmp_path, [aligned(1)]) == [0]
    assert (tmp_path / "0").stat().st_ino == inode
    assert (tmp_path / "0").read_bytes() == bytes(aligned(1))


def test_a_write_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "in the way").touch()
    assert write(tmp_path, [aligned(1)]) in ([errno.EISDIR], [errno.ENOTEMPTY], [errno.EEXIST])
    assert not (tmp_path / "0.tmp").exists()


def test_a_folder_that_is_not_there_is_told(tmp_path):
    assert write(tmp_path / "none", [aligned(1)]) == [errno.ENOENT]


def test_reading_marks_an_old_file_as_used_and_a_young_one_not(tmp_path):
    write(tmp_path, [aligned(1), aligned(2)])
    os.utime(tmp_path / "0", (1000, 1000))
    young = (tmp_path / "1").stat().st_mtime_ns
    native.read_files(paths(tmp_path, 2), [aligned(0), aligned(0)], False, 1)
    assert (tmp_path / "0").stat().st_mtime > 2000
    assert (tmp_path / "1").stat().st_mtime_ns == young


# -- threads ---------------------------------------------------------------------------------------


def test_others_go_on_while_a_batch_moves(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ends = []
    arguments = ([os.fsencode(fifo)], [aligned(0)], False, 1)
    reader = threading.Thread(target=lambda: ends.append(native.read_files(*arguments)))
    reader.start()  # opening a fifo waits for its writer
    with fifo.open("wb"):
        reader.join(20)
    assert ends == [[errno.EISDIR]]  # no regular file


def test_many_callers_share_the_pool(tmp_path):
    write(tmp_path, [aligned(n) for n in range(16)])

    def read(_: int) -> bool:
        back = [aligned(99) for _ in range(16)]
        ends = native.read_files(paths(tmp_path, 16), back, False, 8)
        return ends == [0] * 16 and back == [aligned(n) for n in range(16)]

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(read, range(64)))


def test_a_forked_child_has_a_pool_of_its_own(tmp_path):
    write(tmp_path, [aligned(n) for n in range(8)])
    pid = os.fork()
    if not pid:
        ends = native.read_files(paths(tmp_path, 8), [aligned(0) for _ in range(8)], False, 4)
        os._exit(ends != [0] * 8)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- bad arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([b"a"], [aligned(0)], False, 0), ValueError, "threads must be at least 1"),
        (([b"a\0b"], [aligned(0)], False, 1), ValueError, "null byte"),
        (([b"a"], [], False, 1), ValueError, "paths has 1 elements and buffers has 0"),
        ((["a"], [aligned(0)], False, 1), TypeError, "bytes"),
        (((b"a",), [aligned(0)], False, 1), TypeError, "paths must be a list"),
        (([b"a"], [b"read-only"], False, 1), BufferError, "not writable"),
        (([b"a"], [aligned(0)[::2]], False, 1), BufferError, "contiguous"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        native.read_files(*arguments)


def test_a_short_buffer_has_no_checksum_here():
    with pytest.raises(ValueError, match="a buffer has 240 bytes: give at least 241"):
        native.xxh3_128([bytes(240)], 1)


def test_nothing_to_do_is_done_at_once():
    assert native.read_files([], [], False, 1) == []
    assert native.xxh3_128([], 8) == []
