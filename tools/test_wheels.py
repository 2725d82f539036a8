"""Run the tests against what is installed, from a folder that holds no source.

Usage: ``python tools/test_wheels.py FOLDER [PYTEST ARGUMENT ...]``
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK = (
    *(
        "tests/cli",
        "tests/registry",
        "tests/kit/test_deviations.py",
        "tests/kit/test_conformance.py",
    ),
    *("plugins/cpu", "plugins/null", "plugins/native", "plugins/disk/tests/test_conformance.py"),
)
"""What could differ in a wheel: entry points, data files, the command line, plugins."""


def main(folder: str, *arguments: str) -> int:
    """Copy the tests and their configuration to ``folder`` and run them there."""
    tree = Path(folder)
    shutil.rmtree(tree, ignore_errors=True)
    shutil.copytree(ROOT / "tests", tree / "tests")
    for tests in ROOT.glob("plugins/*/tests"):
        shutil.copytree(tests, tree / tests.relative_to(ROOT))
    shutil.copy(ROOT / "pyproject.toml", tree)
    there = [path for path in QUICK if (tree / path).exists()]
    command = [sys.executable, "-P", "-m", "pytest", *(arguments or there)]
    return subprocess.run(command, check=False, cwd=tree).returncode  # noqa: S603 - own arguments


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
