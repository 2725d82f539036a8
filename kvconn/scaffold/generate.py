"""Writes the files of a new distribution."""

from __future__ import annotations

import re
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

from kvconn.errors import ConfigurationError
from kvconn.hookspecs import CONTRACT_VERSION
from kvconn.registry import BACKENDS, available

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["generate"]

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def generate(name: str, into: Path) -> list[Path]:
    """Write the distribution ``kvconn-<name>`` into the folder of that name under ``into``.

    Answers the files, the folder first.  Raises :class:`ConfigurationError` for a name that
    cannot be one or is taken, and for a folder that is there and not empty.
    """
    name = name.removeprefix("kvconn-").removeprefix("kvconn_")
    if not _NAME.fullmatch(name):
        msg = f"{name!r} cannot name a backend: write it like my-store, in small letters"
        raise ConfigurationError(msg)
    name = name.replace("_", "-")
    if name in available(BACKENDS):
        msg = f"a backend {name!r} is installed already: choose another name"
        raise ConfigurationError(msg)
    folder = into / f"kvconn-{name}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder} is there already: choose another name, or another folder with --into"
        raise ConfigurationError(msg)
    words = _words(name)
    written = [folder]
    for relative, template in _templates(resources.files(__package__) / "template"):
        path = folder / _filled(relative, words)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(template.read_text(), words))
        written.append(path)
    (folder / "LICENSE").write_text(_license())
    return [*written, folder / "LICENSE"]


def _words(name: str) -> dict[str, str]:
    package = f"kvconn_{name.replace('-', '_')}"
    major, minor = metadata.version("kvconn").split(".")[:2]
    return {
        "@name@": name,
        "@distribution@": f"kvconn-{name}",
        "@package@": package,
        "__package__": package,
        "@Class@": "".join(word.capitalize() for word in re.split("[-_]", name)),
        "@contract@": str(CONTRACT_VERSION),
        "@version@": f"{major}.{minor}",
        "@next_version@": f"{major}.{int(minor) + 1}",
    }


def _filled(text: str, words: dict[str, str]) -> str:
    for mark, word in words.items():
        text = text.replace(mark, word)
    return text


def _templates(folder: Traversable, at: str = "") -> list[tuple[str, Traversable]]:
    found: list[tuple[str, Traversable]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _templates(entry, f"{at}{entry.name}/")
        elif entry.name.endswith(".tmpl"):
            found.append((at + entry.name.removesuffix(".tmpl"), entry))
    return found


def _license() -> str:
    """The licence that kvconn itself is under."""
    files = metadata.files("kvconn") or []
    for file in files:
        if file.name == "LICENSE":
            return file.read_text()
    return "Apache License, Version 2.0: https://www.apache.org/licenses/LICENSE-2.0\n"
