"""What the how-to pages show works as it is shown."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from kvconn.cli import app
from kvconn.config import load_config
from kvconn.connector import Connector
from kvconn.eviction import EvictionPolicy
from kvconn.testing import BackendTests
from kvconn.types import Request

pytestmark = pytest.mark.needs("cpu", "null")


def python(listings_of, page: str, title: str) -> str:
    return next(listing.text for listing in listings_of(page) if listing.title == title)


def test_the_policy_narrows_what_its_tenant_does(listings_of, install):
    source = python(listings_of, "how-to/write-a-policy.md", "my_package/tenants.py")
    install("kvconn-tenants", source, policies={"tenants": "TenantsPolicy"})
    (configuration,) = (
        listing.text
        for listing in listings_of("how-to/write-a-policy.md")
        if listing.language == "toml" and "backend" in listing.text
    )
    config = dict(line.split(" = ", 1) for line in configuration.splitlines())
    with Connector.load({name: json.loads(value) for name, value in config.items()}) as connector:
        assert [name for name, _ in connector._policies] == [
            "prefix_skip", "tenants", "min_load_tokens",
        ]  # fmt: skip
        policy = dict(connector._policies)["tenants"]
        assert policy.permit(Request("1", params={"tenant": "demo"})).write is False
        assert policy.permit(Request("2", params={"tenant": "other"})).write is True


def test_the_eviction_policy_evicts_the_first_that_came(listings_of, install):
    source = python(listings_of, "how-to/write-an-eviction-policy.md", "my_package/fifo.py")
    install("kvconn-fifo", source, eviction={"fifo": "FIFO"})
    assert load_config("cpu://?capacity=1MiB&eviction=fifo")
    namespace: dict = {}
    exec(source, namespace)  # noqa: S102 - our own page
    policy = namespace["FIFO"](8)
    assert isinstance(policy, EvictionPolicy)
    policy.insert([0, 1, 2], [b"a", b"b", b"c"])
    policy.insert([3], [b"d"])
    assert policy.evict(2, [0, 0, 1, 0], None) == [1, 0]
    assert policy.evict(2, [0, 0, 1, 0], None) == [3]
    policy.remove([2])
    assert policy.evict(1, [0] * 4, None) == []


PAGES = ["how-to/choose-a-backend.md", "how-to/run-the-kit.md", "how-to/debug-a-plugin.md"]
COMMANDS = [
    "kvconn replay --backend 'cpu://?capacity=256MiB'",
    "kvconn replay --backend 'cpu://?capacity=16MiB' --json",
    "kvconn replay --backend 'cpu://?capacity=64MiB'",
    "kvconn check --backend 'null://'",
    "kvconn check --backend 'null://' --only L2 --json",
    "kvconn plugins --check",
    "kvconn bench",
]


def test_each_command_of_the_how_to_pages_is_run_here(listings_of):
    shown = {
        line.removeprefix("$ ")
        for page in PAGES
        for listing in listings_of(page)
        if listing.language == "console"
        for line in listing.text.splitlines()
    }
    assert shown == set(COMMANDS)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != "kvconn bench"])
def test_a_command_of_a_how_to_page_ends_well(command, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        app(shlex.split(command)[1:])
    assert ended.value.code == 0, capsys.readouterr()


def test_the_kit_can_be_told_how_to_damage_files(listings_of, tmp_path):
    text = next(
        listing.text for listing in listings_of("how-to/run-the-kit.md")
        if "stored_objects" in listing.text
    )  # fmt: skip
    namespace: dict = {"Path": Path, "BackendTests": BackendTests}
    exec(text, namespace)  # noqa: S102 - our own page
    tests = namespace["TestMyBackend"]()
    tests.place = tmp_path
    (tmp_path / "one.block").write_bytes(b"1")
    ((name, content),) = tests.stored_objects().items()
    assert content == b"1"
    tests.replace_object(name, b"2")
    assert (tmp_path / "one.block").read_bytes() == b"2"
    tests.remove_object(name)
    assert tests.stored_objects() == {}
