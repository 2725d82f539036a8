"""``kvconn plugins``, and the promises of the command line that every verb inherits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

from kvconn.cli import app

POLICY = """
from kvconn.policy import Policy
from pathlib import Path
print("noise from an import")

class Narrow(Policy):
    contract_version = 1
"""


@pytest.fixture
def kvconn(capsys):
    """Call the command line; its exit status, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(list(arguments))
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def rows(kvconn):
    """Call ``kvconn plugins --json``; its exit status, and its rows by name."""

    def call(*arguments: str) -> tuple[int, dict[str, dict[str, object]]]:
        status, out, _ = kvconn("plugins", "--json", *arguments)
        return status, {row["name"]: row for row in json.loads(out)["plugins"]}

    return call


@pytest.fixture
def only(monkeypatch):
    """Leave only the planted plugins and kvconn's own, however many are installed here."""
    from kvconn.cli import plugins  # noqa: PLC0415

    def mine(group: str) -> list[object]:
        found = installed(group)
        return [f for f in found if f.value.startswith(("planted_", "kvconn.policies.min"))]

    installed = plugins.installed
    monkeypatch.setattr(plugins, "installed", mine)


def test_what_is_found_is_listed_without_importing_it(install, rows):
    module = install("kvconn-bad", "raise RuntimeError", backends={"bad": "Bad"})
    status, found = rows()
    assert status == 0
    assert module not in sys.modules
    assert found["bad"] == {
        "kind": "backend",
        "name": "bad",
        "distribution": "kvconn-bad",
        "version": "1.0",
        "contract_version": None,
        "state": "found",
        "error": None,
    }
    assert found["prefix_skip"]["kind"] == "policy"
    assert found["lru"]["kind"] == "eviction policy"


def test_a_forbidden_plugin_is_shown_as_such_and_never_imported(install, rows, only, monkeypatch):
    install("kvconn-bad", "raise RuntimeError", backends={"bad": "Bad"})
    monkeypatch.setenv("KVCONN_FORBID", "bad")
    for arguments in ((), ("--check",)):
        status, found = rows(*arguments)
        assert (status, found["bad"]["state"], found["bad"]["error"]) == (0, "forbidden", None)


def test_checking_says_which_contract_a_good_plugin_speaks(install, rows, only):
    install("kvconn-good", POLICY, policies={"good": "Narrow"})
    status, found = rows("--check")
    assert status == 0
    assert {(row["state"], row["contract_version"]) for row in found.values()} == {("ok", 1)}
    assert set(found) == {"good", "min_load_tokens"}


@pytest.mark.parametrize(
    ("source", "contract", "error"),
    [
        ("import no_such_module", None, "does not import (ModuleNotFoundError"),
        ("import os; os.kill(os.getpid(), 11)", None, "ended the process with SIGSEGV"),
        ("import os; print('last words'); os._exit(3)", None, "with status 3 when it was imported"),
        (POLICY.replace("= 1", "= 7"), 7, "declares contract_version 7"),
        (POLICY.replace("= 1", "= 'x'"), "'x'", "declares contract_version 'x'"),
        (POLICY + "    def permit(self, req): ...", 1, "Narrow.permit takes (req)"),
    ],
)
@pytest.mark.usefixtures("only")
def test_a_broken_plugin_harms_no_other_and_is_a_1(install, rows, source, contract, error):
    install("kvconn-bad", source, policies={"bad": "Narrow"})
    status, found = rows("--check")
    assert status == 1
    assert (found["bad"]["state"], found["bad"]["contract_version"]) == ("broken", contract)
    assert error in found["bad"]["error"]
    assert "kvconn-bad" in found["bad"]["error"]
    assert found["min_load_tokens"]["state"] == "ok"


def test_an_import_that_hangs_is_ended_with_all_it_started(install, rows, only, tmp_path):
    pids = tmp_path / "pids"
    install(
        "kvconn-hung",
        "import os, subprocess, threading\n"
        "child = subprocess.Popen(['tail', '-f', '/dev/null'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "threading.Event().wait()",
        policies={"hung": "Narrow"},
    )
    status, found = rows("--check", "--timeout", "3")
    assert status == 1
    assert "did not import within 3 s" in found["hung"]["error"]
    importer, started = map(int, pids.read_text().split())
    assert not os.path.exists(f"/proc/{importer}")  # noqa: PTH110
    assert _gone(started)


