"""``kvconn new``: what it writes works, from the first minute, untouched."""

from __future__ import annotations

import json
import re
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from kvconn.cli import app

NAME = "my-store"
MAIN = "from kvconn.cli import main; main()"


def new(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        app(["new", *arguments])
    return ended.value.code


@pytest.fixture
def generated(tmp_path, capsys) -> Path:
    assert new(NAME, "--into", str(tmp_path)) == 0
    capsys.readouterr()
    return tmp_path / f"kvconn-{NAME}"


def test_it_says_what_it_wrote_and_what_to_do_next(tmp_path, capsys):
    assert new(NAME, "--into", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "kvconn_my_store/store.py" in said
    assert "pip install --editable '.[testing]'" in said


def test_json_is_one_document(tmp_path, capsys):
    assert new("kvconn-my_store", "--into", str(tmp_path), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    folder = Path(said["folder"])
    assert folder.name == "kvconn-my-store"
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == set(said["files"])


def test_no_mark_of_the_template_is_left(generated):
    for path in generated.rglob("*"):
        if path.is_file():
            assert not re.search(r"@\w+@|__package__|\.tmpl", path.read_text() + str(path))


@pytest.mark.parametrize("name", ["", "My Store", "1st", "a--b", "../etc"])
def test_a_name_that_cannot_be_one_is_status_2(tmp_path, capsys, name):
    assert new(name, "--into", str(tmp_path)) == 2
    assert "cannot name a backend" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_written_over(generated, capsys):
    (generated / "README.md").write_text("mine")
    assert new(NAME, "--into", str(generated.parent)) == 2
    assert "there already" in capsys.readouterr().err
    assert (generated / "README.md").read_text() == "mine"


def test_a_name_that_is_taken_is_status_2(tmp_path, install, capsys):
    install("kvconn-mem", backends={"mem": "Backend"})
    assert new("mem", "--into", str(tmp_path)) == 2
    assert "installed already" in capsys.readouterr().err


@pytest.fixture
def python(tmp_path) -> Path:
    """An environment of its own that sees what is installed here."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    (sites,) = home.glob("lib/python*/site-packages")
    library = Path(sysconfig.get_path("stdlib"))
    own = {str(library), str(library / "lib-dynload")}
    seen = [path for path in sys.path if path and Path(path).is_dir() and path not in own]
    hooks = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (sites / "parent.pth").write_text("\n".join([*hooks, *seen]) + "\n")
    return home / "bin" / "python"


def run(*command: object, cwd: Path, status: int = 0) -> str:
    ended = subprocess.run(  # noqa: S603 - this interpreter
        [str(part) for part in command], cwd=cwd, capture_output=True, check=False, text=True
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    return ended.stdout


def test_it_is_installed_listed_checked_tested_and_uninstalled(generated, python, tmp_path):
    pip = sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"
    kvconn = python, "-c", MAIN

    def listed() -> set[str]:
        found = json.loads(run(*kvconn, "plugins", "--check", "--json", cwd=tmp_path))
        return {plugin["name"]: plugin["state"] for plugin in found["plugins"]}.items()

    run(*pip, "install", "--quiet", "--no-deps", generated, cwd=tmp_path)
    assert (NAME, "ok") in listed()
    url = f"{NAME}://{tmp_path}/store?capacity=1GiB"
    check = *kvconn, "check", "--backend", url, "--only", "R1 or L1", "--json"
    assert json.loads(run(*check, cwd=tmp_path))["good"]
    replayed = json.loads(run(*kvconn, "replay", "--backend", url, "--json", cwd=tmp_path))
    assert replayed["wrong_blocks"] == 0
    assert replayed["blocks"]["external_hits"] > 0
    assert " passed" in run(python, "-m", "pytest", "-p", "no:cacheprovider", cwd=generated)
    run(*pip, "uninstall", "--quiet", "--yes", generated.name, cwd=tmp_path)
    assert NAME not in dict(listed())
