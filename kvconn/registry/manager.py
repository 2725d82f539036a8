"""pluggy's part: opened plugins are registered and checked here, and never called from here.

The connector binds the methods of what it registered and calls them itself, each policy in its own
``try``: no call order, ``tryfirst`` or wrapper can change what another plugin answered (R6).
"""

from __future__ import annotations

import inspect

import pluggy

from kvconn.backend import Backend
from kvconn.errors import WrongSignature
from kvconn.hookspecs import PROJECT, BackendSpec, PolicySpec
from kvconn.policy import Policy
from kvconn.registry.signatures import hook_names

__all__ = ["PluginManager"]

_PLAIN = pluggy.HookimplOpts(
    wrapper=False,
    hookwrapper=False,
    optionalhook=False,
    tryfirst=False,
    trylast=False,
    specname=None,
)


class PluginManager(pluggy.PluginManager):
    """Takes every method named like a hook of the plugin's kind, marked or not."""

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(PolicySpec)
        self.add_hookspecs(BackendSpec)

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """As pluggy's; a method of another shape than its hook is a :class:`WrongSignature`."""
        try:
            return super().register(plugin, name)
        except pluggy.PluginValidationError as error:
            raise WrongSignature(_one_line(error)) from error

    def check_pending(self) -> None:
        """As pluggy's; a marked method that is named like no hook is a :class:`WrongSignature`."""
        try:
            super().check_pending()
        except pluggy.PluginValidationError as error:
            raise WrongSignature(_one_line(error)) from error

    def parse_hookimpl_opts(self, plugin: object, name: str) -> pluggy.HookimplOpts | None:
        """A hook by its name; whatever else a marker says about order or wrapping is ignored."""
        # Static, because reading a property of a plugin that is not open yet may raise.
        attribute = inspect.getattr_static(plugin, name)
        if not inspect.isroutine(attribute) or _is_ours(plugin, name):
            return None
        marked = hasattr(attribute, f"{PROJECT}_impl")
        return _PLAIN.copy() if marked or name in _hooks_of(plugin) else None


def _is_ours(plugin: object, name: str) -> bool:
    """Inherited from a base class of kvconn's: the plugin itself implements nothing there.

    So it is not warned when that hook will go.
    """
    kinds = type(plugin).__mro__
    owner = next((kind for kind in kinds if name in vars(kind)), kinds[0])
    return owner is not kinds[0] and owner.__module__.partition(".")[0] == "kvconn"


def _hooks_of(plugin: object) -> tuple[str, ...]:
    """A backend that has a method called ``permit`` is no policy, nor the other way round."""
    if isinstance(plugin, Policy):
        return hook_names(PolicySpec)
    if isinstance(plugin, Backend):
        return hook_names(BackendSpec)
    return hook_names(PolicySpec) + hook_names(BackendSpec)


def _one_line(error: pluggy.PluginValidationError) -> str:
    return " ".join(str(error).split())
