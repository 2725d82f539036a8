"""Markers and options for pytest, registered by an entry point; nothing else happens here."""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption", "pytest_configure"]

pytest.register_assert_rewrite(
    "kvconn.testing.rig",
    "kvconn.testing.runner",
    "kvconn.testing.machine",
    "kvconn.testing.suite",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--kvconn-profile``, and what ``kvconn check`` passes on."""
    group = parser.getgroup("kvconn", "the conformance kit of kvconn")
    group.addoption(
        "--kvconn-profile",
        choices=("quick", "full", "soak"),
        default="quick",
        help="how long the conformance kit may take: under a minute, minutes, an hour",
    )
    group.addoption(
        "--kvconn-backend",
        metavar="URL",
        action="append",
        default=[],
        help="the backend that kvconn.testing.checked runs over; several are tiers",
    )
    group.addoption(
        "--kvconn-write",
        choices=("write_through", "write_back"),
        default="write_through",
        help="how several backends are composed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """The kit's own markers."""
    config.addinivalue_line(
        "markers", "kvconn_needs(capability, ...): what a backend must declare for this test"
    )
    config.addinivalue_line(
        "markers", "kvconn_profile(name): the shortest profile in which this test runs"
    )
