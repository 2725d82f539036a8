"""F7: a process that is killed while it stores."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest
from kvconn_disk import DiskConfig
from kvconn_disk.store import DiskStore

from kvconn.blockstore.seal import object_bytes, seals_hold
from kvconn.identity import Namespace, Shard, content_key, object_id

KILLS = int(os.environ.get("KVCONN_KILLS", "10"))
"""200 and more in the long suite."""
PAYLOAD = 20000

STORER = """
import itertools, sys
from kvconn_disk import DiskConfig
from kvconn_disk.store import DiskStore
from kvconn.blockstore.seal import object_bytes, seal
from kvconn.identity import Namespace, Shard, content_key, object_id
space = Namespace("one")
store = DiskStore(DiskConfig(path=sys.argv[1], capacity=1 << 25))
store.open(space)
size = object_bytes(20000)
print("ready", flush=True)
for start in itertools.count(step=4):
    keys = [content_key(n % 512) for n in range(start, start + 4)]
    ids = [object_id(space.digest, 0, Shard(), key) for key in keys]
    buffers = [memoryview(bytearray([i[-1]]) * size) for i in ids]
    seal(buffers, ids, 20000)
    done = store.put(ids, buffers)
    print(*(i.hex() for i, good in zip(ids, done) if good), flush=True)
    if start % 64 == 32:
        store.delete(ids)
        print("-", *(i.hex() for i in ids), flush=True)
"""


def killed_storer(directory, moment: float) -> tuple[set[bytes], bool]:
    """What it had said to be stored, and whether it got that far at all."""
    storer = subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, "-c", STORER, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert storer.stdout.readline() == "ready\n"
    try:
        storer.wait(moment)
    except subprocess.TimeoutExpired:
        storer.send_signal(signal.SIGKILL)
    stored: set[bytes] = set()
    lines = storer.stdout.read().split("\n")[:-1]  # the last one may be cut short
    for line in lines:
        words = line.split()
        ids = {bytes.fromhex(word) for word in words if word != "-"}
        stored = stored - ids if words[:1] == ["-"] else stored | ids
    storer.stdout.close()
    storer.wait()
    return stored, bool(lines)


@pytest.mark.parametrize("seed", range(KILLS))
def test_F7_after_a_kill_nothing_is_torn_nothing_stays_and_what_was_complete_is_there(
    directory, seed
):
    draw = random.Random(seed)  # noqa: S311 - reproducible, not secret
    stored: set[bytes] = set()
    for _ in range(2):  # the second process finds what the first one left
        later, _ = killed_storer(directory, draw.uniform(0.001, 0.25))
        stored = later or stored
    space = Namespace("one")
    store = DiskStore(DiskConfig(path=directory, capacity=1 << 25))
    store.open(space)
    found = list(store.scan())
    size = object_bytes(PAYLOAD)
    for name in found:
        buffer = memoryview(bytearray(size))
        assert store.get([name], [buffer]) == [True]
        assert seals_hold([buffer], [name], PAYLOAD) == [True]
        assert buffer[0] == name[-1]
    # The one batch that was on its way may have deleted or replaced some, and no others.
    assert len(stored - set(found)) <= 8
    store.close()
    assert list(directory.rglob("*.tmp")) == []


def test_F7_a_name_is_never_of_a_part(directory):
    """What a power cut may leave: the name is there and the bytes are not."""
    store = DiskStore(DiskConfig(path=directory, capacity=1 << 25))
    space = Namespace("one")
    store.open(space)
    name = object_id(space.digest, 0, Shard(), content_key(1))
    size = object_bytes(PAYLOAD)
    store.put([name], [memoryview(bytearray(size))])
    with open(store._home.path_of(name), "r+b") as file:  # noqa: PTH123 - a string
        file.truncate(0)
    assert store.get([name], [memoryview(bytearray(size))]) == [False]
    assert store.exists([name]) == [False]
