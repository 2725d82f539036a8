"""Exit status and last words of every verb: 0 good, 1 something is wrong, 2 a wrong call."""

from __future__ import annotations

import json
import re
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from kvconn.errors import ConfigurationError, KvconnError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run", "without_secrets"]

_URL = re.compile(r"[A-Za-z][\w.+-]*://\S+")


def run(command: Callable[[], object], *, as_json: bool) -> int:  # noqa: PLR0911 - one a kind of end
    """Call ``command`` and answer the exit status: its own integer answer, or 0, if it ends well.

    An error becomes one line on standard error and, ``as_json``, one document on standard
    output.  Only a mistake in kvconn itself shows a traceback.
    """
    try:
        status = command()
    except (ConfigurationError, TraceError) as error:
        return _end(2, str(error), as_json=as_json)
    except KvconnError as error:
        return _end(1, str(error), as_json=as_json)
    except typer.Abort:
        return _end(130, "interrupted", as_json=as_json)
    except OSError as error:
        return _end(1, f"{error.strerror or error}: nothing more was written", as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the last place that can keep the promises
        if (wrong_call := getattr(error, "format_message", None)) is not None:
            return _end(2, wrong_call(), as_json=as_json)
        traceback.print_exc()
        return _end(1, f"unexpected {type(error).__name__}: {error}", as_json=as_json)
    return status if isinstance(status, int) else 0


def _end(status: int, message: str, *, as_json: bool) -> int:
    line = without_secrets(" ".join(message.split()))
    with suppress(OSError):  # nobody reads any more: the status says it all
        typer.echo(f"kvconn: {line}", err=True)
        if as_json:
            typer.echo(json.dumps({"error": line}))
            sys.stdout.flush()
    return status


def without_secrets(line: str) -> str:
    """An argument that the parser quotes may be a backend's URL."""
    from kvconn.config import hide_password, redact  # noqa: PLC0415 - only errors need it

    return _URL.sub(lambda url: redact(url[0]), hide_password(line))
