"""How long the kit may take."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["Profile"]


class Profile(IntEnum):
    """``--kvconn-profile``; each does all that the one before does."""

    QUICK = 0
    """Under a minute: every rule once, short random runs."""
    FULL = 1
    """Minutes: processes that are killed, longer random runs.  For a release."""
    SOAK = 2
    """An hour or so of random runs."""

    @staticmethod
    def of(config: pytest.Config) -> Profile:
        """The one that was asked for."""
        return Profile[str(config.getoption("kvconn_profile", "quick")).upper()]

    @property
    def examples(self) -> int:
        """Random runs of the state machine."""
        return (60, 500, 20000)[self]

    @property
    def seeds(self) -> int:
        """Of faulty stores."""
        return (2, 12, 200)[self]

    @property
    def kills(self) -> int:
        """Of processes that store."""
        return (1, 5, 50)[self]
