"""What a policy author subclasses.

The methods *are* the hook implementations of :class:`kvconn.hookspecs.PolicySpec`, which documents
each.  Called from the scheduler's thread only; the connector asks a policy only for the hooks that
it overrides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kvconn.backend import PluginConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvconn.identity import Key
    from kvconn.types import Hits, Permissions, Request

__all__ = ["Policy"]


class Policy:
    """A plugin that narrows, named by an entry point in the group ``kvconn.policies``."""

    contract_version: ClassVar[int]
    """The :data:`kvconn.hookspecs.CONTRACT_VERSION` this class was written for."""

    Config: ClassVar[type[PluginConfig]] = PluginConfig
    """The options this policy takes."""

    def __init__(self, config: PluginConfig) -> None:
        self.config = config

    def permit(self, request: Request) -> Permissions | None:
        """Both by default."""

    def admit(self, request: Request, keys: list[Key]) -> Sequence[Key] | None:
        """All by default."""

    def accept(self, request: Request, hits: Hits) -> int | None:
        """All by default."""
