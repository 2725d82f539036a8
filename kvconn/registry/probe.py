"""Import and check one plugin in a process of its own: it may crash or hang and harm nobody.

Run as ``python -m kvconn.registry.probe GROUP NAME FILE``, this module writes its verdict to
``FILE``, so that whatever the plugin prints is no part of it.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kvconn.errors import ConfigurationError
from kvconn.registry.checks import declared_contract
from kvconn.registry.discovery import Found, find
from kvconn.registry.loading import import_plugin, load_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Verdict", "probe_all"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of importing a plugin apart."""

    contract_version: int | str | None = None
    error: str | None = None
    """One sentence; ``None``: the plugin is good."""


def probe_all(
    plugins: Iterable[Found], timeout_s: float, at_once: int = 4
) -> Iterator[tuple[Found, Verdict]]:
    """Each of ``plugins`` with its verdict, in order, ``at_once`` processes side by side.

    A process that runs longer than ``timeout_s`` seconds is killed with all it started.
    """
    running: deque[_Probe] = deque()
    with TemporaryDirectory(prefix="kvconn-probe-") as folder:
        try:
            for number, found in enumerate(plugins):
                running.append(_Probe(found, Path(folder, str(number)), timeout_s))
                if len(running) == at_once:
                    yield running[0].found, running[0].verdict()
                    running.popleft()
            while running:
                yield running[0].found, running[0].verdict()
                running.popleft()
        finally:
            for probe in running:
                probe.kill()


class _Probe:
    """One running process."""

    def __init__(self, found: Found, place: Path, timeout_s: float) -> None:
        self.found = found
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._answer = place.with_suffix(".json")
        self._said = place.with_suffix(".txt")
        arguments = [found.group, found.name, str(self._answer)]
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(  # noqa: S603 - this module, no shell
                [sys.executable, "-P", "-m", __name__, *arguments],
                env=os.environ | {"PYTHONPATH": _search_path()},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )

    def verdict(self) -> Verdict:
        """Wait for it."""
        try:
            status = self._process.wait(max(0.0, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            error = (
                f"{self.found} did not import within {self._timeout_s:g} s: see what it waits for"
            )
            return Verdict(error=error)
        if status == 0:
            return Verdict(**json.loads(self._answer.read_text(encoding="utf-8")))
        last = (self._said.read_text(errors="replace").strip().splitlines() or ["it said nothing"])[
            -1
        ]
        how = signal.Signals(-status).name if status < 0 else f"status {status}"
        error = f"{self.found} ended the process with {how} when it was imported ({last[:200]})"
        return Verdict(error=f"{error}: pip install --force-reinstall {self.found.distribution}")

    def kill(self) -> None:
        """End it and whatever it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _search_path() -> str:
    """The child finds what this process finds."""
    return os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)


def _examine(group: str, name: str) -> Verdict:
    contract: object = None
    try:
        plugin = import_plugin(find(group, name))
        contract = declared_contract(plugin) if inspect.isclass(plugin) else None
        load_class(group, name)
    except ConfigurationError as error:
        return Verdict(_plain(contract), str(error))
    return Verdict(_plain(contract))


def _plain(contract: object) -> int | str | None:
    return contract if contract is None or type(contract) is int else repr(contract)


if __name__ == "__main__":
    _group, _name, _file = sys.argv[1:]
    Path(_file).write_text(json.dumps(asdict(_examine(_group, _name))), encoding="utf-8")
    os._exit(0)  # threads that the import left behind must not keep the process
