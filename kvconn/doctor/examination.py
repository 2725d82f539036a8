"""Every question, in the order in which an operator asks them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from kvconn.config import ConnectorConfig, load_config
from kvconn.doctor.finding import Finding, Verdict
from kvconn.doctor.machine import disks, memory, plugins, versions
from kvconn.doctor.round_trip import round_trip
from kvconn.doctor.serve import Serve
from kvconn.doctor.vllm import vllm
from kvconn.registry import load_backend_class

__all__ = ["Finding", "Serve", "Verdict", "examine"]


def examine(backends: Sequence[str], serve: Serve | None = None) -> Iterator[Finding]:
    """One finding at a time; without ``backends`` only of the machine, and of vLLM's arguments.

    Raises :class:`~kvconn.errors.ConfigurationError` for backends that cannot be configured.
    """
    if not backends:
        return itertools.chain(versions(), vllm([], serve), plugins())
    config = load_config({"backend": list(backends)})
    classes = [load_backend_class(choice.name) for choice in config.tiers]
    return itertools.chain(versions(), vllm(classes, serve), plugins(), _places(config))


def _places(config: ConnectorConfig) -> Iterator[Finding]:
    """Where blocks would lie; one is moved only if there is room."""
    fit = True
    for finding in itertools.chain(memory(config), disks(config)):
        fit &= finding.verdict is not Verdict.BAD
        yield finding
    if fit:
        yield round_trip(config)
