"""A backend that deviates says so, or its tests do not even start."""

from __future__ import annotations

import pytest
from gallery import NeverExpires
from healthy import MemoryConfig

from kvconn.testing import BackendTests
from kvconn.testing.checking import gather

TEST = "test_L1_a_lease_runs_out"


def make_backend(self, capacity):
    return NeverExpires(MemoryConfig(capacity=capacity))


def subclass(**attributes) -> type:
    return type("TestMine", (BackendTests,), {"make_backend": make_backend, **attributes})


def test_an_inherited_test_that_is_overridden_without_a_reason_is_an_error():
    with pytest.raises(TypeError, match=rf"changes the inherited {TEST}: .* state why"):
        subclass(**{TEST: lambda self: None})


def test_an_inherited_test_that_is_deleted_is_an_error():
    with pytest.raises(TypeError, match=rf"changes the inherited {TEST}"):
        subclass(**{TEST: None})
    with pytest.raises(TypeError, match="removes"):
        subclass(**{TEST: None}, xfails={TEST: "no time"})


def test_a_deviation_of_a_test_that_does_not_exist_is_an_error():
    with pytest.raises(TypeError, match="test_L1_no_such_rule, which no test is called"):
        subclass(xfails={"test_L1_no_such_rule": "why not"})


def test_a_deviation_without_a_reason_is_an_error():
    with pytest.raises(TypeError, match="gives no reason"):
        subclass(xfails={TEST: " "})


def test_a_subclass_of_a_backends_tests_may_not_change_them_either():
    mine = subclass()
    with pytest.raises(TypeError, match="changes the inherited"):
        type("TestMore", (mine,), {"make_backend": make_backend, TEST: None})


def test_a_mixin_may_not_hide_a_test():
    hiding = type("Hiding", (), {TEST: None})
    with pytest.raises(TypeError, match=f"changes the inherited {TEST}"):
        type("TestMine", (hiding, BackendTests), {"make_backend": make_backend})


MODULE = """
from gallery import {kind}
from healthy import MemoryConfig
from kvconn.testing import BackendTests


class TestMine(BackendTests):
    xfails = {{"test_L1_a_lease_runs_out": "its leases are counted by a clock of its own"}}

    def make_backend(self, capacity):
        return {kind}(MemoryConfig(capacity=capacity))
"""


@pytest.mark.parametrize(("kind", "outcome"), [("NeverExpires", "skipped"), ("Sleeps", "failed")])
def test_a_stated_deviation_is_expected_to_fail_and_nothing_else(tmp_path, kind, outcome):
    module = tmp_path / f"test_deviating_{kind}.py"
    module.write_text(MODULE.format(kind=kind))
    found = gather([str(module)], tmp_path, only=TEST)
    assert [o.outcome for o in found.outcomes] == [outcome]


def test_a_stated_deviation_stays_with_its_backend():
    subclass(xfails={TEST: "its leases are counted by a clock of its own"})
    marks = getattr(getattr(BackendTests, TEST), "pytestmark", [])
    assert "xfail" not in {mark.name for mark in marks}
