"""Which vLLM this adapter was written for."""

from __future__ import annotations

import re

import vllm

from kvconn.errors import ConfigurationError

__all__ = ["require_vllm"]

OLDEST = (0, 29)  # kvconn.doctor.vllm says the same without importing vLLM


def require_vllm(version: str = vllm.__version__) -> None:
    """Raise :class:`ConfigurationError` for a vLLM that is known to be too old."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (0, 0) < (int(found[1]), int(found[2])) < OLDEST:
        msg = f"kvconn needs vLLM 0.29 or later and this is {version}: pip install -U vllm"
        raise ConfigurationError(msg)
