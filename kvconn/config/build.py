"""From a configuration to plugin instances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kvconn.backend import Backend
from kvconn.config.choice import PluginChoice, choose
from kvconn.errors import BrokenPlugin, KvconnError
from kvconn.policies.prefix_skip import PrefixSkipPolicy
from kvconn.policy import Policy
from kvconn.registry import (
    BACKENDS,
    POLICIES,
    PREFIX_SKIP,
    find,
    load_backend_class,
    load_policy_class,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvconn.config.model import ConnectorConfig

__all__ = ["build_backend", "build_policies"]

P = TypeVar("P", Backend, Policy)


def build_backend(spec: PluginChoice | str | Mapping[str, Any]) -> Backend:
    """A backend that nobody has opened yet.  Raises :class:`ConfigurationError`."""
    choice = choose(BACKENDS, spec)
    return _make(BACKENDS, load_backend_class(choice.name), choice)


def build_policies(config: ConnectorConfig) -> list[tuple[str, Policy]]:
    """Every policy by name, the skip policy first.  Raises :class:`ConfigurationError`."""
    return [(choice.name, _policy(choice)) for choice in config.policies]


def _policy(choice: PluginChoice) -> Policy:
    if choice.name == PREFIX_SKIP:
        # Not by entry point: what is or is not installed must not decide whether it works (R6).
        return PrefixSkipPolicy(choice.options)
    return _make(POLICIES, load_policy_class(choice.name), choice)


def _make(group: str, plugin: type[P], choice: PluginChoice) -> P:
    try:
        return plugin(choice.options)
    except KvconnError:
        raise
    except Exception as error:  # noqa: BLE001 - a plugin's constructor; its words may be secret
        msg = (
            f"{find(group, choice.name)} raised {type(error).__name__} when it was created: "
            "check its options, or report it to its authors"
        )
    raise BrokenPlugin(msg)
