"""F5 and F8 on real files: what changed is a miss, what is half there is not seen."""

from __future__ import annotations

import threading
import time

import pytest

from kvconn.identity import Namespace, Shard, object_id


@pytest.mark.parametrize("at", [0, 2999, 3000, 3500, 3936, 4000, 4080, 4095])
def test_F5_a_flipped_byte_anywhere_is_a_miss_and_the_file_goes(open_engine, directory, keys, at):
    engine = open_engine()
    engine.store(keys[:2])
    (broken,) = directory.rglob(f"*{keys[0].hex()}.kv")
    content = bytearray(broken.read_bytes())
    content[at] ^= 1
    broken.write_bytes(content)
    assert engine.load(keys[:2]) == [False, True]
    engine.close()
    assert not broken.exists()


@pytest.mark.parametrize("size", [0, 4095, 4097, 8192])
def test_F5_a_missing_or_extra_byte_is_a_miss_and_the_file_goes(open_engine, directory, keys, size):
    engine = open_engine()
    engine.store(keys[:2])
    (broken,) = directory.rglob(f"*{keys[0].hex()}.kv")
    broken.write_bytes((broken.read_bytes() * 2)[:size])
    assert engine.load(keys[:2]) == [False, True]
    engine.close()
    assert not broken.exists()


def test_F8_an_object_that_others_write_and_delete_is_read_whole_or_not_at_all(store, temporary):
    name = object_id(Namespace("org/model", revision="main").digest, 0, Shard(), b"k" * 16)
    stop, torn = threading.Event(), []

    def write(value: int) -> None:
        while not stop.is_set():
            store.put([name], [memoryview(bytes([value]) * 65536)])
            if value == 2:
                store.delete([name])

    writers = [threading.Thread(target=write, args=(value,)) for value in (1, 2)]
    for thread in writers:
        thread.start()
    read, ends = 0, time.monotonic() + 20
    while read < 200 and time.monotonic() < ends:
        buffer = memoryview(bytearray(65536))
        (got,) = store.get([name], [buffer])
        read += got
        torn += [set(buffer)] if got and len(set(buffer)) > 1 else []
    stop.set()
    for thread in writers:
        thread.join(20)
    assert read >= 200
    assert torn == []
    assert temporary() == []
