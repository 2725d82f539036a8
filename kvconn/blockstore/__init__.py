"""The easy way to write a backend: five plain methods over named buffers."""

from kvconn.blockstore.backend import BlockStoreBackend
from kvconn.blockstore.config import StoreConfig
from kvconn.blockstore.store import BlockStore, Capabilities

__all__ = ["BlockStore", "BlockStoreBackend", "Capabilities", "StoreConfig"]
