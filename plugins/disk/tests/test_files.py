"""The store alone: what lies in the directory, and what is seen while it is written."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
from kvconn_disk import DiskConfig
from kvconn_disk.store import DiskStore

from kvconn.errors import ConfigurationError
from kvconn.identity import Namespace, Shard, content_key, object_id

SPACE = Namespace("org/model", revision="main")
NAME = object_id(SPACE.digest, 0, Shard(), content_key("a"))
OTHER = object_id(SPACE.digest, 0, Shard(), content_key("b"))


def buffer(byte: int, size: int = 4096) -> memoryview:
    return memoryview(bytearray([byte]) * size)


STEM = NAME.hex()[32:]
"""The name of its file: the namespace is in the directory's."""


def read(store, name: bytes, size: int = 4096) -> bytes | None:
    into = buffer(0, size)
    return bytes(into) if store.get([name], [into]) == [True] else None


def fails(number: int) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- layout ------------------------------------------------------------------------------------


def test_an_object_is_one_file_named_by_its_id(store, directory, objects):
    assert store.put([NAME], [buffer(7)]) == [True]
    assert objects() == [directory / SPACE.digest.hex() / STEM[-2:] / f"{STEM}.kv"]
    assert objects()[0].read_bytes() == bytes(buffer(7))


def test_a_directory_says_for_people_which_namespace_it_is(store, directory):
    told = json.loads((directory / SPACE.digest.hex() / "namespace.json").read_text())
    assert told["model"] == "org/model"
    assert told.keys() == SPACE.describe().keys()


def test_no_part_of_a_path_comes_from_what_people_wrote(open_store, directory, tmp_path):
    space = Namespace("../../escape", revision="/etc", extra=(("x", "a\0b"),))
    key = b"../../../../../escape/\0/./.."
    store = open_store(space)
    assert store.put([object_id(space.digest, 0, Shard(), key)], [buffer(1)]) == [True]
    assert list(tmp_path.iterdir()) == [directory]
    for path in directory.rglob("*"):
        assert re.fullmatch(r"[0-9a-f]+(\.kv)?|namespace\.json|engines|usage|spare", path.name)


def test_directories_and_files_are_their_owners_alone(everybodys_umask, open_store, directory):
    open_store().put([NAME], [buffer(1)])
    made = [directory, *directory.rglob("*")]
    assert {mode(path) for path in made if path.is_dir()} == {0o700}
    assert {mode(path) for path in made if path.is_file()} == {0o600}


def test_parents_that_had_to_be_made_are_their_owners_alone(everybodys_umask, directory):
    deep = directory / "a" / "b"
    DiskStore(DiskConfig(path=deep, capacity=2**20)).open(SPACE)
    assert {mode(path) for path in (directory, directory / "a", deep)} == {0o700}


def test_a_directory_that_was_there_keeps_its_mode(directory, open_store):
    directory.mkdir()
    directory.chmod(0o755)
    open_store()
    assert mode(directory) == 0o755


# -- reading and writing -----------------------------------------------------------------------


def test_what_was_put_is_there_and_the_rest_is_not(store, log_lines):
    assert store.put([NAME], [buffer(7)]) == [True]
    assert store.exists([NAME, OTHER]) == [True, False]
    assert read(store, NAME) == bytes(buffer(7))
    assert read(store, OTHER) is None
    assert store.delete([NAME, OTHER]) == [True, False]
    assert store.exists([NAME]) == [False]
    assert list(store.scan()) == []
    assert log_lines() == []  # a miss is nothing to tell


def test_another_namespace_has_another_directory(store, open_store):
    store.put([NAME], [buffer(7)])
    other = open_store(Namespace("org/other"))
    assert read(other, NAME) is None
    assert list(other.scan()) == []


@pytest.mark.parametrize("size", [0, 1, 4095, 4097])
def test_a_file_of_another_size_is_a_miss(store, objects, size):
    store.put([NAME], [buffer(7)])
    objects()[0].write_bytes(b"\7" * size)
    assert read(store, NAME) is None


def test_a_file_that_shrinks_while_it_is_read_is_a_miss(store, monkeypatch):
    store.put([NAME], [buffer(7)])
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    assert read(store, NAME) is None


def test_the_system_may_read_and_write_less_than_it_was_asked(store, monkeypatch):
    preadv, pwritev = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda file, to, at: preadv(file, [to[0][:1000]], at))
    monkeypatch.setattr(os, "pwritev", lambda file, what, at: pwritev(file, [what[0][:1000]], at))
    pattern = memoryview(bytearray(range(256)) * 16)
    assert store.put([NAME], [pattern]) == [True]
    assert read(store, NAME) == bytes(pattern)


