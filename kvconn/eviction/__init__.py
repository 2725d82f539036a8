"""Which block goes next, by entry point in the group ``kvconn.eviction``.

A policy never sees blocks, only *entries*: small integers that an index hands out and re-uses.
"""

from kvconn.eviction.base import EvictionPolicy

__all__ = ["EvictionPolicy"]
