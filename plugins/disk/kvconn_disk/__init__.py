"""kvconn-disk: keeps blocks in files."""

from kvconn_disk.backend import DiskBackend, DiskConfig

__all__ = ["DiskBackend", "DiskConfig"]
