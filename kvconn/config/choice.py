"""One plugin and its options, however it was written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, SerializeAsAny

from kvconn.backend import PluginConfig
from kvconn.config.options import option_names, validate
from kvconn.config.urls import ParsedURL, check_name, parse_url
from kvconn.errors import BrokenPlugin, ConfigurationError
from kvconn.registry import BACKENDS, find, load_backend_class, load_policy_class

if TYPE_CHECKING:
    from kvconn.backend import Backend
    from kvconn.policy import Policy

__all__ = ["PluginChoice", "choose"]


class PluginChoice(BaseModel):
    """A plugin's name and its validated options; equal however it was written down."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str
    options: SerializeAsAny[PluginConfig]


def choose(group: str, source: object) -> PluginChoice:
    """The plugin of ``group`` that a URL, a name or a mapping with a ``name`` stands for.

    Imports that plugin and no other.  Raises :class:`ConfigurationError`.
    """
    if isinstance(source, PluginChoice):
        return source
    if isinstance(source, str):
        url = parse_url(source)
        config, whose = _model(group, url.name)
        return PluginChoice(
            name=url.name, options=_validated(config, _merged(url, config, whose), whose)
        )
    if isinstance(source, Mapping):
        options = dict(source)
        name = options.pop("name", None)
        if isinstance(name, str):
            check_name(name, name)
            config, whose = _model(group, name)
            return PluginChoice(name=name, options=_validated(config, options, whose))
    msg = 'a plugin is a URL, a name, or a mapping with a name: write {"name": "cpu", ...}'
    raise ConfigurationError(msg)


def _model(group: str, name: str) -> tuple[type[PluginConfig], str]:
    """The plugin's option model, and how messages name the plugin."""
    load = load_backend_class if group == BACKENDS else load_policy_class
    plugin: type[Backend | Policy] = load(name)
    return plugin.Config, str(find(group, name))


def _validated(config: type[PluginConfig], options: Mapping[str, Any], whose: str) -> PluginConfig:
    try:
        return validate(config, options, whose)
    except ConfigurationError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's validator; its words may be secret
        msg = f"{whose} raised {type(error).__name__} over its options: report it to its authors"
    raise BrokenPlugin(msg)


def _merged(url: ParsedURL, config: type[PluginConfig], whose: str) -> dict[str, Any]:
    """The URL's query and its place as one mapping of options."""
    valid = option_names(config)
    options: dict[str, Any] = dict(url.query)
    for field, value in url.place.items():
        if field not in valid:
            if value != "/":
                raise ConfigurationError(_explain_place(field, url, valid, whose))
        elif field in options:
            msg = f"option {field!r} of {whose} is given twice: write it in the URL or after the ?"
            raise ConfigurationError(msg)
        else:
            options[field] = value
    return options


def _explain_place(field: str, url: ParsedURL, valid: list[str], whose: str) -> str:
    if field == "host" and "path" in valid:
        return f"{whose} takes a path and no host: write three slashes, {url.name}:///absolute/path"
    return f"{whose} takes no {field}: write {url.name}://?option=value ({_listed(valid)})"


def _listed(valid: list[str]) -> str:
    return f"valid options are {', '.join(valid)}" if valid else "it takes no options"
