"""A short hit is cheaper to compute again than to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from kvconn.backend import PluginConfig
from kvconn.policy import Policy

if TYPE_CHECKING:
    from kvconn.types import Hits, Request

__all__ = ["MinLoadTokensConfig", "MinLoadTokensPolicy"]


class MinLoadTokensConfig(PluginConfig):
    """Options of :class:`MinLoadTokensPolicy`."""

    tokens: int = Field(default=256, ge=0, description="Fewest tokens that are worth a load.")


class MinLoadTokensPolicy(Policy):
    """A hit that restores fewer than ``tokens`` tokens is a miss."""

    contract_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = MinLoadTokensConfig

    def __init__(self, config: MinLoadTokensConfig) -> None:
        super().__init__(config)
        self._tokens = config.tokens

    def accept(self, request: Request, hits: Hits) -> int:  # noqa: ARG002 - the hook's signature
        """All or none."""
        return hits.chunks if hits.tokens >= self._tokens else 0
