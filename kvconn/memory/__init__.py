"""The host pool, engine tensors seen as pages, and the copies between the two.

The stored form of a chunk is one slot, *segment-major*: for each segment of
:attr:`KVCaches.segments` in turn, the ``blocks_per_chunk`` pages of the chunk in block order, with
nothing in between.  What is left of the slot's last 4096 bytes means nothing.  Changing any of
this is a new ``FORMAT_VERSION``.
"""

from kvconn.memory.caches import KVCaches
from kvconn.memory.copies import Copier, Copy
from kvconn.memory.pool import HostPool

__all__ = ["Copier", "Copy", "HostPool", "KVCaches"]
