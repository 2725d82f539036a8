"""The small workload that ships with kvconn, and how it was made."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from kvconn.workload.generator import ChatShape, generate_chat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvconn.workload.trace import TraceRequest


def sample_path() -> Path:
    """The gzipped trace inside the installed package."""
    return Path(str(files("kvconn.workload") / "sample.jsonl.gz"))


def sample_requests() -> Iterator[TraceRequest]:
    """What the file holds, generated anew.

    To renew the file, write it: ``write_trace(sample_path(), sample_requests())``.
    """
    return generate_chat(seed=2025, shape=ChatShape(conversations=125, system_prompts=4))
