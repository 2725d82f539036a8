"""Sources of plugins, good and broken in one way each."""

from __future__ import annotations

import inspect

import pytest

from kvconn.backend import Backend

_HEAD = """
from typing import ClassVar
from kvconn.backend import Backend, PluginConfig


class MemConfig(PluginConfig):
    capacity: int = 1


class MemBackend(Backend):
    contract_version: ClassVar[int] = 1
    Config = MemConfig

"""


def _stub(hook: str) -> str:
    parameters = ", ".join(inspect.signature(getattr(Backend, hook)).parameters)
    return f"    def {hook}({parameters}): ...\n"


@pytest.fixture
def good_backend() -> str:
    """Source of a backend ``MemBackend`` that passes every check."""
    return _HEAD + "".join(_stub(hook) for hook in sorted(Backend.__abstractmethods__))
