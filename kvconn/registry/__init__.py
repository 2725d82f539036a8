"""Discovery: which plugins are installed, and the checked class behind a name."""

from kvconn.registry.checks import check_class
from kvconn.registry.discovery import (
    BACKENDS,
    EVICTION,
    GROUPS,
    POLICIES,
    Found,
    available,
    find,
    installed,
)
from kvconn.registry.forbid import FORBID, PREFIX_SKIP, is_forbidden
from kvconn.registry.loading import (
    import_plugin,
    load_backend_class,
    load_class,
    load_eviction_class,
    load_policy_class,
)
from kvconn.registry.manager import PluginManager

__all__ = [
    "BACKENDS",
    "EVICTION",
    "FORBID",
    "GROUPS",
    "POLICIES",
    "PREFIX_SKIP",
    "Found",
    "PluginManager",
    "available",
    "check_class",
    "find",
    "import_plugin",
    "installed",
    "is_forbidden",
    "load_backend_class",
    "load_class",
    "load_eviction_class",
    "load_policy_class",
]
