"""No page is missing, none is stale, none names what is gone."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

import kvconn
from kvconn.cli.app import VERBS, verb
from kvconn.hookspecs import BackendSpec, PolicySpec
from kvconn.registry import GROUPS
from kvconn.registry.signatures import hook_names
from kvconn.testing.rules import RULES

pytest.importorskip("griffe", reason="the reference is written in the environment docs")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference():
    spec = importlib.util.spec_from_file_location(
        "write_reference", ROOT / "tools" / "write_reference.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["write_reference"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["write_reference"]


def test_the_reference_says_what_the_code_says(reference, docs):
    stale = [
        name
        for name, text in reference.pages().items()
        if not (docs / "reference" / name).exists()
        or (docs / "reference" / name).read_text() != text
    ]
    assert stale == [], "run python tools/write_reference.py"


def test_every_page_of_the_reference_is_written_from_the_code(reference, docs):
    there = {str(p.relative_to(docs / "reference")) for p in docs.glob("reference/**/*.md")}
    backends = {name for name in there if name.startswith("backends/")}
    assert there - backends == set(reference.PAGES)


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#{2,3} `([^`(]+)", page.read_text(), re.MULTILINE))


def test_each_hook_has_its_place_and_each_place_its_hook(docs):
    hooks = {*hook_names(BackendSpec), *hook_names(PolicySpec)}
    assert headings(docs / "reference" / "hooks.md") == hooks


def test_each_verb_has_its_place_and_each_place_its_verb(docs):
    assert headings(docs / "reference" / "command-line.md") == {f"kvconn {v}" for v in VERBS}


PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_page_names_a_verb_or_an_option_that_is_gone(page):
    for line in re.findall(
        r"^kvconn ([a-z]+(?: [^`|\n]*)?)", _commands(page.read_text()), re.MULTILINE
    ):
        name, *words = line.split()
        assert name in VERBS, f"{page.name} names the verb {name}"
        known = {option for p in verb(name).params for option in p.opts}
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--") and option != "--help":
                assert option in known, f"{page.name} names {option} of kvconn {name}"


def _commands(text: str) -> str:
    """What stands in consoles and between backticks."""
    consoles = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    inline = re.findall(r"`(kvconn [^`\n]+)`", text)
    return "\n".join(line.split("#")[0] for line in [*consoles, *inline])


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_page_names_a_module_that_is_gone(page):
    for name in set(re.findall(r"`(kvconn(?:\.[a-z_]+)+)", page.read_text())):
        if name in GROUPS:
            continue
        parts = name.split(".")
        module = importlib.util.find_spec(".".join(parts[:2]))
        assert module is not None, f"{page.name} names {name}"


def test_the_rules_in_reports_are_those_of_the_guarantees(docs):
    written = set(
        re.findall(r"^\| ([A-Z]\d) \|", (docs / "guarantees.md").read_text(), re.MULTILINE)
    )
    assert set(RULES) == written
    assert kvconn.__version__
