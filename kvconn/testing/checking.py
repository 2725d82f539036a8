"""Runs the kit over backends that are named by URL, and gathers what came of it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvconn.testing.suite.base import rule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Findings", "Outcome", "check", "gather"]

_AUTOLOAD = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"


@dataclass(slots=True)
class Outcome:
    """How one test ended."""

    test: str
    """With its parameters in brackets."""
    rule: str
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    seconds: float
    reason: str = ""
    """Of a skip; of a failure the last line."""
    details: str = ""
    """Of a failure: the traceback, and what was printed."""


@dataclass(slots=True)
class Findings:
    """How all of them ended."""

    outcomes: list[Outcome] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """What kept tests from being collected."""
    seconds: float = 0.0

    def count(self, outcome: str, rule: str | None = None) -> int:
        """Tests that ended so, of one rule or of all."""
        return sum(o.outcome == outcome and rule in (None, o.rule) for o in self.outcomes)

    @property
    def good(self) -> bool:
        """Something passed, and nothing failed."""
        return bool(self.count("passed")) and not self.count("failed") and not self.broken


class _Gatherer:
    """A pytest plugin."""

    def __init__(self, on_test: Callable[[int, int], None]) -> None:
        self.findings = Findings()
        self._on_test = on_test
        self._all = self._done = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._all = len(session.items)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.findings.broken.append(str(report.longrepr))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._done += 1
            self._on_test(self._done, self._all)
        if report.when != "call" and report.passed:
            return
        test = report.nodeid.rpartition("::")[2]
        outcome = Outcome(test, rule_of(test), report.outcome, report.duration)
        if report.skipped and isinstance(report.longrepr, tuple):
            outcome.reason = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed:
            outcome.reason, outcome.details = _words(report)
        self.findings.outcomes.append(outcome)


def _words(report: pytest.TestReport) -> tuple[str, str]:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else str(report.longrepr)
    return message.splitlines()[0].removeprefix("AssertionError: "), report.longreprtext


def check(
    urls: Sequence[str],
    *,
    write: str = "write_through",
    profile: str = "quick",
    junit: Path | None = None,
    only: str = "",
    on_test: Callable[[int, int], None] = lambda _done, _all: None,
) -> Findings:
    """Run the kit over ``urls``; ``only`` is a pytest expression that chooses tests.

    In this process, undisturbed by whatever configuration, plugins or folder it is called in.
    ``on_test`` is told before each test which one it is and how many there are.
    """
    arguments = ["--pyargs", "kvconn.testing.checked", "--kvconn-write", write]
    arguments += [f"--kvconn-backend={url}" for url in urls]
    arguments += [f"--junitxml={junit.resolve()}"] if junit else []
    with tempfile.TemporaryDirectory(prefix="kvconn-check-") as folder:
        return gather(arguments, Path(folder), profile=profile, only=only, on_test=on_test)


def gather(
    arguments: Sequence[str],
    folder: Path,
    *,
    profile: str = "quick",
    only: str = "",
    on_test: Callable[[int, int], None] = lambda _done, _all: None,
) -> Findings:
    """Run pytest with ``arguments`` in this process, alone: its files lie in ``folder``."""
    gatherer = _Gatherer(on_test)
    began = time.monotonic()
    empty = folder / "pytest.ini"
    empty.write_text("[pytest]\n")
    common = [
        "-c", str(empty), "--rootdir", str(folder), "--basetemp", str(folder / "tmp"),
        "--import-mode", "importlib", "-p", "no:cacheprovider", "-p", "kvconn.testing.plugin",
        "--kvconn-profile", profile, *(["-k", only] if only else []),
    ]  # fmt: skip
    with _alone(), contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*arguments, *common], plugins=[gatherer])
    gatherer.findings.seconds = time.monotonic() - began
    return gatherer.findings


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    before = {name: os.environ.pop(name, None) for name in (_AUTOLOAD, "PYTEST_ADDOPTS")}
    os.environ[_AUTOLOAD] = "1"
    try:
        yield
    finally:
        del os.environ[_AUTOLOAD]
        os.environ.update({name: value for name, value in before.items() if value is not None})
