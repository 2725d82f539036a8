"""The options that every block store has."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from kvconn.backend import PluginConfig
from kvconn.config.sizes import Capacity, Per

__all__ = ["StoreConfig"]


class StoreConfig(PluginConfig):
    """``capacity`` is the only one that must be given."""

    capacity: Annotated[Capacity, Per.TOTAL] = Field(
        description="Bytes of stored objects in total, over all ranks of one engine."
    )
    eviction: str = Field(default="lru", description="The eviction policy, by name.")
    high_watermark: float = Field(
        default=0.99, gt=0, le=1, description="The share of capacity at which eviction begins."
    )
    low_watermark: float = Field(
        default=0.98, gt=0, le=1, description="The share of capacity at which it ends."
    )
    staging: Annotated[Capacity, Per.PROCESS] = Field(
        default=64 << 20,
        validate_default=True,
        description="Host memory per worker process for bytes on their way.",
    )
    readers: int = Field(default=4, ge=1, description="Threads per worker process that load.")
    writers: int = Field(
        default=4, ge=1, description="Threads per worker process that store, or load if they must."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low_watermark > self.high_watermark:
            msg = "low_watermark is above high_watermark: give the lower share first"
            raise ValueError(msg)
        return self
