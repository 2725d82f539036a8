"""What was resolved, once in the log, with sizes for people and without secrets (C2, C3)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pydantic import ByteSize, SecretBytes, SecretStr

from kvconn.config.model import ConnectorConfig
from kvconn.config.options import holds_secret
from kvconn.config.sizes import Per, humanise
from kvconn.config.urls import HIDDEN, hide_password
from kvconn.errors import ConfigurationError
from kvconn.registry import load_backend_class

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from kvconn.config.choice import PluginChoice

__all__ = ["log_resolved", "redact"]

_log = logging.getLogger("kvconn.config")


def log_resolved(config: ConnectorConfig) -> None:
    """One line at INFO; the connector calls this once, when it opens."""
    policies = ", ".join(_described(choice) for choice in config.policies)
    rest = {name: getattr(config, name) for name in ConnectorConfig.model_fields}
    settings = " ".join(
        f"{k}={v}" for k, v in rest.items() if k not in {"backend", "behind", "policies"}
    )
    backends = ", then ".join(_described(choice) for choice in config.tiers)
    _log.info("backend %s; policies %s; %s", backends, policies, settings)


def redact(url: str) -> str:
    """``url`` fit for a log: without its password and without the values of secret options.

    Imports the backend to learn which those are; every value is hidden if that fails.
    """
    shown, mark, query = hide_password(url).partition("?")
    if not mark:
        return shown
    secret = _secret_options(url)
    return shown + mark + "&".join(_redacted(item, secret) for item in query.split("&"))


def _secret_options(url: str) -> set[str] | None:
    """The names of the options to hide, ``None`` if nobody can say."""
    try:
        fields = load_backend_class(url.partition("?")[0].partition("://")[0]).Config.model_fields
    except ConfigurationError:
        return None
    return {field.alias or name for name, field in fields.items() if holds_secret(field)}


def _redacted(item: str, secret: set[str] | None) -> str:
    option, equals, _ = item.partition("=")
    hide = secret is None or option in secret
    return f"{option}{equals}{HIDDEN}" if equals and hide else item


def _described(choice: PluginChoice) -> str:
    fields = type(choice.options).model_fields
    shown = [
        f"{name}={_shown(getattr(choice.options, name), field)}" for name, field in fields.items()
    ]
    return " ".join([choice.name, *shown])


def _shown(value: object, field: FieldInfo) -> str:
    if isinstance(value, SecretStr | SecretBytes):
        return str(value)
    if isinstance(value, ByteSize):
        scopes = [mark.value for mark in field.metadata if isinstance(mark, Per)]
        return " ".join([humanise(value), *scopes])
    return hide_password(str(value))
