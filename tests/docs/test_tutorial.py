"""The tutorial, every command and every listing, from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tox", reason="the tutorial is followed in the environment docs")

ROOT = Path(__file__).parents[2]
PAGE = "tutorial.md"
COMMANDS = {
    "kvconn": "from kvconn.cli import main; main()",
    "pytest": "import sys, pytest; sys.exit(pytest.main())",
}


def pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", *arguments], check=True)  # noqa: S603 - own


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """kvconn as an index would have it."""
    folder = tmp_path_factory.mktemp("wheels")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    return folder


@pytest.fixture
def shell(tmp_path, wheels):
    """Runs a command as a reader would, in an environment of its own."""
    home = tmp_path / "env"
    # Its torch is this environment's: nothing in the tutorial depends on another one.
    subprocess.run([sys.executable, "-m", "venv", home], check=True)  # noqa: S603 - own
    (sites,) = home.glob("lib/python*/site-packages")
    parent = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    (sites / "parent.pth").write_text(f"import site; site.addsitedir({str(parent)!r})\n")
    for name, run_it in COMMANDS.items():  # there already for pip, which makes no scripts then
        script = home / "bin" / name
        script.write_text(f"#!{home}/bin/python\n{run_it}\n")
        script.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{home / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name in ("TOX_ENV_NAME", "TOX_ENV_DIR", "TOX_WORK_DIR", "VIRTUAL_ENV", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    where = tmp_path / "work"
    where.mkdir()

    def run(line: str) -> str:
        nonlocal where
        if line.startswith("cd "):
            where /= line.removeprefix("cd ")
            return ""
        line = line.replace("/tmp/", f"{tmp_path}/")  # noqa: S108 - as the page has it
        ended = subprocess.run(  # noqa: S602 - the page's own commands
            line, shell=True, cwd=where, env=environment, capture_output=True, check=False,
            text=True,
        )  # fmt: skip
        assert ended.returncode == 0, f"{line}\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        return ended.stdout

    def write(name: str, text: str) -> None:
        assert (where / name).exists(), f"{name} is no file that kvconn new wrote"
        (where / name).write_text(text)

    run.write = write
    return run


def test_the_tutorial_can_be_followed_word_for_word(shell, listings_of):
    said = {}
    for listing in listings_of(PAGE):
        if listing.language == "python":
            shell.write(listing.title, listing.text)
        elif listing.language == "console":
            for line in listing.text.splitlines():
                said[line] = shell(line.removeprefix("$ "))
    assert "sqlite" in said["$ kvconn plugins --check"]
    assert "it keeps the contract" in next(
        out for line, out in said.items() if line.startswith("$ kvconn check")
    )
    assert "0 wrong" in next(
        out for line, out in said.items() if line.startswith("$ kvconn replay")
    )
    assert " passed" in said["$ pytest"]
    assert "failed" not in said["$ pytest"]
