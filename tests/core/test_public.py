"""What is public is named, is there, and is documented."""

from __future__ import annotations

import importlib
import inspect

import pytest

PUBLIC = [
    "connector", "scheduler", "worker", "types", "identity", "geometry", "backend", "blockstore",
    "policy", "eviction", "config", "errors", "hookspecs", "memory", "testing", "registry",
]  # fmt: skip
UNNAMED = {"kvconn.errors", "kvconn.hookspecs"}
"""Every name in them that has no underscore is public."""


def exported(name: str) -> dict[str, object]:
    module = importlib.import_module(f"kvconn.{name}")
    if module.__name__ in UNNAMED:
        own = inspect.getmembers(module, lambda m: getattr(m, "__module__", "") == module.__name__)
        return {key: value for key, value in own if not key.startswith("_")}
    assert module.__all__ == list(dict.fromkeys(module.__all__))
    return {key: getattr(module, key) for key in module.__all__}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_a_public_module_exports_is_there_and_documented(name):
    assert importlib.import_module(f"kvconn.{name}").__doc__
    undocumented = [
        key
        for key, value in exported(name).items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value)
    ]
    assert undocumented == []
    assert exported(name)
