"""``kvconn inspect`` over real stores."""

from __future__ import annotations

import json

import pytest
from kvconn_disk.inspection import inspect_directory
from typer.testing import CliRunner

from kvconn.cli.app import app
from kvconn.identity import Namespace


@pytest.fixture
def filled(open_engine, keys):
    """Two engines of different models, eight chunks each."""
    engines = [open_engine(space=Namespace(f"org/{name}")) for name in ("a", "b")]
    for engine in engines:
        engine.store(keys)
    return engines


def damage(path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_each_namespace_is_counted_with_what_it_means(filled, directory):
    found = inspect_directory(directory)
    assert sorted(space.meaning["model"] for space in found.namespaces) == ["org/a", "org/b"]
    assert [space.objects for space in found.namespaces] == [8, 8]
    assert found.engines == 4  # a scheduler and a worker each
    assert found.bytes > sum(space.bytes for space in found.namespaces)


def test_what_is_whole_verifies(filled, directory):
    found = inspect_directory(directory, verify=True)
    assert [(space.verified, space.bad) for space in found.namespaces] == [(8, []), (8, [])]


def test_a_bad_object_is_named_and_a_repair_removes_it_and_no_other(filled, directory, objects):
    bad = objects()[3]
    damage(bad)
    assert [s.bad for s in inspect_directory(directory, verify=True).namespaces if s.bad] == [
        [str(bad)]
    ]
    assert bad.exists()
    found = inspect_directory(directory, repair=True)
    assert found.bad == 0
    assert len(objects()) == 15
    assert not bad.exists()


def test_an_object_under_the_name_of_another_is_bad(filled, directory, objects):
    one, other = objects()[:2]
    one.write_bytes(other.read_bytes())
    assert inspect_directory(directory, verify=True).bad == 1


def test_a_look_leaves_no_trace(filled, directory, objects):
    before = [path.stat().st_mtime_ns for path in objects()]
    inspect_directory(directory, verify=True)
    assert [path.stat().st_mtime_ns for path in objects()] == before


def test_engines_go_on_while_it_looks_and_repairs(filled, directory, keys):
    damage(next(path for path in directory.rglob("*.kv") if keys[0].hex() in path.name))
    inspect_directory(directory, repair=True)
    loads = [engine.load(keys) for engine in filled]
    assert sorted(map(sum, loads)) in ([7, 8], [0, 8])


def test_the_verb_says_it_to_people_and_to_programs(filled, directory, objects):
    damage(objects()[0])
    told = CliRunner().invoke(app, ["inspect", str(directory), "--verify", "--json"])
    assert told.exit_code == 1
    assert json.loads(told.stdout)["bad"] == 1
    shown = CliRunner().invoke(app, ["inspect", str(directory), "--repair"])
    assert shown.exit_code == 0
    assert "org/a" in shown.stdout
    assert "removed 1 bad object" in shown.stdout


def test_what_is_no_directory_is_a_wrong_call(directory):
    told = CliRunner().invoke(app, ["inspect", str(directory / "none")])
    assert told.exit_code == 2
