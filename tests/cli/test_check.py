"""``kvconn check``: the kit without a class."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from kvconn.cli import app
from kvconn.testing import KIT_VERSION
from kvconn.testing.rules import RULES

MAIN = "from kvconn.cli import main; main()"
PLANTED = """
from healthy import MemoryBackend, MemoryConfig

class Config(MemoryConfig):
    token: str = ""

class MemBackend(MemoryBackend):
    contract_version = 1
    Config = Config
    def reset(self):
        return {"memory": 8}
"""


@pytest.fixture
def check(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(["check", *arguments])
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return run


@pytest.fixture
def broken(install) -> str:
    """A backend that does not reset."""
    install("kvconn-mem", PLANTED, backends={"mem": "MemBackend"})
    return "mem://"


def test_a_broken_backend_is_status_1_and_the_rule_is_named(check, broken):
    status, out, _ = check("--backend", broken, "--only", "L5 or R3")
    assert status == 1
    assert "it breaks the contract" in out
    assert "✘ test_L5_reset_empties_and_says_what_it_did" in out
    assert re.search(rf"✔ +R3 +{RULES['R3']} +1", out)


def test_json_is_one_document_by_guarantee(check, broken):
    status, out, _ = check("--backend", broken, "--only", "L5 or R3", "--json")
    said = json.loads(out)
    assert (status, said["good"], said["kit"], said["backend"]) == (1, False, KIT_VERSION, ["mem"])
    rules = {rule["rule"]: rule for rule in said["rules"]}
    assert set(rules) == {"R3", "L5"}
    assert rules["R3"]["passed"] == 1
    assert rules["L5"]["failed"] >= 1
    bad = next(test for test in rules["L5"]["tests"] if test["outcome"] == "failed")
    assert bad["reason"]
    assert "reset" in bad["details"]


def test_a_junit_file_is_written_on_request(check, broken, tmp_path):
    check("--backend", broken, "--only", "R3", "--junit", str(tmp_path / "report.xml"))
    (suite,) = ET.parse(tmp_path / "report.xml").getroot()  # noqa: S314 - our own
    assert suite.get("tests") == "1"


def test_what_is_asked_for_and_does_not_exist_is_status_2(check, broken):
    status, _, err = check("--backend", broken, "--only", "nothing_like_it")
    assert (status, err) == (
        2, "kvconn: no test of the kit matches 'nothing_like_it': try --only L1\n",
    )  # fmt: skip
    status, _, err = check("--backend", "mme://")
    assert status == 2
    assert "no backend is called 'mme'" in err


def test_no_secret_is_shown(check, broken):
    _, out, err = check("--backend", f"{broken}?token=hunter2", "--only", "L5 or C3", "--verbose")
    assert "test_C3" in out
    assert "hunter2" not in out + err


@pytest.mark.needs("null")
def test_it_works_in_a_process_of_its_own_in_any_folder(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    command = [sys.executable, "-c", MAIN, "check", "--backend", "null://", "--json"]
    ended = subprocess.run(  # noqa: S603 - this interpreter
        command, cwd=tmp_path, capture_output=True, check=False, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["good"]
    assert [path.name for path in tmp_path.iterdir()] == ["pytest.ini"]


@pytest.mark.needs("disk")
def test_what_an_operator_has_in_a_directory_is_left_alone(check, tmp_path):
    (tmp_path / "precious").write_text("precious")
    url = f"disk://{tmp_path}?capacity=1MiB"
    status, out, _ = check("--backend", url, "--only", "R3 or K2 or L6")
    assert status == 0, out
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_several_backends_are_tiers(check, broken, tmp_path):
    status, out, _ = check("--backend", broken, "--backend", f"{broken}?token=2", "--only", "R1")
    assert status == 0, out
    assert "mem over mem" in out
