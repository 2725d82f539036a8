"""Which weights the name of a LoRA adapter stands for (K3).

vLLM's block hashes carry an adapter's name, since 0.31 its path as well, and never what is in the
files: an adapter that was trained further in its place would hit what a disk holds of the old one.
The files are read on a thread of their own; until that is done, requests of the adapter wait, for
:data:`PATIENCE_S` at most, and then neither load nor store.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvconn.integrations.vllm.weights import fingerprint
from kvconn.threads import Background

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

__all__ = ["Adapter", "Adapters"]

_log = logging.getLogger("kvconn")

PATIENCE_S = 5.0
_MOST = 1024
_CONFIG = "adapter_config.json"


@dataclass(slots=True, eq=False)
class Adapter:
    """What keys are mixed with."""

    name: str
    path: str
    weights: str | None = None
    """``None`` until it is known."""
    late_at: float = field(default_factory=lambda: time.monotonic() + PATIENCE_S)

    def read(self) -> None:
        """On a thread.  What cannot be read is like no other, so that nothing is ever shared."""
        try:
            self.weights = fingerprint(self.path, _CONFIG)
        except Exception as error:  # noqa: BLE001 - whatever it is, requests wait for the end
            self.weights = f"unreadable {uuid.uuid4()}"
            _log.warning("LoRA adapter %s: %s; its blocks are not shared", self.name, error)

    @property
    def late(self) -> bool:
        """Whether nobody should wait for it any longer: a file system may hang."""
        return self.weights is None and time.monotonic() > self.late_at

    @property
    def identity(self) -> tuple[str, str, str]:
        """Of an adapter whose weights are known."""
        return self.name, self.path, self.weights or ""


class Adapters:
    """Each is read once, and again when a request asks vLLM to load it anew."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Adapter] = {}

    def of(self, request: LoRARequest | None) -> Adapter | None:
        """The adapter of ``request``; starts to read what is new."""
        if request is None:
            return None
        named = request.lora_name, request.lora_path, request.lora_int_id
        adapter = self._known.get(named)
        if adapter is None or getattr(request, "load_inplace", False):
            adapter = self._known[named] = Adapter(request.lora_name, request.lora_path)
            Background(adapter.read, "adapter")
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]
        return adapter
