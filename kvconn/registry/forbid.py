"""Plugins that an operator forbids by environment variable, whatever a configuration names."""

from __future__ import annotations

import logging
import os
from functools import lru_cache

__all__ = ["FORBID", "PREFIX_SKIP", "is_forbidden"]

PREFIX_SKIP = "prefix_skip"
"""The policy that nothing switches off (R6)."""

FORBID = "KVCONN_FORBID"
"""Environment variable: comma-separated plugin names, of any group, that must not load."""

_log = logging.getLogger(__name__)


def is_forbidden(name: str) -> bool:
    """Whether :data:`FORBID` names this plugin; the skip policy cannot be forbidden."""
    return name in _forbidden(os.environ.get(FORBID, ""))


@lru_cache(maxsize=16)  # also what makes the warning come once
def _forbidden(names: str) -> frozenset[str]:
    forbidden = {name.strip() for name in names.split(",")} - {""}
    if PREFIX_SKIP in forbidden:
        _log.warning("%s names %r, which cannot be switched off: ignored", FORBID, PREFIX_SKIP)
    return frozenset(forbidden - {PREFIX_SKIP})
