"""How many bytes a directory takes, over all who use it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from kvconn_disk import DiskConfig
from kvconn_disk.evictor import Evictor
from kvconn_disk.store import DiskStore
from kvconn_disk.usage import Usage

from kvconn.identity import Namespace, Shard, content_key, object_id

SIZE = 16384
SPACE, OTHER = Namespace("one"), Namespace("other")


def names(space: Namespace, count: int, start: int = 0) -> list[bytes]:
    return [
        object_id(space.digest, 0, Shard(), content_key(number))
        for number in range(start, start + count)
    ]


def buffers(count: int, byte: int = 1) -> list[memoryview]:
    return [memoryview(bytearray([byte]) * SIZE) for _ in range(count)]


def taken(directory: Path) -> int:
    """What the file system counts, directories included; what goes meanwhile is gone."""
    total = 0
    for path in (directory, *directory.rglob("*")):
        with suppress(FileNotFoundError):
            total += path.lstat().st_blocks * 512
    return total


@pytest.fixture
def open_at(directory):
    """Opens stores with a capacity."""
    stores = []

    def open_it(capacity: int, space: Namespace = SPACE, **options) -> DiskStore:
        store = DiskStore(DiskConfig(path=directory, capacity=capacity, **options))
        store.open(space)
        stores.append(store)
        return store

    yield open_it
    for store in stores:
        store.close()


def evict(store: DiskStore) -> None:
    """Let what was woken come to its end."""
    store._ready.evictor.close(20)


def test_L6_the_counter_is_what_the_file_system_says(open_at, directory):
    store = open_at(1 << 24)
    store.put(names(SPACE, 100), buffers(100))
    assert store.size() == taken(directory)
    store.delete(names(SPACE, 30))
    store.put(names(SPACE, 10), buffers(10))  # one over another, and over spare files
    assert store.size() == taken(directory)


def test_L6_what_there_is_no_room_for_is_declined_and_the_directory_never_grows_over(
    open_at, directory
):
    capacity = 1 << 21
    store = open_at(capacity)
    for start in range(0, 400, 16):
        store.put(names(SPACE, 16, start), buffers(16))
        assert taken(directory) <= capacity
    evict(store)
    assert taken(directory) <= capacity


def test_L6_what_fits_by_its_own_account_fits(open_at, directory):
    for capacity in (1 << 19, 1 << 21, 1 << 24):
        store = open_at(capacity, Namespace(str(capacity)))
        store._ready.usage.release(store.size())  # as if it were alone
        count = store.objects_that_fit(capacity, SIZE)
        space = Namespace(str(capacity))
        for start in range(0, count, 16):
            some = min(16, count - start)
            assert store.put(names(space, some, start), buffers(some)) == [True] * some


def test_L6_a_full_directory_loses_what_was_used_least_recently_whoever_stored_it(
    open_at, directory
):
    mine, theirs = open_at(1 << 21), open_at(1 << 21, OTHER)
    old, young = names(OTHER, 40), names(OTHER, 20, 100)
    theirs.put(old, buffers(40))
    theirs.put(young, buffers(20))
    for name in old:
        os.utime(theirs._home.path_of(name), (1000, 1000))
    start = 0
    while all(mine.put(names(SPACE, 4, start), buffers(4))):
        start += 4
    evict(mine)
    assert sum(theirs.exists(old)) < 40
    assert theirs.exists(young) == [True] * 20
    assert mine.size() <= 0.98 * (1 << 21)
    assert mine.put(names(SPACE, 1, 999), buffers(1)) == [True]


def test_F4_using_an_object_makes_it_young(open_at, directory):
    store = open_at(1 << 21)
    store.put(names(SPACE, 2), buffers(2))
    paths = [store._home.path_of(name) for name in names(SPACE, 2)]
    for path in paths:
        os.utime(path, (1000, 1000))
    store.get(names(SPACE, 1), buffers(1))
    assert [Path(path).stat().st_mtime > 2000 for path in paths] == [True, False]
    assert list(store.scan()) == names(SPACE, 2)[::-1]


@pytest.mark.parametrize("wrong", [0, 1 << 40])
def test_F7_a_clock_that_jumps_changes_nothing_but_an_order(open_at, monkeypatch, wrong):
    store = open_at(1 << 21)
    monkeypatch.setattr("time.time", lambda: float(wrong))
    store.put(names(SPACE, 3), buffers(3))
    assert store.get(names(SPACE, 3), buffers(3, 0)) == [True] * 3
    assert sorted(store.scan()) == sorted(names(SPACE, 3))


def test_deleted_blocks_are_used_again(open_at, directory):
    store = open_at(1 << 22)
    store.put(names(SPACE, 8), buffers(8))
    inodes = {Path(store._home.path_of(name)).stat().st_ino for name in names(SPACE, 8)}
    store.delete(names(SPACE, 8))
    store.put(names(SPACE, 8, 50), buffers(8, 5))
    again = {Path(store._home.path_of(name)).stat().st_ino for name in names(SPACE, 8, 50)}
    assert again == inodes
    back = buffers(8, 0)
    assert store.get(names(SPACE, 8, 50), back) == [True] * 8
    assert {bytes(buffer) for buffer in back} == {bytes([5]) * SIZE}


def test_a_spare_file_that_another_process_left_is_used(open_at):
    one, other = open_at(1 << 22), open_at(1 << 22)
    one.put(names(SPACE, 4), buffers(4))
    one.delete(names(SPACE, 4))
    before = one.size()
    other.put(names(SPACE, 4, 50), buffers(4))
    assert other.size() - before < 4 * SIZE // 2  # directories only


def test_a_store_that_is_closed_in_order_is_not_counted_again(open_at, monkeypatch):
    store = open_at(1 << 22)
    store.put(names(SPACE, 4), buffers(4))
    size = store.size()
    store.close()
    monkeypatch.setattr(Usage, "count", lambda *_: pytest.fail("it was counted"))
    assert open_at(1 << 22).size() == size


def test_F7_what_a_dead_process_had_reserved_is_free_when_the_next_one_opens(open_at, directory):
    script = (
        "import os, sys; from kvconn_disk import DiskConfig; from kvconn_disk.store import "
        "DiskStore; from kvconn.identity import Namespace; "
        "s = DiskStore(DiskConfig(path=sys.argv[1], capacity=1 << 22)); s.open(Namespace('one')); "
        "assert s._ready.usage.reserve(1 << 21); os._exit(9)"
    )
    dead = subprocess.run([sys.executable, "-c", script, str(directory)], check=False)  # noqa: S603 - this interpreter
    assert dead.returncode == 9
    store = open_at(1 << 22)
    assert store.size() == taken(directory)


def test_F7_one_that_died_beside_others_is_remembered_when_these_have_closed(open_at, directory):
    living = open_at(1 << 22)
    dead = open_at(1 << 22)
    assert dead._ready.usage.reserve(1 << 20)
    os.close(dead._ready.engine._file)  # as its end would
    living.close()
    dead._ready._closed = True
    again = open_at(1 << 22)
    assert again.size() == taken(directory)


def test_L6_a_count_while_others_store_is_never_too_low(open_at, directory):
    store = open_at(1 << 26)
    stop = threading.Event()

    def keep_storing() -> None:
        start = 0
        while not stop.is_set():
            store.put(names(SPACE, 8, start), buffers(8))
            store.delete(names(SPACE, 2, start))
            start += 8

    thread = threading.Thread(target=keep_storing)
    thread.start()
    evictor = Evictor(str(directory), store._ready.usage, 1 << 26)
    for _ in range(10):
        evictor.run()
    stop.set()
    thread.join(20)
    assert store.size() >= taken(directory)


STORE = """
import sys
from kvconn_disk import DiskConfig
from kvconn_disk.store import DiskStore
from kvconn.identity import Namespace, Shard, content_key, object_id
path, capacity, who = sys.argv[1], int(sys.argv[2]), sys.argv[3]
space = Namespace(who)
store = DiskStore(DiskConfig(path=path, capacity=capacity))
store.open(space)
for start in range(0, 320, 16):
    ids = [object_id(space.digest, 0, Shard(), content_key(n)) for n in range(start, start + 16)]
    store.put(ids, [memoryview(bytearray(16384)) for _ in ids])
    store.delete(ids[:3])
store.close()
"""


def test_F8_processes_with_namespaces_of_their_own_agree_on_the_capacity(directory):
    capacity = 6 << 20
    engines = [
        subprocess.Popen([sys.executable, "-c", STORE, str(directory), str(capacity), str(n)])  # noqa: S603 - this interpreter
        for n in range(4)
    ]
    worst = 0
    while any(engine.poll() is None for engine in engines):
        if directory.exists():
            worst = max(worst, taken(directory))
    assert [engine.returncode for engine in engines] == [0] * 4
    assert 0 < max(worst, taken(directory)) <= capacity
