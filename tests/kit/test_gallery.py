"""The kit is tested, too: every planted bug turns the right test red, every test has a bug."""

from __future__ import annotations

import itertools

import pytest
from gallery import BUGS, FileBackend
from healthy import MemoryBackend

from kvconn.testing import BackendTests
from kvconn.testing.checking import Findings, gather

NUMBERS = itertools.count()
MODULE = """
from gallery import {kind} as plant
from kvconn.testing import BackendTests


class TestPlanted(BackendTests):
    def make_backend(self, capacity):
        options = {{"capacity": capacity}}
        if "path" in plant.Config.model_fields:
            options["path"] = self.place
        return plant(plant.Config(**options))
"""


def run_kit(folder, kind: type, tests: tuple[str, ...] = ()) -> Findings:
    """What the kit, or some of it, finds in a backend."""
    module = folder / f"test_{kind.__name__}_{next(NUMBERS)}.py"  # imported once by its name
    module.write_text(MODULE.format(kind=kind.__name__))
    return gather([str(module)], folder, only=" or ".join(tests))


@pytest.mark.parametrize("bug", BUGS, ids=[bug.says for bug in BUGS])
def test_a_planted_bug_is_caught_by_the_tests_that_say_what_is_wrong(bug, tmp_path, monkeypatch):
    for target, replacement in bug.patches.items():
        monkeypatch.setattr(target, replacement)
    found = run_kit(tmp_path, bug.backend, bug.caught_by)
    assert not found.broken
    red = {o.test.partition("[")[0] for o in found.outcomes if o.outcome == "failed"}
    assert red == set(bug.caught_by)


@pytest.mark.parametrize("backend", [MemoryBackend, FileBackend])
def test_nothing_is_found_in_an_honest_backend(backend, tmp_path):
    found = run_kit(tmp_path, backend)
    assert [(o.test, o.reason) for o in found.outcomes if o.outcome == "failed"] == []
    assert found.good


def test_every_test_of_the_kit_can_be_turned_red():
    kit = {name for name in dir(BackendTests) if name.startswith("test_")}
    caught = {test for bug in BUGS for test in bug.caught_by}
    assert kit - caught == set()
    assert caught - kit == set()
