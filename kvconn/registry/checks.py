"""Whether an imported object is a plugin that this kvconn can call."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from kvconn.backend import Backend, PluginConfig
from kvconn.errors import BrokenPlugin, WrongContract, WrongSignature
from kvconn.hookspecs import CONTRACT_VERSION, BackendSpec, PolicySpec
from kvconn.policy import Policy
from kvconn.registry.signatures import fault_of_method, hook_names

if TYPE_CHECKING:
    from kvconn.registry.discovery import Found

__all__ = ["check_class", "declared_contract"]

_SPECS: dict[type, type] = {Backend: BackendSpec, Policy: PolicySpec}


def check_class(found: Found, plugin: object, base: type) -> type:
    """``plugin``, if it is a subclass of ``base`` that can be called as its specification says.

    Raises :class:`BrokenPlugin`, :class:`WrongContract` or :class:`WrongSignature`.
    """
    if not (inspect.isclass(plugin) and issubclass(plugin, base)):
        what = f"{found.value}, which is not a subclass of {base.__module__}.{base.__name__}"
        msg = f"{found} names {what}: make it one, or name another object in its entry point"
        raise BrokenPlugin(msg)
    _check_contract(found, plugin)
    _check_none_missing(found, plugin)
    if base in _SPECS:
        _check_signatures(found, plugin, _SPECS[base])
    _check_config(found, plugin)
    return plugin


def declared_contract(plugin: type) -> object:
    """The ``contract_version`` that the plugin's authors wrote, ``None`` if they wrote none.

    One that a base class inside kvconn declares says nothing about who wrote the subclass.
    """
    for owner in plugin.__mro__:
        if "contract_version" in vars(owner) and (owner is plugin or not _is_ours(owner)):
            return vars(owner)["contract_version"]
    return None


def _is_ours(owner: type) -> bool:
    return owner.__module__.partition(".")[0] == "kvconn"


def _check_contract(found: Found, plugin: type) -> None:
    declared = declared_contract(plugin)
    if declared is None:
        msg = (
            f"{found} does not say which contract it was written for: "
            f"add `contract_version = {CONTRACT_VERSION}` to {plugin.__name__}"
        )
        raise WrongContract(msg)
    if type(declared) is not int or declared != CONTRACT_VERSION:
        msg = (
            f"{found} declares contract_version {declared!r} and this kvconn speaks "
            f"{CONTRACT_VERSION}: install a release of {found.distribution} that declares "
            f"{CONTRACT_VERSION}"
        )
        raise WrongContract(msg)


def _check_none_missing(found: Found, plugin: type) -> None:
    missing = sorted(getattr(plugin, "__abstractmethods__", ()))
    if missing:
        msg = f"{found} has hooks missing: write {', '.join(missing)} in {plugin.__name__}"
        raise WrongSignature(msg)


def _check_signatures(found: Found, plugin: type, spec: type) -> None:
    for hook in hook_names(spec):
        fault = fault_of_method(plugin, spec, hook)
        if fault:
            msg = f"{found} cannot be called: {fault}"
            raise WrongSignature(msg)


def _check_config(found: Found, plugin: type) -> None:
    config = getattr(plugin, "Config", PluginConfig)
    if not (inspect.isclass(config) and issubclass(config, PluginConfig)):
        msg = (
            f"{found} has options that cannot be read: "
            f"make {plugin.__name__}.Config a subclass of kvconn.backend.PluginConfig"
        )
        raise BrokenPlugin(msg)
