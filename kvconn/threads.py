"""The one place where kvconn starts threads."""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from threading import TIMEOUT_MAX

from kvconn.secrets import without_secrets

__all__ = ["Background", "Lanes", "Workers", "run_bounded"]

_log = logging.getLogger("kvconn")


def run_bounded(call: Callable[[], object], deadline: float, name: str) -> bool:
    """Run ``call`` in a daemon thread for at most ``deadline`` seconds; whether it ended.

    For calls into code that may hang: a call that outlives its deadline goes on by itself and
    cannot keep the process alive.  What it raises within the deadline is raised here.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            raised.append(error)

    thread = threading.Thread(target=run, name=f"kvconn-{name}", daemon=True)
    thread.start()
    thread.join(min(deadline, TIMEOUT_MAX))
    if raised:
        raise raised[0]
    return not thread.is_alive()


class Background:
    """One call on a daemon thread of its own; what it raises is logged."""

    def __init__(self, call: Callable[[], object], name: str) -> None:
        self._call = call
        self._name = name
        self._thread = threading.Thread(target=self._run, name=f"kvconn-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - nobody is there to catch it
            told = without_secrets("".join(traceback.format_exception(error)))
            _log.warning(
                "background %s raised %s\n%s", self._name, without_secrets(repr(error)), told
            )

    @property
    def running(self) -> bool:
        """Whether the call has not ended."""
        return self._thread.is_alive()

    def join(self, deadline: float) -> None:
        """Wait for the end, ``deadline`` seconds at most."""
        self._thread.join(min(deadline, TIMEOUT_MAX))


class Workers:
    """Daemon threads that run jobs in the order in which they were put; with one thread, exactly.

    Not ``concurrent.futures``: its threads are joined when the interpreter ends, and a job that
    hangs in a system call would keep the process alive.  A job must not raise.
    """

    def __init__(self, count: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"kvconn-{name}-{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def put(self, job: Callable[[], None]) -> None:
        """Run ``job`` when a thread is free."""
        self._jobs.put(job)

    def close(self, deadline: float) -> bool:
        """End the threads once the jobs before are done; whether they ended in time."""
        for _ in self._threads:
            self._jobs.put(None)
        ends = time.monotonic() + deadline
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class Lanes:
    """Daemon threads for two lanes of jobs; an urgent one goes before every patient one.

    Some threads take urgent jobs only, so that those never wait for patient ones that hang.  A
    job must not raise.
    """

    def __init__(self, urgent: int, both: int, name: str) -> None:
        """``urgent`` threads for that lane alone, ``both`` for either."""
        self._ready = threading.Condition()
        self._urgent: deque[Callable[[], None]] = deque()
        self._patient: deque[Callable[[], None]] = deque()
        self._closing = False
        self._threads = [
            threading.Thread(
                target=partial(self._run, urgent_only=i < urgent),
                name=f"kvconn-{name}-{i}",
                daemon=True,
            )
            for i in range(urgent + both)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, job: Callable[[], None], *, urgent: bool) -> None:
        """Run ``job`` when a thread is free."""
        with self._ready:
            (self._urgent if urgent else self._patient).append(job)
            self._ready.notify_all()

    def _run(self, *, urgent_only: bool) -> None:
        while (job := self._next(urgent_only=urgent_only)) is not None:
            job()

    def _next(self, *, urgent_only: bool) -> Callable[[], None] | None:
        with self._ready:
            while True:
                if self._urgent:
                    return self._urgent.popleft()
                if self._patient and not urgent_only:
                    return self._patient.popleft()
                if self._closing:
                    return None
                self._ready.wait()

    def close(self, deadline: float) -> bool:
        """End the threads once the jobs before are done; whether they ended in time."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        ends = time.monotonic() + deadline
        for thread in self._threads:
            thread.join(max(0.0, ends - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
