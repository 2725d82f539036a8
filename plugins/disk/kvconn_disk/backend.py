"""What an operator configures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kvconn.blockstore import BlockStoreBackend, StoreConfig
from kvconn.config import Capacity, Per
from kvconn_disk.store import DiskStore

__all__ = ["DiskBackend", "DiskConfig"]


class DiskConfig(StoreConfig):
    """``disk:///var/cache/kv?capacity=200GiB``."""

    path: Path = Field(description="The directory; made when it is not there.")
    capacity: Annotated[Capacity, Per.TOTAL] = Field(
        description="Bytes that the directory may take of its file system, over all engines in it."
    )
    shared: bool = Field(
        default=False,
        description="Look for what other engines with the same model store while this one runs.",
    )
    sync: Literal["none", "close"] = Field(
        default="none",
        description="When bytes are sure to outlive a power cut: never, or when they are stored.",
    )
    direct: Literal["auto", "off"] = Field(
        default="auto", description="Pass the page cache by (O_DIRECT) where that works."
    )


class DiskBackend(BlockStoreBackend):
    """Blocks in files, one per chunk and shard."""

    contract_version: ClassVar[int] = 1
    tier = "disk"
    Store = DiskStore
    Config = DiskConfig
    config: DiskConfig
