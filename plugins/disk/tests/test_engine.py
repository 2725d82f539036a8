"""The backend whole: what an engine finds again, and what is left in the directory."""

from __future__ import annotations

import errno
import os
import re

import pytest
import torch

from kvconn.blockstore import breaker
from kvconn.connector import Connector
from kvconn.errors import ConfigurationError
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, parse_object_id
from kvconn.memory import KVCaches

GEOMETRY = Geometry(4, 3000)


def keys_of(objects) -> list[bytes]:
    return sorted(parse_object_id(bytes(16) + bytes.fromhex(path.stem))[3] for path in objects())


@pytest.fixture
def full_disk(monkeypatch):
    """``True`` while no byte can be written; once it can, it is tried again at once."""
    monkeypatch.setattr(breaker, "_FIRST_PAUSE_S", 0.0)
    space = pytest.MonkeyPatch()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def switch(*, on: bool) -> None:
        if on:
            space.setattr(os, "posix_fallocate", full)
        else:
            space.undo()

    yield switch
    space.undo()


# -- a restart ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_restart_is_warm(open_engine, keys, ranks):
    first = open_engine(ranks=ranks)
    assert first.store(keys) == [True] * 8
    first.close()
    again = open_engine(ranks=ranks)
    assert again.hits(keys) == 8
    assert again.load(keys) == [True] * 8


def test_a_chunk_with_a_shard_missing_is_not_adopted_and_its_rest_is_removed(
    open_engine, keys, objects
):
    first = open_engine(ranks=2)
    first.store(keys)
    first.close()
    gone = next(path for path in objects() if keys[3].hex() in path.name)
    gone.unlink()
    again = open_engine(ranks=2)
    assert again.hits(keys) == 3
    assert again.scheduler.collect_stats()["entries"] == 7
    again.scheduler.step()
    again.close()
    assert keys_of(objects) == sorted([*keys[:3], *keys[4:]] * 2)


def test_what_exceeds_the_capacity_is_not_adopted_and_the_oldest_goes(
    open_engine, keys, objects, directory
):
    first = open_engine()
    first.store(keys)
    first.close()
    for age, key in enumerate(keys):
        (path,) = directory.rglob(f"*{key.hex()}.kv")
        os.utime(path, (1000 - age, 1000 - age))
    again = open_engine(chunks=3)
    assert again.scheduler.collect_stats()["entries"] == 3
    assert again.hits(keys) == 3
    again.scheduler.step()
    again.close()
    assert keys_of(objects) == sorted(keys[:3])


def test_what_was_written_last_is_evicted_last_after_a_restart(open_engine, keys, directory):
    first = open_engine()
    first.store(keys[:4])
    first.close()
    for age, key in enumerate(keys[:4]):
        (path,) = directory.rglob(f"*{key.hex()}.kv")
        os.utime(path, (1000 - age, 1000 - age))
    again = open_engine(chunks=4)
    again.store(keys[4:6])
    assert again.hits(keys[:4]) == 2
    assert keys_of(lambda: sorted(directory.rglob("*.kv"))) == sorted([*keys[:2], *keys[4:6]])


def test_foreign_files_in_the_directory_harm_nobody(open_engine, keys, directory):
    first = open_engine()
    first.store(keys)
    first.close()
    home = next(path for path in directory.iterdir())
    (home / "00").mkdir(exist_ok=True)
    for path in (directory / "x.kv", home / "x.kv", home / "00" / "x.kv", home / "00" / "12.kv"):
        path.write_text("not ours")
    again = open_engine()
    assert again.hits(keys) == 8
    again.scheduler.step()
    again.close()
    assert (home / "00" / "12.kv").read_text() == "not ours"


# -- what is left ------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_file_of_an_evicted_chunk_is_deleted(open_engine, keys, objects, ranks):
    engine = open_engine(chunks=2, ranks=ranks)
    for key in keys:
        assert engine.store([key]) == [True]
        assert len(objects()) <= 2 * ranks
    assert keys_of(objects) == sorted(keys[-2:] * ranks)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_reset_empties_the_directory(open_engine, keys, objects, ranks):
    engine = open_engine(ranks=ranks)
    engine.store(keys)
    assert engine.scheduler.reset() == {"disk": 8}
    assert engine.hits(keys) == 0
    engine.close()
    assert objects() == []


def test_a_reset_leaves_other_namespaces_alone(open_engine, keys, objects):
    other = open_engine(space=Namespace("org/other"))
    other.store(keys)
    engine = open_engine()
    engine.store(keys)
    engine.scheduler.reset()
    engine.close()
    assert len(objects()) == 8
    assert other.load(keys) == [True] * 8


def test_a_damaged_file_is_a_miss_and_is_removed(open_engine, keys, directory):
    engine = open_engine()
    engine.store(keys)
    (path,) = directory.rglob(f"*{keys[2].hex()}.kv")
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert engine.load(keys) == [True, True, False, *[True] * 5]
    assert not path.exists()
    assert engine.hits(keys) == 2


# -- trouble -----------------------------------------------------------------------------------


def test_on_a_full_disk_stores_fail_with_one_line_and_loads_go_on(
    open_engine, keys, full_disk, log_lines, temporary
):
    engine = open_engine()
    engine.store(keys[:4])
    full_disk(on=True)
    for _ in range(3):
        assert engine.store(keys[4:]) == [False] * 4
    assert engine.hits(keys) == 4
    assert engine.load(keys[:4]) == [True] * 4
    (line,) = log_lines()
    assert "No space left on device" in line
    full_disk(on=False)
    assert temporary() == []
    assert engine.store(keys[4:]) == [True] * 4
    assert engine.load(keys) == [True] * 8


def test_a_directory_removed_while_running_costs_misses_and_is_made_again(
    open_engine, keys, directory, tmp_path, objects
):
    engine = open_engine()
    engine.store(keys[:4])
    directory.rename(tmp_path / "gone")
    assert engine.load(keys[:4]) == [False] * 4
    assert engine.hits(keys) == 0
    assert engine.store(keys) == [True] * 8
    assert engine.load(keys) == [True] * 8
    assert len(objects()) == 8


def open_scheduler(connector: Connector) -> None:
    connector.open_scheduler(GEOMETRY, Namespace("m"))


def open_worker(connector: Connector) -> None:
    page = torch.zeros(2, GEOMETRY.block_bytes, dtype=torch.uint8)
    connector.open_worker(GEOMETRY, Namespace("m"), KVCaches({"layer": page}, num_blocks=2))


@pytest.mark.parametrize("open_half", [open_scheduler, open_worker])
def test_an_unwritable_directory_is_refused_when_a_half_opens(directory, open_half):
    directory.write_text("a file")
    connector = Connector.load(f"disk://{directory}?capacity=1MiB")
    with pytest.raises(ConfigurationError, match=re.escape(str(directory))):
        open_half(connector)


def test_a_directory_is_needed():
    with pytest.raises(ConfigurationError, match=r"needs the option 'path'"):
        Connector.load("disk?capacity=1MiB")


def test_two_engines_share_one_directory(open_engine, keys, objects):
    one, other = open_engine(), open_engine()
    for engine in (one, other):
        assert engine.store(keys) == [True] * 8
    assert len(objects()) == 8
    assert one.load(keys) == [True] * 8
    assert other.load(keys) == [True] * 8
