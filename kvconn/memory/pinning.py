"""Page-locking of the host pool for a CUDA device; elsewhere nothing."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["pin", "unpin"]

_cuda: Any = torch.cuda  # partly untyped in torch's own annotations


def pin(address: int, nbytes: int, device: torch.device | str | None) -> bool:
    """Register the memory so that copies to and from ``device`` are asynchronous; whether done.

    Touches all of it.  Raises :class:`RuntimeError` when the driver refuses.
    """
    if device is None or torch.device(device).type != "cuda" or not nbytes:
        return False
    status = int(_cuda.cudart().cudaHostRegister(address, nbytes, 0))
    if status:
        msg = f"cudaHostRegister of {nbytes} bytes answered {status}: lower the pool's capacity"
        raise RuntimeError(msg)
    return True


def unpin(address: int) -> None:
    """The inverse of :func:`pin`, once the copies in flight have ended."""
    _cuda.synchronize()
    _cuda.cudart().cudaHostUnregister(address)
