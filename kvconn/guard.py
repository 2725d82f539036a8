"""Calls into plugins that never raise into the engine (guarantee F2)."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from kvconn.secrets import without_secrets

__all__ = ["Guard"]

_log = logging.getLogger("kvconn")
_Answer = TypeVar("_Answer")
_Default = TypeVar("_Default")


class Guard:
    """Counts what one plugin raises and logs each kind of failure once.

    The hot paths of the connector write their own ``try`` around a bound method and call
    :meth:`failed`, since a wrapper per call would cost as much as the call.
    """

    def __init__(self, name: str, *, passes_exit_on: bool = True) -> None:
        """``passes_exit_on``: not on threads of our own, which an exit would end unheard."""
        self.name = name
        self._passes_exit_on = passes_exit_on
        self.errors = 0
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def failed(self, hook: str, error: BaseException, consequence: str) -> None:
        """Count ``error`` from ``hook``; log it the first time its type comes from there.

        From any thread.  A request to end the process goes on; all else stays here, also what is
        no ``Exception``: a cancelled task, the panic of a foreign runtime.
        """
        if self._passes_exit_on and isinstance(error, KeyboardInterrupt | SystemExit):
            raise error
        kind = (hook, type(error).__name__)
        with self._lock:
            self.errors += 1
            known = kind in self._logged
            self._logged.add(kind)
        if not known:
            _log.warning(
                "%s.%s raised %s: %s; this is logged once%s",
                self.name,
                hook,
                without_secrets(_described(error)),
                consequence,
                without_secrets(_traceback(error)),
            )

    def call(
        self,
        hook: Callable[..., _Answer],
        *arguments: object,
        otherwise: _Default,
        consequence: str,
    ) -> _Answer | _Default:
        """``hook(*arguments)``, or ``otherwise`` when it raises."""
        try:
            return hook(*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever a plugin raises stays here
            self.failed(getattr(hook, "__name__", repr(hook)), error, consequence)
            return otherwise

    def call_for(
        self,
        shape: Callable[[Any], _Answer],
        hook: Callable[..., object],
        *arguments: object,
        otherwise: _Answer,
        consequence: str,
    ) -> _Answer:
        """The same with ``shape`` called on the answer; one that it cannot take is a failure."""
        try:
            return shape(hook(*arguments))
        except BaseException as error:  # noqa: BLE001 - whatever a plugin raises stays here
            self.failed(getattr(hook, "__name__", repr(hook)), error, consequence)
            return otherwise


def _traceback(error: BaseException) -> str:
    """Where it came from, on lines of its own; nothing for an error that was never raised."""
    if error.__traceback__ is None:
        return ""
    try:
        return "\n" + "".join(traceback.format_exception(error)).rstrip()
    except Exception:  # noqa: BLE001 - formatting calls the plugin's code
        return ""


def _described(error: BaseException) -> str:
    """Its ``repr``; an error that raises even from there is named by its type."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - a plugin's code, too
        return type(error).__name__
