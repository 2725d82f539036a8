"""What an examination says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Verdict"]


class Verdict(StrEnum):
    """Of one question."""

    GOOD = "good"
    DOUBT = "doubt"
    """It works; something may surprise."""
    BAD = "bad"
    """It does not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One question, and its answer in one sentence; a sentence that is not good says what to do."""

    about: str
    verdict: Verdict
    says: str
