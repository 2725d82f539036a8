"""Every error that kvconn raises on purpose, in one tree.

::

    KvconnError
    ├── ConfigurationError          the configuration names something that cannot be
    │   ├── UnknownPlugin           no installed distribution offers that name
    │   ├── BrokenPlugin            the plugin is there but cannot be used
    │   │   ├── PluginImportFailed  its module does not import
    │   │   ├── WrongContract       it was written for another contract version
    │   │   └── WrongSignature      a hook is missing or has another shape
    │   ├── ForbiddenPlugin         KVCONN_FORBID names it
    │   ├── CapacityTooSmall        the capacity does not hold one chunk
    │   └── ObjectTooLarge          a chunk is larger than the store takes
    ├── CannotPage                  an engine tensor cannot be moved block by block
    ├── TraceError                  a workload file has a line that is not a request
    ├── TryAgain                    a block store could not do it now; in a moment it may
    └── MisuseError                 the calling engine broke the contract
        ├── WrongKey                a key is not ``bytes`` of the connector's length
        ├── TransferAlreadyCompleted  a transfer was completed twice
        ├── UnknownTransfer         nobody prepared that transfer
        └── ConnectorClosed         the connector was used after ``close``

Each message is one sentence that says what to do.  Nothing else in kvconn raises through to an
engine: a backend's own exceptions become misses and failed transfers (guarantee F2).
"""

from __future__ import annotations


class KvconnError(Exception):
    """Base of all errors below."""


class ConfigurationError(KvconnError):
    """The configuration names something that cannot be; the command line exits with 2."""


class UnknownPlugin(ConfigurationError):
    """No installed distribution offers a plugin of that name."""


class BrokenPlugin(ConfigurationError):
    """A plugin is installed but cannot be used."""


class PluginImportFailed(BrokenPlugin):
    """The module that an entry point names does not import."""


class WrongContract(BrokenPlugin):
    """The plugin was written for another contract version."""


class WrongSignature(BrokenPlugin):
    """A hook is missing, ``async``, or takes other arguments than its specification."""


class ForbiddenPlugin(ConfigurationError):
    """The environment variable ``KVCONN_FORBID`` names this plugin."""


class CapacityTooSmall(ConfigurationError):
    """The capacity of a backend does not hold one chunk."""


class ObjectTooLarge(ConfigurationError):
    """A chunk with its seal is larger than the largest object that the store takes."""


class CannotPage(KvconnError, ValueError):
    """An engine tensor cannot be seen as pages; raised when it is registered, never later."""


class TraceError(KvconnError, ValueError):
    """A workload file has a line that is not a request; names file, line and reason."""


class TryAgain(KvconnError):
    """Raised by a block store: the same call may work in a moment, and is made again."""


class MisuseError(KvconnError):
    """The engine broke the contract; raised in strict mode, counted and ignored otherwise."""


class WrongKey(MisuseError, TypeError):
    """A key is not ``bytes``, or not of the length of the others."""


class TransferAlreadyCompleted(MisuseError):
    """A transfer was completed twice; its first verdicts stand."""


class UnknownTransfer(MisuseError, KeyError):
    """Nobody prepared that transfer here."""

    __str__ = Exception.__str__


class ConnectorClosed(MisuseError):
    """The connector was used after ``close``."""
