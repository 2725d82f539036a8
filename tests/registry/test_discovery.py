"""What is found, by metadata alone, and what an unknown, rival or forbidden name says."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING

import pytest

from kvconn.errors import BrokenPlugin, ForbiddenPlugin, UnknownPlugin
from kvconn.registry import BACKENDS, POLICIES, Found, available, find, installed, is_forbidden
from kvconn.registry.forbid import _forbidden

if TYPE_CHECKING:
    from pathlib import Path


def test_a_plugin_is_found_with_its_distribution_and_version(install):
    module = install("kvconn-mem", version="2.5", backends={"mem": "MemBackend"})
    assert available(BACKENDS)["mem"] == Found(
        BACKENDS, "mem", f"{module}:MemBackend", "kvconn-mem", "2.5"
    )


def test_looking_imports_nothing(install):
    module = install("kvconn-mem", "raise RuntimeError", backends={"mem": "MemBackend"})
    available(BACKENDS)
    find(BACKENDS, "mem")
    assert module not in sys.modules


def test_a_backend_is_no_policy(install):
    install("kvconn-mem", backends={"mem": "MemBackend"})
    assert "mem" not in available(POLICIES)


def test_an_unknown_backend_names_what_is_there_and_the_package_to_install(install):
    install("kvconn-mem", backends={"mem": "MemBackend"})
    with pytest.raises(UnknownPlugin, match=r"no backend is called 'redis'") as caught:
        find(BACKENDS, "redis")
    assert "mem" in str(caught.value)
    assert str(caught.value).endswith("pip install kvconn-redis")


def test_the_package_to_install_is_spelt_as_packages_are(install):
    with pytest.raises(UnknownPlugin, match=r"pip install kvconn-my-tape$"):
        find(BACKENDS, "my_Tape")


def test_a_misspelt_backend_is_guessed(install):
    install("kvconn-tape", backends={"tapes": "TapeBackend"})
    with pytest.raises(UnknownPlugin, match=r"did you mean 'tapes'\? .*kvconn-taeps$"):
        find(BACKENDS, "taeps")


def test_with_nothing_installed_the_message_says_so(install, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    with pytest.raises(UnknownPlugin, match=r"\(none is installed\): pip install kvconn-redis"):
        find(BACKENDS, "redis")


def test_two_distributions_with_one_name_are_both_named(install):
    install("kvconn-a", version="1.0", backends={"mem": "A"})
    install("kvconn-b", version="2.0", backends={"mem": "B"})
    with pytest.raises(BrokenPlugin, match=r"kvconn-a 1.0 and kvconn-b 2.0: uninstall"):
        find(BACKENDS, "mem")
    assert [f.distribution for f in installed(BACKENDS) if f.name == "mem"] == [
        "kvconn-a",
        "kvconn-b",
    ]


def test_two_distributions_may_offer_the_same_object(install, tmp_path):
    module = install("kvconn-a", backends={"mem": "A"})
    install("kvconn-b")
    points = tmp_path / "site-packages" / "kvconn_b-1.0.dist-info" / "entry_points.txt"
    points.write_text(f"[kvconn.backends]\nmem = {module}:A\n")
    importlib.invalidate_caches()
    assert find(BACKENDS, "mem").value == f"{module}:A"


def test_of_two_copies_of_a_distribution_the_one_that_imports_counts(
    install, tmp_path, monkeypatch
):
    install("kvconn-mem", version="1.0", backends={"mem": "Old", "gone": "Gone"})
    newer = tmp_path / "newer" / "kvconn_mem-2.0.dist-info"
    newer.mkdir(parents=True)
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: KVConn_Mem\nVersion: 2.0\n")
    (newer / "entry_points.txt").write_text("[kvconn.backends]\nmem = new:New\n")
    monkeypatch.syspath_prepend(str(newer.parent))
    assert find(BACKENDS, "mem").version == "2.0"
    assert "gone" not in available(BACKENDS)


def test_another_word_is_not_taken_for_a_typo(install):
    install("kvconn-disk-copy", backends={"disk": "DiskBackend"})
    with pytest.raises(UnknownPlugin) as caught:
        find(BACKENDS, "redis")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("content", ["[kvconn.backends]\nno equals sign\n", "[kvconn.backends\n="])
def test_unreadable_metadata_harms_no_other_plugin(install, tmp_path: Path, content):
    install("kvconn-mem", backends={"mem": "MemBackend"})
    install("kvconn-garbled")
    garbled = tmp_path / "site-packages" / "kvconn_garbled-1.0.dist-info"
    (garbled / "entry_points.txt").write_text(content)
    nameless = tmp_path / "site-packages" / "nameless-1.0.dist-info"
    nameless.mkdir()
    (nameless / "entry_points.txt").write_text("[kvconn.backends]\nnameless = n:N\n")
    importlib.invalidate_caches()
    assert "mem" in available(BACKENDS)


def test_a_forbidden_plugin_says_who_forbids_it(install, monkeypatch):
    install("kvconn-mem", backends={"mem": "MemBackend"})
    monkeypatch.setenv("KVCONN_FORBID", "tape, mem")
    with pytest.raises(ForbiddenPlugin, match=r"'mem' of kvconn-mem 1.0 .* KVCONN_FORBID"):
        find(BACKENDS, "mem")


def test_an_empty_list_forbids_nothing(monkeypatch):
    monkeypatch.setenv("KVCONN_FORBID", " , ")
    assert not is_forbidden("")
    assert not is_forbidden("mem")


def test_the_skip_policy_cannot_be_forbidden_and_trying_is_logged_once(monkeypatch, caplog):
    monkeypatch.setenv("KVCONN_FORBID", "prefix_skip,mem")
    _forbidden.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not is_forbidden("prefix_skip")
        assert is_forbidden("mem")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "prefix_skip" in caplog.text
