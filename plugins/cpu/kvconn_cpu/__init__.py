"""kvconn-cpu: keeps blocks in host memory."""

from kvconn_cpu.backend import CpuBackend, CpuConfig

__all__ = ["CpuBackend", "CpuConfig"]
