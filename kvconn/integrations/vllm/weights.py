"""Tells one set of weights in a local directory from another, without reading all of it."""

from __future__ import annotations

from pathlib import Path

import xxhash

__all__ = ["fingerprint"]

_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLES = 64
_SAMPLE_BYTES = 4096


def fingerprint(model: str, *also: str) -> str:
    """Digest of names, sizes and evenly spread samples of the weight files; "" if not local.

    ``also`` names files beside them that count.

    A directory whose weights were trained further keeps its name and the shapes of its tensors;
    the blocks that a disk holds of the old weights must not be taken for blocks of the new ones.
    """
    root = Path(model)
    files = [root] if root.is_file() else sorted(root.glob("*")) if root.is_dir() else []
    digest = xxhash.xxh3_128()
    weights = [path for path in files if path.suffix in _SUFFIXES or path.name in also]
    for path in weights:
        _add(path, digest)
    return digest.hexdigest() if weights else ""


def _add(path: Path, digest: xxhash.xxh3_128) -> None:
    size = path.stat().st_size
    digest.update(f"{path.name} {size} ".encode())
    with path.open("rb") as file:
        for sample in range(_SAMPLES):  # the first at the start, the last at the end
            file.seek(sample * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
