"""Proof that a backend keeps the contract: the conformance kit, and what it is made of.

A backend's author subclasses :class:`~kvconn.testing.suite.BackendTests` in a test module::

    from kvconn.testing import BackendTests

    class TestMyBackend(BackendTests):
        def make_backend(self, capacity):
            return MyBackend(MyConfig(path=self.place / "db", capacity=capacity))

``kvconn check --backend URL`` runs the same tests without a class.  The kit needs ``pytest`` and
``hypothesis``: ``pip install 'kvconn[testing]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvconn.hookspecs import CONTRACT_VERSION

if TYPE_CHECKING:
    from kvconn.testing.faults import Faults, FaultyStore
    from kvconn.testing.suite import BackendTests

__all__ = ["KIT_VERSION", "BackendTests", "Faults", "FaultyStore"]

KIT_VERSION = f"{CONTRACT_VERSION}.0"
"""The contract's version, and a number that grows when a test is added that may turn red."""

_WHERE = {
    "BackendTests": "kvconn.testing.suite",
    "Faults": "kvconn.testing.faults",
    "FaultyStore": "kvconn.testing.faults",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is asked for
    """Imported when it is named: other parts of kvconn use this package without pytest."""
    if name not in _WHERE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    from importlib import import_module  # noqa: PLC0415 - as above

    try:
        return getattr(import_module(_WHERE[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in {"pytest", "hypothesis"}:
            raise
        msg = f"{name} needs {error.name}: pip install 'kvconn[testing]'"
        raise ImportError(msg) from error
