"""F6 for real: a file system that is full, read-only, or gone; where this machine lets us mount."""

from __future__ import annotations

import subprocess

import pytest
from kvconn_disk import DiskConfig
from kvconn_disk.store import DiskStore

from kvconn.identity import Namespace, Shard, content_key, object_id

SIZE = 64 << 10
SPACE = Namespace("one")


def mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False)  # noqa: S603, S607
    if done.returncode:
        pytest.skip("this machine does not let us mount a file system")


@pytest.fixture
def small(tmp_path):
    """Two MiB of memory, as a disk."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place))
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S603, S607


def names(count: int) -> list[bytes]:
    return [object_id(SPACE.digest, 0, Shard(), content_key(n)) for n in range(count)]


def buffers(count: int) -> list[memoryview]:
    return [memoryview(bytearray([7]) * SIZE) for _ in range(count)]


def open_store(place) -> DiskStore:
    store = DiskStore(DiskConfig(path=place / "store", capacity=1 << 30))
    store.open(SPACE)
    return store


def test_F6_a_file_system_that_fills_up_takes_no_more_and_gives_what_it_has(small, log_lines):
    store = open_store(small)
    done = store.put(names(64), buffers(64))
    stored = [name for name, good in zip(names(64), done, strict=True) if good]
    assert 0 < len(stored) < 64
    back = buffers(len(stored))
    assert store.get(stored, back) == [True] * len(stored)
    (line,) = log_lines()
    assert "No space left on device" in line
    assert list(small.rglob("*.tmp")) == []
    store.delete(stored)
    assert store.put(names(4), buffers(4)) == [True] * 4


def test_F6_a_file_system_that_is_full_from_the_start_gives_what_it_has(small):
    store = open_store(small)
    store.put(names(4), buffers(4))
    store.close()
    try:
        with (small / "filler").open("wb") as filler:
            filler.write(bytes(4 << 20))
    except OSError:
        pass
    late = open_store(small)
    assert late.get(names(4), buffers(4)) == [True] * 4
    assert late.put(names(64)[60:], buffers(4)) == [False] * 4
    (small / "filler").unlink()
    late._not_before = 0.0
    assert late.put(names(64)[60:], buffers(4)) == [True] * 4


def test_F6_a_read_only_file_system_gives_what_it_has(small):
    store = open_store(small)
    store.put(names(4), buffers(4))
    store.close()
    mount("-o", "remount,ro", str(small))
    late = open_store(small)
    assert late.get(names(4), buffers(4)) == [True] * 4
    assert late.put(names(8)[4:], buffers(4)) == [False] * 4
    with pytest.raises(OSError, match="Read-only"):  # so that it is tried again
        late.delete(names(1))
    mount("-o", "remount,rw", str(small))
    late._not_before = 0.0
    assert late.put(names(8)[4:], buffers(4)) == [True] * 4
