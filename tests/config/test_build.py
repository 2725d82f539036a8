"""From a configuration to instances."""

from __future__ import annotations

import pytest

from kvconn.backend import Backend
from kvconn.config import ConnectorConfig, build_backend, build_policies, load_config
from kvconn.errors import BrokenPlugin, CapacityTooSmall, ForbiddenPlugin
from kvconn.policies.prefix_skip import PrefixSkipPolicy


@pytest.mark.parametrize("spec", ["shelf:///x", {"name": "shelf", "path": "/x"}, load_config])
def test_a_backend_is_built_from_any_way_to_name_it(spec):
    spec = spec("shelf:///x").backend if callable(spec) else spec
    backend = build_backend(spec)
    assert isinstance(backend, Backend)
    assert str(backend.config.path) == "/x"


def test_the_skip_policy_is_built_first_and_the_others_in_order():
    config = load_config({"backend": "plain", "policies": ["quota", "min_load_tokens?tokens=9"]})
    built = build_policies(config)
    assert [name for name, _ in built] == ["prefix_skip", "quota", "min_load_tokens"]
    assert type(built[0][1]) is PrefixSkipPolicy
    assert built[2][1].config.tokens == 9


def test_a_rival_for_its_name_does_not_replace_the_skip_policy(install):
    install("kvconn-hostile", "class Skip: ...", policies={"prefix_skip": "Skip"})
    config = ConnectorConfig(backend="plain", policies=["prefix_skip"])
    assert type(build_policies(config)[0][1]) is PrefixSkipPolicy


def test_the_skip_policy_is_built_though_it_is_forbidden(monkeypatch):
    monkeypatch.setenv("KVCONN_FORBID", "prefix_skip")
    assert len(build_policies(load_config("plain"))) == 1


def test_a_forbidden_backend_is_not_built(monkeypatch):
    config = load_config("plain")
    monkeypatch.setenv("KVCONN_FORBID", "plain")
    with pytest.raises(ForbiddenPlugin, match=r"'plain' of kvconn-planted"):
        build_backend(config.backend)


def test_a_constructor_that_raises_is_a_broken_plugin():
    with pytest.raises(BrokenPlugin, match=r"'server' of kvconn-planted 1.0 raised OSError"):
        build_backend("server://nowhere")


def test_an_error_of_kvconns_own_tree_passes_as_it_is():
    with pytest.raises(CapacityTooSmall, match=r"^one chunk takes more$"):
        build_backend("server://tiny")
