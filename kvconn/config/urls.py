"""``name://user:password@host:port/path?option=value`` as a plugin name and its options."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from kvconn.errors import ConfigurationError

__all__ = ["HIDDEN", "ParsedURL", "check_name", "hide_password", "parse_url"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_USERINFO = re.compile(r"(?P<shown>://[^\s:/?@]*):.*@")

HIDDEN = "**********"
"""In place of a secret; what pydantic writes."""


@dataclass(frozen=True, slots=True)
class ParsedURL:
    """A URL, taken apart and percent-decoded."""

    name: str
    place: dict[str, str | int]
    """Those of ``username``, ``password``, ``host``, ``port`` and ``path`` that it has."""
    query: dict[str, str]


def parse_url(url: str) -> ParsedURL:
    """Take ``url`` apart; without ``://`` it is ``name`` or ``name?option=value``.

    Raises :class:`ConfigurationError`, which shows no part of the URL that could be a secret.
    """
    name, separator, rest = url.partition("://")
    if not separator:
        name, separator, rest = url.partition("?")
        rest = separator + rest
    check_name(name, url)
    try:
        parts = urlsplit(f"//{rest}", allow_fragments=False)
        return ParsedURL(name, _place(parts), _query(name, parts.query))
    except ValueError:  # its text may show the password
        advice = "percent-encode : / ? # @ inside its parts, and give the port as a number"
        msg = f"the URL of {name!r} cannot be read: {advice}"
    raise ConfigurationError(msg)


def check_name(name: str, written: str) -> None:
    """Raise :class:`ConfigurationError` unless ``name``, from ``written``, can be a plugin's."""
    if not _NAME.fullmatch(name):
        # Only what stands before the first separator: a slip in "://" must not show a password.
        shown = re.split(r"[:/?@#]", written, maxsplit=1)[0]
        msg = f"a plugin is named like disk:///var/cache/kv or cpu, not like {shown!r}..."
        raise ConfigurationError(msg)


def hide_password(text: str) -> str:
    """``text`` with the password of every URL in it hidden; rather too much than too little.

    A password may hold an unencoded ``/``, ``?`` or ``@``, so everything from the first colon
    after ``://`` to the last ``@`` is taken for one.
    """
    return _USERINFO.sub(rf"\g<shown>:{HIDDEN}@", text)


def _place(parts: SplitResult) -> dict[str, str | int]:
    if ":" in parts.netloc and "@" not in parts.netloc and "@" in parts.path + parts.query:
        msg = "is it host:port, or a password that should have been encoded?"
        raise ValueError(msg)
    place: dict[str, str | int | None] = {
        "username": _decode(parts.username),
        "password": _decode(parts.password),
        "host": _decode(parts.hostname),
        "port": parts.port,
        "path": _decode(parts.path),
    }
    return {field: value for field, value in place.items() if value not in (None, "")}


def _query(name: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for item in filter(None, query.split("&")):
        option, equals, value = item.partition("=")
        if not equals or not _OPTION.fullmatch(option):
            msg = f"the options of {name!r} cannot be read: write ?option=value&option=value"
            raise ConfigurationError(msg)
        if option in options:
            msg = f"option {option!r} of {name!r} is given twice: write it once"
            raise ConfigurationError(msg)
        options[option] = _decode(value)
    return options


def _decode(text: str | None) -> str:
    # Not `unquote_plus`: a plus sign in a path or a password is a plus sign.
    return unquote(text, errors="strict") if text else ""
