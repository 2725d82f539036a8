"""A store's methods as kvconn calls them: counted, tried again, one clean verdict per object."""

from __future__ import annotations

import errno
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kvconn.errors import TryAgain

if TYPE_CHECKING:
    from kvconn.blockstore.store import BlockStore

__all__ = ["Operations"]

_ATTEMPTS = 3
_FIRST_PAUSE_S = 0.02
_PASSING = frozenset(
    getattr(errno, name)
    for name in ("EAGAIN", "EBUSY", "EINTR", "ENOBUFS", "EMFILE", "ENFILE", "ETIMEDOUT")
)
"""What an operating system says when the same call may work in a moment."""

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class _Figures:
    calls: int = 0
    objects: int = 0
    bytes: int = 0
    errors: int = 0
    retries: int = 0
    seconds: float = 0.0


class Operations:
    """Calls one store.  From any thread but an engine's own; raises what the store raised last."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self._figures: dict[str, _Figures] = {}
        self._lock = threading.Lock()

    def exists(self, ids: Sequence[bytes]) -> list[bool]:
        """As the store's, with exactly one verdict per id."""
        return self._verdicts("exists", lambda: self.store.exists(ids), len(ids))

    def get(
        self, ids: Sequence[bytes], buffers: Sequence[memoryview], until: float = math.inf
    ) -> list[bool]:
        """The same; not tried again after ``until`` on the monotonic clock."""
        size = sum(map(len, buffers))
        return self._verdicts("get", lambda: self.store.get(ids, buffers), len(ids), size, until)

    def put(
        self, ids: Sequence[bytes], buffers: Sequence[memoryview], until: float = math.inf
    ) -> list[bool]:
        """The same."""
        size = sum(map(len, buffers))
        return self._verdicts("put", lambda: self.store.put(ids, buffers), len(ids), size, until)

    def delete(self, ids: Sequence[bytes]) -> list[bool]:
        """The same; ``False`` is no error."""
        return self._verdicts("delete", lambda: self.store.delete(ids), len(ids))

    def scan(self) -> Iterator[bytes]:
        """The ids that the store finds, as it finds them."""
        with self._counted("scan") as figures:
            for name in self.store.scan():
                figures.objects += 1
                yield name

    def figures(self) -> dict[str, float]:
        """What each operation took so far.

        ``<operation>_calls``, ``_objects``, ``_bytes``, ``_errors``, ``_retries``, ``_seconds``.
        """
        with self._lock:
            return {
                f"{operation}_{name}": getattr(figures, name)
                for operation, figures in self._figures.items()
                for name in figures.__slots__
            }

    def _verdicts(
        self,
        operation: str,
        call: Callable[[], Sequence[bool]],
        count: int,
        size: int = 0,
        until: float = math.inf,
    ) -> list[bool]:
        with self._counted(operation) as figures:
            answer = self._tried(call, figures, until)
            verdicts = [verdict is True for verdict in answer[:count]]
            figures.objects += count
            figures.bytes += size
        return verdicts + [False] * (count - len(verdicts))

    def _counted(self, operation: str) -> _Counted:
        with self._lock:
            return _Counted(self._figures.setdefault(operation, _Figures()), self._lock)

    @staticmethod
    def _tried(call: Callable[[], _Answer], figures: _Figures, until: float) -> _Answer:
        for attempt in range(1, _ATTEMPTS):
            try:
                return call()
            except Exception as error:
                pause = _FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1)  # noqa: S311
                if not _may_pass(error) or time.monotonic() + pause >= until:
                    raise
                figures.retries += 1
                time.sleep(pause)
        return call()


class _Counted:
    """Counts one call in figures of its own, and adds them to the whole when it ends."""

    def __init__(self, whole: _Figures, lock: threading.Lock) -> None:
        self._whole = whole
        self._lock = lock

    def __enter__(self) -> _Figures:
        self._one = _Figures(calls=1)
        self._began = time.perf_counter()
        return self._one

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._one.seconds = time.perf_counter() - self._began
        self._one.errors = kind is not None and kind is not GeneratorExit
        with self._lock:
            for name in self._whole.__slots__:
                setattr(self._whole, name, getattr(self._whole, name) + getattr(self._one, name))


def _may_pass(error: Exception) -> bool:
    """Whether the same call may work in a moment."""
    return isinstance(error, TryAgain | ConnectionError | TimeoutError) or (
        isinstance(error, OSError) and error.errno in _PASSING
    )
