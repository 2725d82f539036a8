"""A plugin's options, validated by its own model, and every mistake explained in one sentence."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, SecretBytes, SecretStr, ValidationError

from kvconn.config.urls import HIDDEN
from kvconn.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

__all__ = ["explain_unknown", "holds_secret", "option_names", "validate"]

M = TypeVar("M", bound=BaseModel)


def validate(model: type[M], options: Mapping[str, Any], whose: str) -> M:
    """``model`` filled with ``options``; ``whose`` names them in a :class:`ConfigurationError`.

    The error shows no value of a secret field, and carries no pydantic error that would (C3).
    """
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        faults = error.errors(include_url=False)
    faults.sort(key=lambda fault: fault["type"] != "extra_forbidden")  # a typo explains the rest
    raise ConfigurationError(_explain(faults[0], model, options, whose))


def option_names(model: type[BaseModel]) -> list[str]:
    """The options that ``model`` takes, as people write them."""
    return [field.alias or name for name, field in model.model_fields.items()]


def explain_unknown(option: str, valid: Iterable[str], whose: str) -> str:
    """The sentence for an option that nothing calls so."""
    valid = list(valid)
    close = difflib.get_close_matches(option, valid, n=1)
    guess = f"did you mean {close[0]!r}? " if close else ""
    choice = f"valid options are {', '.join(valid)}" if valid else "it takes no options"
    return f"{whose} has no option {option!r}: {guess}{choice}"


def holds_secret(field: FieldInfo) -> bool:
    """Whether the field's type is, or may be, a pydantic secret."""
    pending: list[Any] = [field.annotation]
    while pending:
        annotation = pending.pop()
        if isinstance(annotation, type) and issubclass(annotation, SecretStr | SecretBytes):
            return True
        pending.extend(get_args(annotation))
    return False


def _explain(
    fault: ErrorDetails, model: type[BaseModel], options: Mapping[str, Any], whose: str
) -> str:
    path = [str(part) for part in fault["loc"]]
    option = ".".join(path)
    match fault["type"]:
        case "extra_forbidden" if len(path) == 1:
            return explain_unknown(option, option_names(model), whose)
        case "extra_forbidden":
            return f"{whose} has no option {option!r}: remove it"
        case "missing":
            return f"{whose} needs the option {option!r}: add it"
    reason = fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    secrets = _secret_values(model, options)
    if not option:
        return f"{whose} has options that do not fit together: {_without(secrets, reason)}"
    given = _without(secrets, repr(fault["input"]))[:80]
    shown = "" if _is_secret(model, path) or "://" in given else f", {given},"
    return f"option {option!r} of {whose}{shown} is wrong: {_without(secrets, reason)}"


def _is_secret(model: type[BaseModel], path: list[str]) -> bool:
    """Nested options are taken for secret: their models are not looked into."""
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    field = fields.get(path[0])
    return len(path) > 1 or field is None or holds_secret(field)


def _secret_values(model: type[BaseModel], options: Mapping[str, Any]) -> list[str]:
    fields = model.model_fields.items()
    names = {n for name, field in fields if holds_secret(field) for n in (name, field.alias)}
    return [str(value) for option, value in options.items() if option in names and str(value)]


def _without(secrets: list[str], text: str) -> str:
    """A validator's own words may quote what it was given."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text
