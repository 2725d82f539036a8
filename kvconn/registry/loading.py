"""From a name to a checked class: only what is named is imported."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from kvconn.backend import Backend
from kvconn.errors import PluginImportFailed
from kvconn.eviction import EvictionPolicy
from kvconn.policy import Policy
from kvconn.registry.checks import check_class
from kvconn.registry.discovery import BACKENDS, EVICTION, POLICIES, Found, find

__all__ = [
    "import_plugin",
    "load_backend_class",
    "load_class",
    "load_eviction_class",
    "load_policy_class",
]

_BASES: dict[str, type] = {BACKENDS: Backend, POLICIES: Policy, EVICTION: EvictionPolicy}


def load_backend_class(name: str) -> type[Backend]:
    """The backend called ``name``; raises a :class:`~kvconn.errors.ConfigurationError`."""
    return load_class(BACKENDS, name)


def load_policy_class(name: str) -> type[Policy]:
    """The policy called ``name``; raises a :class:`~kvconn.errors.ConfigurationError`."""
    return load_class(POLICIES, name)


def load_eviction_class(name: str) -> type[EvictionPolicy]:
    """The eviction policy called ``name``; raises a :class:`~kvconn.errors.ConfigurationError`."""
    return load_class(EVICTION, name)


def load_class(group: str, name: str) -> type:
    """The plugin of any group; what the functions above do."""
    found = find(group, name)
    return check_class(found, import_plugin(found), _BASES[group])


def import_plugin(found: Found) -> object:
    """What the entry point names, unchecked.  Raises :class:`PluginImportFailed`."""
    try:
        return EntryPoint(found.name, found.value, found.group).load()
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        msg = f"{found} does not import ({reason}): {_advice(found, error)}"
        raise PluginImportFailed(msg) from error


def _advice(found: Found, error: BaseException) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    own = found.value.partition(":")[0].partition(".")[0]
    if missing and missing.partition(".")[0] != own:
        return f"install what provides the module {missing!r}"
    return f"pip install --force-reinstall {found.distribution}"
