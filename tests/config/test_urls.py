"""What a URL may say, and what is answered to one that says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvconn.config import load_config
from kvconn.errors import ConfigurationError


def options_of(url: str) -> object:
    return load_config(url).backend.options


def test_every_part_of_a_server_url_reaches_its_option():
    options = options_of("server://me:p%40ss@example.org:6380/1?timeout=2.5")
    assert (options.username, options.password.get_secret_value()) == ("me", "p@ss")
    assert (options.host, options.port, options.path) == ("example.org", 6380, "/1")
    assert options.timeout == 2.5


def test_a_password_without_a_user_and_an_ipv6_host_are_read():
    options = options_of("server://:secret@[::1]:6380")
    assert (options.password.get_secret_value(), options.host) == ("secret", "::1")
    assert options.path == "/0"


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("shelf:///a b%20c", "/a b c"),
        ("shelf:///a+b", "/a+b"),
        ("shelf:///a%2Bb#c", "/a+b#c"),
        ("shelf:///100%25", "/100%"),
        ("shelf://?path=/x/y%26z", "/x/y&z"),
        ("shelf:///ünï", "/ünï"),
    ],
)
def test_a_path_is_percent_decoded_and_nothing_else(url, path):
    assert options_of(url).path == Path(path)


def test_a_relative_path_is_told_of_the_third_slash():
    with pytest.raises(ConfigurationError, match=r"write three slashes, shelf:///absolute/path"):
        load_config("shelf://relative/dir")


def test_a_path_for_a_backend_without_one_is_refused():
    with pytest.raises(ConfigurationError, match=r"'plain' of kvconn-planted 1.0 takes no path"):
        load_config("plain:///var/kv")
    assert load_config("plain:///") == load_config("plain://")


@pytest.mark.parametrize(
    ("url", "part"), [("plain://h", "host"), ("shelf://:pw@/x", "password"), ("shelf://u@", "user")]
)
def test_a_part_that_the_backend_has_no_option_for_is_named(url, part):
    with pytest.raises(ConfigurationError, match=f"takes no {part}") as caught:
        load_config(url)
    assert "pw" not in str(caught.value)


def test_an_unknown_option_names_the_distribution_the_guess_and_what_is_valid():
    with pytest.raises(ConfigurationError) as caught:
        load_config("shelf:///x?capcity=8GiB")
    assert str(caught.value) == (
        "backend 'shelf' of kvconn-planted 1.0 has no option 'capcity': did you mean 'capacity'? "
        "valid options are path, capacity, direct"
    )


def test_an_unknown_option_in_a_mapping_is_answered_alike():
    with pytest.raises(ConfigurationError, match=r"no option 'pth': did you mean 'path'"):
        load_config({"name": "shelf", "pth": "/x"})


def test_a_backend_without_options_says_so():
    with pytest.raises(ConfigurationError, match=r"no option 'size': it takes no options"):
        load_config("plain://?size=3")


@pytest.mark.parametrize("url", ["shelf:///x?direct=1&direct=1", "shelf:///x?path=/y"])
def test_an_option_given_twice_is_refused(url):
    with pytest.raises(ConfigurationError, match=r"is given twice"):
        load_config(url)


def test_a_required_option_is_asked_for():
    with pytest.raises(ConfigurationError, match=r"1.0 needs the option 'path': add it"):
        load_config("shelf://")


def test_a_wrong_value_is_shown_with_what_would_be_right():
    with pytest.raises(ConfigurationError, match=r"'direct' of .*'maybe', is wrong: .*boolean"):
        load_config("shelf:///x?direct=maybe")


@pytest.mark.parametrize(
    "url", ["", "://x", "disk:/var/x", "my disk", "3disk://", "/var/cache/kv", "?a=b"]
)
def test_what_is_no_url_is_shown_one(url):
    with pytest.raises(ConfigurationError, match=r"a plugin is named like disk:///var/cache/kv"):
        load_config(url)


@pytest.mark.parametrize(
    "url",
    ["server://h:port", "server://h:1/a@b", "server://h:99999", "server://[::1", "shelf:///%FF"],
)
def test_a_url_that_does_not_parse_says_what_to_encode(url):
    with pytest.raises(ConfigurationError, match=r"cannot be read: percent-encode"):
        load_config(url)


@pytest.mark.parametrize("query", ["capacity", "=3", "a-b=3"])
def test_a_query_that_is_no_list_of_options_is_refused(query):
    with pytest.raises(ConfigurationError, match=r"write \?option=value&option=value"):
        load_config(f"shelf:///x?{query}")


# -- sizes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        ("8gib", 8 * 2**30),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_sizes_carry_units(size, expected):
    assert options_of(f"shelf:///x?capacity={size}").capacity == expected


def test_a_size_may_be_a_plain_number():
    assert options_of({"name": "shelf", "path": "/x", "capacity": 4096}).capacity == 4096


@pytest.mark.parametrize(
    "size", ["8G", "8Gbit", "1,5GiB", "8 GiB x", "-5", "lots", "8_000", "", 1.5, True, None]
)
def test_a_size_that_could_be_misread_is_refused_with_valid_forms(size):
    with pytest.raises(
        ConfigurationError, match=r"option 'capacity'.* like 8GiB, 8GB or 8589934592"
    ):
        load_config({"name": "shelf", "path": "/x", "capacity": size})


def test_a_size_of_nothing_is_refused():
    with pytest.raises(ConfigurationError, match=r"option 'capacity'.*greater than 0"):
        load_config("shelf:///x?capacity=0")
