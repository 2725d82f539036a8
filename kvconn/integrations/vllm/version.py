"""Which vLLM this adapter was written for."""

from __future__ import annotations

import re

import vllm

from kvconn.errors import ConfigurationError

__all__ = ["release_of", "require_vllm"]

OLDEST = (0, 29)  # kvconn.doctor.vllm says the same without importing vLLM


def release_of(version: str) -> tuple[int, int] | None:
    """Its first two numbers; ``None`` for one that was built from its sources."""
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    return release if release > (0, 0) else None


def require_vllm(version: str = vllm.__version__) -> None:
    """Raise :class:`ConfigurationError` for a vLLM that is known to be too old."""
    release = release_of(version)
    if release is not None and release < OLDEST:
        msg = f"kvconn needs vLLM 0.29 or later and this is {version}: pip install -U vllm"
        raise ConfigurationError(msg)
