"""A chunk that only one request ever offers is not worth storing."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from kvconn.backend import PluginConfig
from kvconn.policy import Policy

if TYPE_CHECKING:
    from kvconn.identity import Key
    from kvconn.types import Request

__all__ = ["StoreThresholdConfig", "StoreThresholdPolicy"]

_WANTED: tuple[str, ...] = ()
"""In place of request ids: the key has had its offers.  No key is tracked without an offer."""


class StoreThresholdConfig(PluginConfig):
    """Options of :class:`StoreThresholdPolicy`."""

    offers: int = Field(
        default=2, ge=1, le=16, description="Requests that must have offered a chunk."
    )
    tracked: int = Field(
        default=64_000, ge=1, description="Chunks remembered; the longest unoffered is forgotten."
    )


class StoreThresholdPolicy(Policy):
    """Admits a chunk once ``offers`` different requests have offered it.

    An offer counts once per request id, however often an engine repeats it.  At most ``tracked``
    keys of at most ``offers - 1`` request ids are held; a forgotten chunk counts from zero again.
    """

    contract_version: ClassVar[int] = 1
    Config: ClassVar[type[PluginConfig]] = StoreThresholdConfig

    def __init__(self, config: StoreThresholdConfig) -> None:
        super().__init__(config)
        self._offers = config.offers
        self._tracked = config.tracked
        self._offered_by: OrderedDict[Key, tuple[str, ...]] = OrderedDict()

    def admit(self, request: Request, keys: list[Key]) -> list[Key]:
        """The keys with enough offers, this one included."""
        return [key for key in keys if self._count(key, request.id)]

    def _count(self, key: Key, request_id: str) -> bool:
        """Note one offer of ``key``; whether it has enough of them."""
        known = self._offered_by.get(key)
        if known is None:
            known = ()
        elif known is _WANTED:
            self._offered_by.move_to_end(key)
            return True
        requests = known if request_id in known else (*known, request_id)
        wanted = len(requests) >= self._offers
        self._offered_by[key] = _WANTED if wanted else requests
        self._offered_by.move_to_end(key)
        if len(self._offered_by) > self._tracked:
            self._offered_by.popitem(last=False)
        return wanted
