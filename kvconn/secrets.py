"""What must not be read in any log (guarantee C3)."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, SecretBytes, SecretStr

__all__ = ["conceal", "without_secrets"]

_secrets: set[str] = set()


def conceal(options: BaseModel) -> None:
    """From now on the secrets among a plugin's options are struck out of what plugins raise."""
    _collect(options)
    _secrets.discard("")


def _collect(value: object) -> None:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        # As it is, and as ``repr`` writes it inside another text.
        _secrets.update((text, repr(text)[1:-1], repr("'" + text)[2:-1]))
    elif isinstance(value, SecretBytes):
        _collect(SecretStr(value.get_secret_value().decode(errors="replace")))
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            _collect(getattr(value, name))
    elif isinstance(value, Mapping):
        for part in value.values():
            _collect(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            _collect(part)


def without_secrets(text: str) -> str:
    """``text`` with stars in place of every secret that was concealed."""
    # The longest first: one may be a part of another.
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