@pytest.mark.parametrize("before", [None, 3])
def test_nothing_but_whole_objects_is_ever_seen(store, monkeypatch, before):
    if before is not None:
        store.put([NAME], [buffer(before)])
    seen = []
    pwritev = os.pwritev

    def look_and_write(file: int, what: list[memoryview], at: int) -> int:
        seen.append((read(store, NAME), store.exists([NAME]), list(store.scan())))
        return pwritev(file, [what[0][:1000]], at)

    monkeypatch.setattr(os, "pwritev", look_and_write)
    assert store.put([NAME], [buffer(7)]) == [True]
    old = (None, [False], []) if before is None else (bytes(buffer(before)), [True], [NAME])
    assert len(seen) >= 5
    assert seen == [old] * len(seen)
    assert read(store, NAME) == bytes(buffer(7))


def test_two_writers_of_one_object_use_two_files(store, objects, monkeypatch):
    """The second starts while the first has written half, in the same process."""
    names = []
    pwritev, open_ = os.pwritev, os.open

    def noted(path, *arguments):
        names.append(path)
        return open_(path, *arguments)

    def interleaved(file: int, what: list[memoryview], at: int) -> int:
        monkeypatch.setattr(os, "pwritev", pwritev)
        written = pwritev(file, [what[0][:2000]], at)
        assert store.put([NAME], [buffer(2)]) == [True]
        return written

    store.put([NAME], [buffer(1)])
    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(os, "pwritev", interleaved)
    assert store.put([NAME], [buffer(1)]) == [True]
    assert len(set(names)) == 2
    assert read(store, NAME) == bytes(buffer(1))
    assert len(objects()) == 1


@pytest.mark.parametrize("call", ["open", "posix_fallocate", "pwritev", "close", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_put_that_fails_leaves_nothing_and_the_old_object_stays(
    store, temporary, monkeypatch, call, number
):
    store.put([NAME], [buffer(3)])
    close = os.close

    def fail(file: object, *_: object) -> object:
        if call == "close":
            close(file)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        assert store.put([NAME, OTHER], [buffer(7), buffer(7)]) == [False, False]
    assert temporary() == []
    assert read(store, NAME) == bytes(buffer(3))
    assert store.exists([OTHER]) == [False]
    assert store.put([OTHER], [buffer(7)]) == [True]


def test_one_object_that_cannot_be_put_does_not_stop_the_next(store, monkeypatch, log_lines):
    pwritev = os.pwritev

    def full_for_the_first(file: int, what: list[memoryview], at: int) -> int:
        if what[0][0] == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(file, what, at)

    monkeypatch.setattr(os, "pwritev", full_for_the_first)
    assert store.put([NAME, OTHER], [buffer(1), buffer(2)]) == [False, True]
    assert len(log_lines()) == 1


def test_an_object_that_cannot_be_read_is_a_miss_that_is_logged_once(store, objects, log_lines):
    store.put([NAME], [buffer(7)])
    (path,) = objects()
    path.unlink()
    path.mkdir()
    assert read(store, NAME) is None
    assert read(store, NAME) is None
    (line,) = log_lines()
    assert "kvconn-disk.get" in line


def test_a_directory_that_is_removed_meanwhile_is_made_again(
    everybodys_umask, store, directory, tmp_path
):
    store.put([NAME], [buffer(7)])
    directory.rename(tmp_path / "gone")
    assert read(store, NAME) is None
    assert list(store.scan()) == []
    assert store.delete([NAME]) == [False]
    assert store.put([NAME], [buffer(8)]) == [True]
    assert read(store, NAME) == bytes(buffer(8))
    assert mode(directory) == 0o700


# -- scanning ----------------------------------------------------------------------------------


def test_a_scan_tells_the_oldest_write_first(store, directory):
    names = [object_id(SPACE.digest, 0, Shard(), content_key(number)) for number in range(5)]
    store.put(names, [buffer(1)] * 5)
    for age, name in enumerate(names):
        (path,) = directory.rglob(f"{name.hex()[32:]}.kv")
        os.utime(path, (1000 - age, 1000 - age))
    assert list(store.scan()) == names[::-1]


def test_what_is_not_ours_is_neither_found_nor_touched(store, directory):
    store.put([NAME], [buffer(7)])
    home = directory / SPACE.digest.hex()
    folder = home / NAME.hex()[-2:]
    strangers = [
        directory / "README",
        home / "notes.txt",
        home / f"{STEM}.kv",
        home / "lost+found" / f"{OTHER.hex()[32:]}.kv",
        home / "zz" / f"{OTHER.hex()[32:]}.kv",
        folder / "picture.kv",
        folder / "picture.jpg",
        folder / f"{STEM.upper()}.kv",
        folder / f"{STEM[:-2]} {STEM[-2:]}.kv",
        folder / f"{STEM}.kv.bak",
        folder / "directory" / f"{OTHER.hex()[32:]}.kv",
    ]
    for path in strangers:
        path.parent.mkdir(exist_ok=True)
        path.write_text("not ours")
    (home / "a file").write_text("two letters are a folder, others not")
    (home / "zy").write_text("nor is this")
    assert list(store.scan()) == [NAME]
    assert {path.read_text() for path in strangers} == {"not ours"}


def test_a_file_that_goes_away_during_a_scan_is_not_there(store, monkeypatch, objects):
    store.put([NAME, OTHER], [buffer(1), buffer(2)])
    scandir = os.scandir

    @contextmanager
    def too_late(folder):
        with scandir(folder) as entries:
            yield [entry for entry in entries if entry.name != f"{STEM}.kv" or unlinked(entry)]

    def unlinked(entry) -> bool:
        Path(entry.path).unlink()
        return True

    monkeypatch.setattr(os, "scandir", too_late)
    assert list(store.scan()) == [OTHER]


def test_a_temporary_file_goes_when_its_writer_is_dead_and_stays_while_it_lives(
    store, open_store, directory
):
    folder = directory / SPACE.digest.hex() / "00"
    folder.mkdir()
    living = folder / f"x.kv.{open_store()._ready.engine.token}-1.tmp"
    dead = folder / f"x.kv.{'0' * 16}-1.tmp"
    for path in (living, dead):
        path.write_text("half")
        os.utime(path, (1000, 1000))  # no clock has a say in it
    assert list(store.scan()) == []
    assert [living.exists(), dead.exists()] == [True, False]


# -- opening -----------------------------------------------------------------------------------


def test_a_directory_below_a_file_is_refused_in_one_sentence(directory, open_store):
    directory.write_text("a file")
    with pytest.raises(ConfigurationError, match=rf"^disk: {directory} cannot be written \(.+\): "):
        open_store()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOSPC])
