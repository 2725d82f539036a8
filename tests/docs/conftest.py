"""The pages, and what stands in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Listing:
    """One fenced block of a page."""

    language: str
    title: str
    text: str


def listings(page: str) -> list[Listing]:
    """In the order of the page."""
    return [Listing(*found) for found in _FENCE.findall((DOCS / page).read_text())]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not DOCS.exists():
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason="the docs are not beside the tests"))


@pytest.fixture
def docs() -> Path:
    return DOCS


@pytest.fixture
def listings_of():
    """The fenced blocks of a page."""
    return listings
