"""What an operator configures."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from kvconn.blockstore import BlockStoreBackend, StoreConfig
from kvconn_disk.store import DiskStore

__all__ = ["DiskBackend", "DiskConfig"]


class DiskConfig(StoreConfig):
    """``disk:///var/cache/kv?capacity=200GiB``."""

    path: Path = Field(description="The directory; made when it is not there.")


class DiskBackend(BlockStoreBackend):
    """Blocks in files, one per chunk and shard."""

    contract_version: ClassVar[int] = 1
    tier = "disk"
    Store = DiskStore
    Config = DiskConfig
    config: DiskConfig
