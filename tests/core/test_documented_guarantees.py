"""Each rule on the page has a test that is named after it, and each such test has its rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvconn.testing import suite

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
ELSEWHERE = {"K3"}
"""Rules of adapters, tested with the engine."""

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the docs are not beside the tests")


def test_each_rule_is_tested_and_each_tested_rule_is_documented():
    rules = set(re.findall(r"^\| ([A-Z]\d+) \|", PAGE.read_text(), re.MULTILINE))
    modules = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "plugins").rglob("test_*.py")]
    modules += Path(suite.__file__).parent.glob("*.py")
    tested = {
        rule
        for module in modules
        for rule in re.findall(r"^ *def test_([A-Z]\d+)_", module.read_text(), re.MULTILINE)
    }
    assert rules - tested - ELSEWHERE == set()
    assert tested - rules == set()