def test_a_directory_that_cannot_be_made_is_refused_with_the_reason(
    open_store, monkeypatch, number
):
    monkeypatch.setattr(os, "mkdir", fails(number))
    with pytest.raises(ConfigurationError, match=re.escape(os.strerror(number))) as caught:
        open_store()
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("call", ["open", "mkdir"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_F6_a_directory_that_cannot_be_written_serves_what_it_has(  # noqa: PLR0917
    store, directory, open_store, monkeypatch, log_lines, call, number
):
    store.put([NAME], [buffer(7)])
    open_ = os.open

    def no_new_file(path, flags, *arguments, **more):
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return open_(path, flags, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_new_file if call == "open" else fails(number))
        if call == "mkdir":
            shutil.rmtree(directory / SPACE.digest.hex() / "spare")
        late = open_store()
        assert read(late, NAME) == bytes(buffer(7))
        assert late.put([OTHER], [buffer(1)]) == [False]
        assert os.strerror(number) in log_lines()[0]
    late._not_before = 0.0
    assert late.put([OTHER], [buffer(1)]) == [True]


def test_opening_a_second_time_changes_nothing(open_store):
    open_store().put([NAME], [buffer(7)])
    again = open_store()
    assert list(again.scan()) == [NAME]
    assert read(again, NAME) == bytes(buffer(7))


# -- a system that refuses ---------------------------------------------------------------------


@pytest.mark.parametrize("call", ["open", "fstat", "preadv"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOENT, errno.ESTALE])
def test_F6_an_object_that_the_system_does_not_give_is_a_miss_and_the_next_one_is_read(
    store, monkeypatch, call, number
):
    store.put([NAME, OTHER], [buffer(1), buffer(2)])
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails(number))
        assert store.get([NAME, OTHER], [buffer(0), buffer(0)]) == [False, False]
    assert read(store, OTHER) == bytes(buffer(2))
    assert store.put([NAME], [buffer(3)]) == [True]


def test_F6_a_deletion_that_fails_once_is_done_the_next_time(store, monkeypatch):
    store.put([NAME], [buffer(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fails(errno.EIO))
        patch.setattr(os, "unlink", fails(errno.EIO))
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EIO))):
            store.delete([NAME])
    assert store.delete([NAME]) == [True]
    assert store.exists([NAME]) == [False]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_F6_a_scan_that_is_refused_raises_and_harms_nothing(store, monkeypatch, number):
    store.put([NAME], [buffer(1)])
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", fails(number))
        with pytest.raises(OSError, match=re.escape(os.strerror(number))):
            list(store.scan())
    assert list(store.scan()) == [NAME]


@pytest.mark.parametrize("call", ["stat", "mkdir", "link", "access"])
def test_F6_what_fails_around_a_write_fails_at_most_that_write(store, monkeypatch, call):
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails(errno.EIO))
        store.put([NAME], [buffer(1)])
    store._not_before = 0.0
    assert store.put([OTHER], [buffer(2)]) == [True]
    assert read(store, OTHER) == bytes(buffer(2))
