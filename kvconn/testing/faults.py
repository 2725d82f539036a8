"""A block store that misbehaves, over any other, from a seed."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvconn.blockstore import BlockStore

if TYPE_CHECKING:
    from kvconn.identity import Namespace

__all__ = ["Faults", "FaultyStore"]


@dataclass
class Faults:
    """What goes wrong, how often, and how often it did.  Shared by every store made with it.

    Each rate is the probability per call, or per object where that is said.  Threads: any.
    """

    seed: int = 0
    fails: float = 0.0
    """Raises ``OSError``, before or after the work was done."""
    delays: float = 0.0
    """Takes up to ``delay_s`` longer."""
    delay_s: float = 0.002
    hangs: float = 0.0
    """Does not return before :meth:`let_go`."""
    truncates: float = 0.0
    """Per object that is read: the end is missing."""
    corrupts: float = 0.0
    """Per object that is read: one bit is flipped."""
    lies: float = 0.0
    """Answers too few verdicts, too many, or none that is a boolean."""
    duplicates: float = 0.0
    """Does the work twice."""
    reorders: float = 0.0
    """Works the batch off in another order."""
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)  # noqa: S311 - reproducible, not secret
        self._lock = threading.Lock()
        self._go = threading.Event()

    def happens(self, what: str) -> bool:
        """Whether ``what`` goes wrong now; counted if it does."""
        with self._lock:
            if self._draw.random() >= getattr(self, what):
                return False
            self.done[what] += 1
            return True

    def number(self, below: int) -> int:
        """Uniform in ``range(below)``."""
        with self._lock:
            return self._draw.randrange(below)

    def hang(self) -> None:
        """Return after :meth:`let_go`."""
        self._go.wait()

    def let_go(self) -> None:
        """From now on nothing hangs, and what hung returns."""
        self.hangs = 0.0
        self._go.set()

    def stop(self) -> None:
        """From now on nothing goes wrong."""
        self.let_go()
        self.fails = self.delays = self.truncates = self.corrupts = 0.0
        self.lies = self.duplicates = self.reorders = 0.0


class FaultyStore(BlockStore):
    """Hands every call to ``inner``, except where ``faults`` say otherwise."""

    def __init__(self, inner: BlockStore, faults: Faults) -> None:
        super().__init__(inner.config)
        self.inner, self.faults = inner, faults
        self.capabilities = inner.capabilities

    def open(self, namespace: Namespace) -> None:
        """Honest: a store that cannot be opened is a configuration error."""
        self.inner.open(namespace)

    def exists(self, ids: Sequence[bytes]) -> list[bool]:
        """Perhaps."""
        return self._call(self.inner.exists, ids)

    def get(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        """Bytes may be missing or changed."""
        answer = self._call(self.inner.get, ids, buffers)
        for buffer in buffers:
            if self.faults.happens("truncates"):
                kept = self.faults.number(len(buffer))
                buffer[kept:] = bytes(len(buffer) - kept)
            if self.faults.happens("corrupts"):
                buffer[self.faults.number(len(buffer))] ^= 1 << self.faults.number(8)
        return answer

    def put(self, ids: Sequence[bytes], buffers: Sequence[memoryview]) -> list[bool]:
        """Perhaps."""
        return self._call(self.inner.put, ids, buffers)

    def delete(self, ids: Sequence[bytes]) -> list[bool]:
        """Perhaps."""
        return self._call(self.inner.delete, ids)

    def scan(self) -> Iterable[bytes]:
        """Names may come twice and in another order."""
        names = list(self.inner.scan())
        if self.faults.happens("duplicates"):
            names += names
        if self.faults.happens("reorders"):
            names.reverse()
        return names

    def size(self) -> int | None:
        """Honest."""
        return self.inner.size()

    def objects_that_fit(self, capacity: int, object_bytes: int) -> int:
        """Honest."""
        return self.inner.objects_that_fit(capacity, object_bytes)

    def register(self, memory: memoryview) -> None:
        """Honest."""
        self.inner.register(memory)

    def close(self) -> None:
        """Honest."""
        self.inner.close()

    def _call(self, work: Callable[..., list[bool]], *lists: Sequence[Any]) -> list[bool]:
        faults = self.faults
        if faults.happens("hangs"):
            faults.hang()
        if faults.happens("delays"):
            time.sleep(faults.delay_s * faults.number(100) / 100)
        fails = faults.happens("fails")
        if fails and faults.number(2):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if faults.happens("duplicates"):
            work(*lists)
        if faults.happens("reorders"):
            answer = work(*(list(reversed(part)) for part in lists))[::-1]
        else:
            answer = work(*lists)
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if faults.happens("lies"):
            said: list[Any] = [answer[:-1], [*answer, True], [], [None] * len(answer)]
            lie: list[bool] = said[faults.number(4)]
            return lie
        return answer
