"""URL, mapping and file: whichever way it is written down, the configuration is the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvconn.config import ConnectorConfig, PluginChoice, load_config
from kvconn.errors import ConfigurationError, UnknownPlugin

SHELF = {"name": "shelf", "path": "/var/kv", "capacity": "8GiB"}
URL = "shelf:///var/kv?capacity=8GiB"


def test_a_url_a_mapping_and_both_kinds_of_file_resolve_to_the_same(tmp_path):
    as_json, as_toml = tmp_path / "c.json", tmp_path / "c.toml"
    as_json.write_text(json.dumps({"backend": URL}))
    as_toml.write_text('[backend]\nname = "shelf"\npath = "/var/kv"\ncapacity = 8589934592\n')
    ways = [URL, SHELF, {"backend": SHELF}, {"backend": [URL]}, as_json, str(as_toml)]
    configs = [load_config(way) for way in ways]
    assert all(config == configs[0] for config in configs)
    assert configs[0].backend.options.capacity == 8 * 2**30
    assert configs[0].backend.options.path == Path("/var/kv")


def test_a_file_may_be_the_backends_own_mapping(tmp_path):
    file = tmp_path / "shelf.toml"
    file.write_text('name = "shelf"\npath = "/var/kv"\ncapacity = "8GiB"\n')
    assert load_config(file) == load_config(URL)


def test_a_loaded_configuration_is_loaded_as_it_is():
    config = load_config(URL)
    assert load_config(config) is config


def test_defaults_are_those_of_the_guarantees():
    config = load_config("plain://")
    assert (config.lease_seconds, config.transfer_timeout_s) == (60, 30)
    assert (config.strict, config.events) == (False, False)
    assert load_config("plain") == config


def test_a_configuration_cannot_be_changed():
    with pytest.raises(ValueError, match=r"frozen"):
        load_config("plain").strict = True


def test_several_backends_are_tiers_the_fastest_first():
    config = load_config({"backend": ["plain://", URL], "write": "write_back"})
    assert [choice.name for choice in config.tiers] == ["plain", load_config(URL).backend.name]
    assert config.backend == load_config("plain://").backend
    assert config.write == "write_back"


def test_a_list_of_one_backend_is_that_backend():
    assert load_config({"backend": [URL]}) == load_config(URL)


def test_no_backend_is_not_a_list_of_backends():
    with pytest.raises(ConfigurationError, match=r"backend is an empty list: write backend = "):
        load_config({"backend": []})


def test_a_tier_that_is_listed_twice_is_refused():
    with pytest.raises(ConfigurationError, match=r"listed twice with the same options: list it"):
        load_config({"backend": [URL, URL]})


def test_a_way_to_write_that_is_none_is_told_which_there_are():
    with pytest.raises(ConfigurationError, match="write_through"):
        load_config({"backend": URL, "write": "never"})


@pytest.mark.parametrize("source", [{"backend": 3}, {"backend": {"path": "/x"}}, {"backend": None}])
def test_what_names_no_backend_is_told_how_to(source):
    with pytest.raises(ConfigurationError, match=r'write {"name": "cpu", ...}'):
        load_config(source)


def test_a_configuration_without_a_backend_asks_for_one():
    with pytest.raises(ConfigurationError, match=r"kvconn needs the option 'backend': add it"):
        load_config({"strict": True})


def test_a_misspelt_setting_is_guessed_and_the_valid_ones_listed():
    with pytest.raises(ConfigurationError, match=r"did you mean 'lease_seconds'") as caught:
        load_config({"backend": "plain", "lease_second": 3})
    assert "kvconn has no option 'lease_second'" in str(caught.value)
    assert "valid options are backend, behind, policies, lease_seconds" in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, "soon", float("inf"), float("nan")])
def test_a_wrong_setting_is_named(seconds):
    with pytest.raises(ConfigurationError, match=r"option 'lease_seconds' of kvconn, .* is wrong"):
        load_config({"backend": "plain", "lease_seconds": seconds})


def test_an_unknown_backend_is_found_when_the_configuration_is_loaded():
    with pytest.raises(UnknownPlugin, match=r"pip install kvconn-tape-library"):
        load_config("tape-library://")


# -- files -------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"absent.toml cannot be read \(No such file"):
        load_config(tmp_path / "absent.toml")


@pytest.mark.parametrize(("name", "kind"), [("c.toml", "TOML"), ("c.json", "JSON")])
def test_a_file_that_does_not_parse_says_where(tmp_path, name, kind):
    file = tmp_path / name
    file.write_text("{'")
    with pytest.raises(ConfigurationError, match=f"{name} is not valid {kind}: .*line 1"):
        load_config(file)


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"neither a .toml nor a .json file"):
        load_config(tmp_path / "config.yaml")


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_a_file_that_holds_no_mapping_is_refused(tmp_path, text):
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"a configuration is a backend's URL, a mapping"):
        load_config(file)


# -- policies ----------------------------------------------------------------------------------


def policies_of(*policies: object) -> list[str]:
    return [
        choice.name for choice in load_config({"backend": "plain", "policies": policies}).policies
    ]


def test_the_skip_policy_is_there_when_no_policy_is_named():
    assert [choice.name for choice in load_config("plain").policies] == ["prefix_skip"]
    assert [choice.name for choice in ConnectorConfig(backend="plain").policies] == ["prefix_skip"]


def test_naming_the_skip_policy_changes_nothing():
    assert policies_of("quota", "prefix_skip") == policies_of("quota") == ["prefix_skip", "quota"]


def test_the_policies_of_another_configuration_can_be_taken_over():
    first = load_config({"backend": "plain", "policies": ["quota"]})
    assert ConnectorConfig(backend="plain", policies=first.policies) == first


def test_a_policy_takes_its_options_in_three_ways():
    ways = ["quota?tokens=7", {"name": "quota", "tokens": 7}, "quota://?tokens=7"]
    configs = [load_config({"backend": "plain", "policies": [way]}) for way in ways]
    assert all(config == configs[0] for config in configs)
    assert configs[0].policies[1].options.tokens == 7


@pytest.mark.parametrize("name", ["quota", "prefix_skip"])
def test_a_policy_listed_twice_is_refused(name):
    with pytest.raises(ConfigurationError, match=f"policy '{name}' is listed twice"):
        policies_of(name, {"name": name})


def test_the_skip_policy_takes_no_options():
    with pytest.raises(ConfigurationError, match=r"'prefix_skip' of kvconn .* takes no options"):
        policies_of("prefix_skip?read=true")


def test_a_single_policy_is_still_a_list():
    with pytest.raises(ConfigurationError, match=r"policies is a list: write policies = "):
        load_config({"backend": "plain", "policies": "quota"})


def test_only_choices_that_were_made_here_are_taken_as_they_are():
    choice = load_config(URL).backend
    assert isinstance(choice, PluginChoice)
    assert load_config({"backend": choice}).backend is choice


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        load_config(path)
