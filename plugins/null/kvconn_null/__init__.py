"""kvconn-null: accepts, completes, keeps nothing; a baseline, and a way to switch a cache off."""

from kvconn_null.backend import NullBackend

__all__ = ["NullBackend"]
