"""A load that takes longer than computing would is not worth it: measured, not configured."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

__all__ = ["LoadGate"]

_REMEMBERED = 32
_ENOUGH = 4
"""Measurements of each kind before anything is refused."""
_LARGE = 64
"""Tokens of a step from which on its time says something about computing a prompt."""
_PROBE = 16
"""One in so many refused loads goes all the same: a slow store may have become fast."""


class LoadGate:
    """Compares what loading a token has taken with what computing one has taken lately.

    Loads count from their order to their last verdict, queues included; of them the median
    decides.  Steps count from their plan, or from the end of the step before, to their output; of
    them the fastest quarter decides, for a step may also have waited.  So doubt is on the side of
    loading, until a store is clearly too slow.  Scheduler thread only.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loads: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps: deque[float] = deque(maxlen=_REMEMBERED)
        """Both in seconds per token."""
        self._loading: dict[int, tuple[float, int]] = {}
        self._planned: deque[tuple[float, int]] = deque()
        self._last_output = 0.0
        self._refused = 0
        self.refused = 0
        """Loads that were not worth it, since the beginning."""

    def is_worth(self) -> bool:
        """Whether to load what was found; asked once a request."""
        if min(len(self._loads), len(self._steps)) < _ENOUGH:
            return True
        loading = sorted(self._loads)[len(self._loads) // 2]
        computing = sorted(self._steps)[len(self._steps) // 4]
        if loading <= computing:
            self._refused = 0
            return True
        self._refused += 1
        if self._refused % _PROBE == 0:
            return True
        self.refused += 1
        return False

    def load_began(self, transfer: int, tokens: int) -> None:
        """A load of so many tokens was ordered."""
        self._loading[transfer] = self._clock(), tokens

    def load_ended(self, transfer: int, *, moved: bool) -> None:
        """Every rank has reported; one that failed took its time for nothing and says no more."""
        began, tokens = self._loading.pop(transfer, (0.0, 0))
        if moved and tokens:
            self._loads.append((self._clock() - began) / tokens)

    def step_planned(self, tokens: int) -> None:
        """The workers were given a step of so many tokens."""
        self._planned.append((self._clock(), tokens))

    def step_ended(self) -> None:
        """The output of the oldest step that was planned is there."""
        if not self._planned:
            return
        planned, tokens = self._planned.popleft()
        now = self._clock()
        if tokens >= _LARGE:
            self._steps.append((now - max(planned, self._last_output)) / tokens)
        self._last_output = now
