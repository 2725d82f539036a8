"""The two skip flags of a request: part of every connector, whatever its configuration says."""

from __future__ import annotations

from typing import ClassVar

from kvconn.policy import Policy
from kvconn.types import Permissions, Request

__all__ = ["PrefixSkipPolicy"]


class PrefixSkipPolicy(Policy):
    """A request that asked to skip the prefix cache reads, or writes, nothing (R1, R5)."""

    contract_version: ClassVar[int] = 1

    def permit(self, request: Request) -> Permissions:
        """Each direction by its own flag; one says nothing about the other."""
        return Permissions(
            read=not request.skip_reading_prefix_cache,
            write=not request.skip_writing_prefix_cache,
        )
