"""A composition of backends is a backend."""

from kvconn.tiers.backend import TieredBackend, compose

__all__ = ["TieredBackend", "compose"]