def _gone(pid: int) -> bool:
    """Whether a killed process is dead; its new parent may be slow to bury it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
                if stat.read().rpartition(") ")[2][0] == "Z":
                    return True
        except FileNotFoundError:
            return True
    return False


def test_a_thread_that_an_import_leaves_behind_is_no_hang(install, rows, only):
    source = f"{POLICY}\nimport threading\nthreading.Thread(target=threading.Event().wait).start()"
    install("kvconn-thread", source, policies={"thread": "Narrow"})
    status, found = rows("--check")
    assert (status, found["thread"]["state"]) == (0, "ok")


def test_two_distributions_with_one_name_are_both_shown_broken(install, kvconn, only):
    install("kvconn-a", POLICY, policies={"same": "Narrow"})
    install("kvconn-b", POLICY, policies={"same": "Narrow"})
    status, out, _ = kvconn("plugins", "--check", "--json")
    same = [row for row in json.loads(out)["plugins"] if row["name"] == "same"]
    assert status == 1
    assert [row["distribution"] for row in same] == ["kvconn-a", "kvconn-b"]
    assert all("kvconn-a 1.0 and kvconn-b 1.0" in row["error"] for row in same)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_table_fits_the_terminal(install, kvconn, monkeypatch, columns):
    install("kvconn-good", POLICY, policies={"good": "Narrow"})
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = kvconn("plugins")
    assert status == 0
    assert max(map(len, out.splitlines())) <= columns
    (line,) = [line for line in out.splitlines() if " good " in line]
    assert line.split()[-5:] == ["good", "kvconn-good", "1.0", "-", "found"]


def test_the_table_shows_the_error_of_a_broken_plugin_below(install, kvconn, only):
    install("kvconn-bad", "import no_such_module", policies={"bad": "Narrow"})
    status, out, err = kvconn("plugins", "--check")
    assert status == 1
    assert "install what provides the module 'no_such_module'" in " ".join(out.split())
    assert err == ""


# -- what every verb inherits ------------------------------------------------------------------


def test_the_version_is_shown(kvconn):
    status, out, _ = kvconn("--version")
    assert status == 0
    assert out.startswith("kvconn ")


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_every_verb(kvconn, arguments):
    status, out, _ = kvconn(*arguments)
    assert status == 0
    assert all(verb in out for verb in ("plugins", "replay", "bench"))


def test_a_misspelt_verb_is_guessed(kvconn):
    status, out, err = kvconn("plugin")
    assert (status, out) == (2, "")
    assert err.startswith("kvconn: No such command 'plugin'.")
    assert "Did you mean 'plugins'?" in err


def test_a_wrong_option_is_one_line_and_a_2(kvconn):
    status, out, err = kvconn("plugins", "--chek")
    assert (status, out) == (2, "")
    assert err.startswith("kvconn: No such option: --chek")
    assert err.count("\n") == 1


def test_with_json_an_error_is_one_document_too(kvconn):
    status, out, err = kvconn("plugins", "--json", "--chek")
    assert status == 2
    assert json.loads(out) == {"error": err.removeprefix("kvconn: ").rstrip()}


def test_an_argument_that_is_quoted_shows_no_secret(kvconn):
    status, _, err = kvconn("plugins", "tape://:hunter2@h?token=hunter3")
    assert status == 2
    assert "tape://:**********@h?token=**********" in err


def test_not_even_a_secret_with_a_space_in_it(kvconn):
    _, out, err = kvconn("plugins", "--json", "tape://:hunter two@h")
    assert "two" not in out + err


def test_listing_is_quick_because_nothing_heavy_is_imported(install):
    script = (
        "import sys\n"
        "from kvconn.cli import app\n"
        "try: app(['plugins', '--json'])\n"
        "except SystemExit: pass\n"
        "print(*({'torch', 'numpy', 'kvconn_cpu'} & set(sys.modules)), file=sys.stderr)"
    )
    ended = subprocess.run(  # noqa: S603 - the script above
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "\n")
