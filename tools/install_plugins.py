"""Install every plugin that the tree has into the running interpreter's environment.

``--core`` installs the core with them.  Editable, under ``constraints.txt``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(*arguments: str) -> None:
    """Install what ``plugins/`` holds; a plugin that is not there is not missed."""
    folders = [ROOT] if "--core" in arguments else []
    folders += sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    command: list[str | Path] = [*pip, "-c", ROOT / "constraints.txt"]
    for folder in folders:
        command += ["--editable", folder]
    subprocess.run(command, check=True)  # noqa: S603 - own arguments


if __name__ == "__main__":
    main(*sys.argv[1:])
