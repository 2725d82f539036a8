"""Versions, memory, plugins, disks."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from pydantic import ByteSize

from kvconn.doctor.finding import Finding, Verdict
from kvconn.hookspecs import CONTRACT_VERSION
from kvconn.registry import GROUPS, available, load_class

if TYPE_CHECKING:
    from kvconn.config import ConnectorConfig

__all__ = ["disks", "memory", "plugins", "versions"]


def _size(count: int) -> str:
    return ByteSize(count).human_readable(separator=" ")


def versions() -> Iterator[Finding]:
    """Ours, and what we stand on."""
    ours = metadata.version("kvconn")
    yield Finding(
        "kvconn", Verdict.GOOD,
        f"{ours}, contract {CONTRACT_VERSION}, Python {platform.python_version()}",
    )  # fmt: skip
    device = "CUDA" if torch.cuda.is_available() else "CPU only"
    yield Finding("torch", Verdict.GOOD, f"{torch.__version__}, {device}")
    try:
        native = metadata.version("kvconn-native")
        yield Finding("kvconn-native", Verdict.GOOD, f"{native}: files move without Python's lock")
    except metadata.PackageNotFoundError:
        yield Finding(
            "kvconn-native", Verdict.DOUBT,
            "not installed, and nothing needs it: pip install kvconn-native where a disk is a tier",
        )  # fmt: skip


def plugins() -> Iterator[Finding]:
    """Each one that is installed is imported here."""
    for group, kind in GROUPS.items():
        for name, found in sorted(available(group).items()):
            try:
                load_class(group, name)
            except Exception as error:  # noqa: BLE001 - whatever its module does
                yield Finding(f"{kind} {name}", Verdict.BAD, " ".join(str(error).split()))
            else:
                said = f"{found.distribution} {found.version}"
                yield Finding(f"{kind} {name}", Verdict.GOOD, said)


def memory(config: ConnectorConfig) -> Iterator[Finding]:
    """Whether what is to lie in host memory fits into what is there."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    for choice in config.tiers:
        options: Any = choice.options
        if choice.name != "cpu" or not hasattr(options, "capacity"):
            continue
        wanted, about = int(options.capacity), "memory"
        if wanted > there:
            says = f"cpu wants {_size(wanted)} and {_size(there)} are free: lower capacity"
            yield Finding(about, Verdict.BAD, says)
        else:
            says = f"cpu wants {_size(wanted)} of {_size(there)} that are free"
            yield Finding(about, Verdict.GOOD, says)


def disks(config: ConnectorConfig) -> Iterator[Finding]:
    """Room, and whether the page cache can be passed by."""
    for choice in config.tiers:
        path = getattr(choice.options, "path", None)
        if not isinstance(path, Path):
            continue
        home = next(p for p in (path, *path.parents) if p.is_dir())
        about = f"disk at {home}"
        yield _room(about, home, int(getattr(choice.options, "capacity", 0)))
        yield _direct(about, home)


def _room(about: str, home: Path, wanted: int) -> Finding:
    room = os.statvfs(home)
    there = room.f_bavail * room.f_frsize
    if wanted > there:
        says = f"{_size(wanted)} are wanted and {_size(there)} are free: lower capacity"
        return Finding(about, Verdict.DOUBT, says)
    return Finding(about, Verdict.GOOD, f"{_size(there)} are free")


def _direct(about: str, home: Path) -> Finding:
    try:
        with tempfile.NamedTemporaryFile(dir=home, prefix=".kvconn-doctor-") as file:
            os.close(os.open(file.name, os.O_RDONLY | os.O_DIRECT))
    except PermissionError:
        says = f"nothing can be written into {home}: give this user the right to"
        return Finding(about, Verdict.BAD, says)
    except OSError:
        says = "O_DIRECT does not work there: files go through the page cache"
        return Finding(about, Verdict.DOUBT, says)
    return Finding(about, Verdict.GOOD, "O_DIRECT works")
