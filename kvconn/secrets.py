"""What must not be read in any log (guarantee C3)."""

from __future__ import annotations

from pydantic import BaseModel, SecretBytes, SecretStr

__all__ = ["conceal", "without_secrets"]

_secrets: set[str] = set()


def conceal(options: BaseModel) -> None:
    """From now on the secrets among a plugin's options are struck out of what plugins raise."""
    for name in type(options).model_fields:
        value = getattr(options, name)
        if isinstance(value, SecretStr):
            _secrets.add(value.get_secret_value())
        elif isinstance(value, SecretBytes):
            _secrets.add(value.get_secret_value().decode(errors="replace"))
    _secrets.discard("")


def without_secrets(text: str) -> str:
    """``text`` with stars in place of every secret that was concealed."""
    # The longest first: one may be a part of another.
    for secret in sorted(_secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
