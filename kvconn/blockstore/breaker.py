"""Stops asking a store that keeps failing, and asks again by itself (guarantee F3)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import IntEnum

__all__ = ["Breaker", "Circuit"]

_FAILURES = 3
"""In a row.  One may be an object that another process removed."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class Circuit(IntEnum):
    """What a breaker lets through; the number is what statistics report."""

    CLOSED = 0
    """Everything."""
    PROBING = 1
    """One call, whose outcome decides."""
    OPEN = 2
    """Nothing, until a pause has passed."""


class Breaker:
    """The state machine of M. Nygard's circuit breaker; each pause twice as long as the one before.

    One thread.  Pauses are spread at random by a quarter, lest many engines come back at once.
    """

    def __init__(
        self, *, probe_s: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``probe_s``: a probe that is not heard of for so long has come to nothing."""
        self._probe_s = probe_s
        self._clock = clock
        self._failures = 0
        self._pause_s = _FIRST_PAUSE_S
        self._open = False
        self._probing = False
        """A probe is on its way."""
        self._again = 0.0
        """When the next probe may go."""
        self.opened = 0
        """How often it opened."""

    @property
    def circuit(self) -> Circuit:
        """Where it stands now."""
        if not self._open:
            return Circuit.CLOSED
        return Circuit.PROBING if self._clock() >= self._again else Circuit.OPEN

    def lets_through(self) -> bool:
        """Whether to make a call now; while probing, the first to ask is the probe."""
        if not self._open:
            return True
        if self.circuit is Circuit.OPEN:
            return False
        self._again = self._clock() + self._probe_s
        self._probing = True
        return True

    def succeeded(self) -> bool:
        """A call worked; whether that closes the circuit."""
        closes, self._open, self._probing = self._open, False, False
        self._failures, self._pause_s = 0, _FIRST_PAUSE_S
        return closes

    def failed(self) -> None:
        """A call failed as a whole."""
        if self._open and not self._probing:
            return  # begun before it opened: many at once say no more than one
        self._failures += 1
        self._probing = False
        if self._open or self._failures >= _FAILURES:
            self.opened += not self._open
            self._open = True
            spread = random.uniform(0.75, 1.25)  # noqa: S311 - not a secret
            self._again = self._clock() + self._pause_s * spread
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
