"""Build a wheel of the core and of every plugin, and install the wheels.

Usage: ``python tools/install_wheels.py FOLDER``, where the wheels are left.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pip(*arguments: str | Path) -> None:
    """Run pip in this interpreter's environment."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)  # noqa: S603 - own


def main(folder: str) -> None:
    """Leave wheels in ``folder``, emptied first, and install all of them."""
    shutil.rmtree(folder, ignore_errors=True)
    projects = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, *projects)
    wheels = sorted(Path(folder).glob("*.whl"))
    # What an earlier run installed has the same version: it must go, or pip would keep it.
    pip("uninstall", "--quiet", "--yes", *(wheel.name.split("-")[0] for wheel in wheels))
    pip("install", "--quiet", "-c", ROOT / "constraints.txt", *wheels)


if __name__ == "__main__":
    main(*sys.argv[1:])
