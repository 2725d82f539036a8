"""A new backend distribution, from a template."""

from kvconn.scaffold.generate import generate

__all__ = ["generate"]
