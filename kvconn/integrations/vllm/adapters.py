"""Which weights the name of a LoRA adapter stands for (K3).

vLLM's block hashes carry an adapter's name, since 0.31 its path as well, and never what is in the
files: an adapter that was trained further in its place would hit what a disk holds of the old one.
The files are read on a thread of their own; until that is done, requests of the adapter wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvconn.integrations.vllm.weights import fingerprint
from kvconn.threads import Background

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

__all__ = ["Adapter", "Adapters"]

_MOST = 1024
_CONFIG = "adapter_config.json"


@dataclass(slots=True, eq=False)
class Adapter:
    """What keys are mixed with."""

    name: str
    path: str
    weights: str | None = None
    """``None`` until it is known."""

    def read(self) -> None:
        """On a thread.  What cannot be read is like no other, so that nothing is ever shared."""
        try:
            self.weights = fingerprint(self.path, _CONFIG)
        except OSError as error:
            self.weights = f"unreadable {id(self)} {error.errno}"

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
