"""Run ``kvconn check`` over every backend of the tree that is installed, and over tiers of them.

Usage: ``python tools/check_backends.py FOLDER [--alone]``; a disk store may lie in the folder.
``--alone`` leaves the tiers out.
"""

from __future__ import annotations

import subprocess
import sys

from kvconn.registry import BACKENDS, available

URLS = {"cpu": "cpu://", "disk": "disk://{folder}", "null": "null://"}


def main(folder: str, *options: str) -> int:
    """Status 1 if one of them breaks the contract."""
    there = available(BACKENDS)
    urls = {name: url.format(folder=folder) for name, url in URLS.items() if name in there}
    checks = [[url] for url in urls.values()]
    if {"cpu", "disk"} <= urls.keys() and "--alone" not in options:
        checks.append([urls["cpu"], urls["disk"]])
    return max([_check(urls) for urls in checks], default=0)


def _check(urls: list[str]) -> int:
    options = [part for url in urls for part in ("--backend", url)]
    call = "from kvconn.cli import main; main()"
    command = [sys.executable, "-P", "-c", call, "check", *options]
    return subprocess.run(command, check=False).returncode  # noqa: S603 - own arguments


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
