"""What an engine's user configures, and the ways to write it down."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from kvconn.backend import PluginConfig
from kvconn.config.choice import PluginChoice, choose
from kvconn.config.options import validate
from kvconn.errors import ConfigurationError
from kvconn.registry import BACKENDS, POLICIES, PREFIX_SKIP
from kvconn.types import WriteMode

__all__ = ["ConnectorConfig", "load_config"]

_SKIP = PluginChoice(name=PREFIX_SKIP, options=PluginConfig())

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _backend(source: object) -> PluginChoice:
    return choose(BACKENDS, source)


def _behind(sources: object) -> tuple[PluginChoice, ...]:
    if not isinstance(sources, list | tuple):
        msg = "behind is a list: write backend as a list instead, the fastest first"
        raise ConfigurationError(msg)
    return tuple(choose(BACKENDS, source) for source in sources)


def _with_skip(sources: object) -> tuple[PluginChoice, ...]:
    """The policies, the skip policy first: naming it is allowed and changes nothing (R6)."""
    if not isinstance(sources, list | tuple):
        msg = 'policies is a list: write policies = ["min_load_tokens?tokens=512"]'
        raise ConfigurationError(msg)
    chosen = [_SKIP if source == PREFIX_SKIP else choose(POLICIES, source) for source in sources]
    names = [choice.name for choice in chosen]
    for name in names:
        if names.count(name) > 1:
            msg = f"policy {name!r} is listed twice: list it once"
            raise ConfigurationError(msg)
    return (_SKIP, *(choice for choice in chosen if choice.name != PREFIX_SKIP))


class ConnectorConfig(BaseModel):
    """Everything that one connector is told; validated, so equal however it was written down."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    backend: Annotated[PluginChoice, BeforeValidator(_backend)]
    """The only one, or the fastest: a list of several makes tiers of them."""
    behind: Annotated[tuple[PluginChoice, ...], BeforeValidator(_behind)] = ()
    """The other tiers, from fast to slow."""
    policies: Annotated[tuple[PluginChoice, ...], BeforeValidator(_with_skip)] = ()
    lease_seconds: Seconds = 60.0
    """How long a reported hit is kept for a request that does nothing about it."""
    transfer_timeout_s: Seconds = 30.0
    """Seconds after which a transfer has failed."""
    strict: bool = False
    """Raise when the engine breaks the contract, instead of counting it."""
    events: bool = False
    """Collect what is stored and removed, for routers that follow it."""
    write: WriteMode = "write_through"
    """With tiers: the slower ones get what is stored at once, or what the faster ones evict."""

    @property
    def tiers(self) -> tuple[PluginChoice, ...]:
        """Every backend, the fastest first."""
        return self.backend, *self.behind

    @model_validator(mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        """``backend`` may be a list."""
        if not isinstance(given, Mapping):
            return given
        backends = given.get("backend")
        if not isinstance(backends, list | tuple):
            return given
        if not backends:
            msg = 'backend is an empty list: write backend = ["cpu://?capacity=8GiB"]'
            raise ConfigurationError(msg)
        return {**given, "backend": backends[0], "behind": tuple(backends[1:])}

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        for number, choice in enumerate(self.tiers):
            if choice in self.tiers[:number]:
                msg = f"backend {choice.name!r} is listed twice with the same options: list it once"
                raise ConfigurationError(msg)
        return self


def load_config(source: str | Path | Mapping[str, Any] | ConnectorConfig) -> ConnectorConfig:
    """The configuration that ``source`` stands for.

    ``source`` is a backend's URL or name, a path to a ``.toml`` or ``.json`` file, a mapping of
    :class:`ConnectorConfig`'s fields, or a backend's own mapping (``name`` and its options).
    Raises :class:`ConfigurationError`; imports the plugins that are named and no other.
    """
    if isinstance(source, ConnectorConfig):
        return source
    told: object = source
    if isinstance(source, Path) or (isinstance(source, str) and _is_file_name(source)):
        told = _read(Path(source))
    if isinstance(told, str):
        told = {"backend": told}
    if not isinstance(told, Mapping):
        msg = "a configuration is a backend's URL, a mapping, or a .toml or .json file: give one"
        raise ConfigurationError(msg)
    if "name" in told and "backend" not in told:
        told = {"backend": told}
    return validate(ConnectorConfig, told, "kvconn")


def _is_file_name(source: str) -> bool:
    return "://" not in source and "?" not in source and source.endswith((".toml", ".json"))


def _read(path: Path) -> object:
    parsers = {".toml": tomllib.loads, ".json": json.loads}
    if path.suffix not in parsers:
        msg = f"{path} is neither a .toml nor a .json file: rename it to say what it is"
        raise ConfigurationError(msg)
    try:
        return parsers[path.suffix](path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{path} cannot be read ({error.strerror}): name an existing file"
    except ValueError as error:
        msg = f"{path} is not valid {path.suffix[1:].upper()}: {error}"
    except RecursionError:
        msg = f"{path} is nested too deeply to be a configuration: write it flat"
    raise ConfigurationError(msg)
