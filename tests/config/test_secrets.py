"""C3: nothing that people or files see shows a secret."""

from __future__ import annotations

import logging
import traceback

import pytest

from kvconn.config import build_backend, load_config, log_resolved, redact
from kvconn.errors import BrokenPlugin, ConfigurationError, KvconnError

SECRET = "hunter2"  # noqa: S105 - what the tests look for
GOOD = f"server://me:{SECRET}@h:1/0?token={SECRET}&timeout=2"


def all_that_an_error_shows(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


def test_the_configuration_itself_shows_no_secret():
    config = load_config(GOOD)
    assert config.backend.options.token.get_secret_value() == SECRET
    shown = f"{config} {config!r} {config.model_dump()} {config.model_dump_json()}"
    assert SECRET not in shown


def test_the_log_shows_no_secret_and_every_resolved_value_once(caplog):
    config = load_config(GOOD + f"&url=http://u:{SECRET}@x")
    with caplog.at_level(logging.INFO):
        log_resolved(config)
    (record,) = caplog.records
    assert record.levelname == "INFO"
    assert SECRET not in record.getMessage()
    for shown in ("backend server", "host=h", "port=1", "timeout=2.0", "password=***", "token=***"):
        assert shown in record.getMessage()
    assert "policies prefix_skip; lease_seconds=60.0 transfer_timeout_s=30.0" in caplog.text


def test_the_log_says_how_large_a_size_is_and_of_what(caplog):
    with caplog.at_level(logging.INFO):
        log_resolved(load_config("shelf:///x?capacity=8GB"))
    assert "path=/x capacity=7.5GiB (8000000000 bytes) in total" in caplog.text


@pytest.mark.parametrize(
    "source",
    [
        GOOD + "&tmeout=1",
        GOOD + "&timeout=1",
        GOOD.replace("timeout=2", "timeout=-1"),
        GOOD.replace("timeout=2", "timeout=13"),
        GOOD.replace("timeout=2", "timeout=14"),
        f"server://:{SECRET}quote@h",
        f"server://:{SECRET}@h:port",
        f"server://:12/{SECRET}@h",
        f"server://:a?{SECRET}@h",
        f"server://:a?{SECRET}=x@h",
        f"plain://:{SECRET}@h",
        f"nobody://:{SECRET}@h",
        f"-bad-://:{SECRET}@h",
        {"name": f"server://:{SECRET}@h"},
        {"name": "server", "password": [SECRET]},
        {"name": "server", "password": f"quote\n{SECRET}"},
        {"name": "server", "token": {"x": SECRET}},
        {"name": "server", "port": f"redis://:{SECRET}@h"},
        {"name": "server", "password": SECRET, "port": SECRET},
        {"backend": GOOD, "strict": GOOD},
        {"backend": GOOD, "policies": [f"-://:{SECRET}@h"]},
    ],
)
def test_no_error_shows_a_secret(source):
    with pytest.raises(ConfigurationError) as caught:
        load_config(source)
    assert SECRET not in all_that_an_error_shows(caught.value)
    assert caught.value.__cause__ is None
    assert "\n" not in str(caught.value)


def test_an_exception_of_a_plugins_validator_is_named_without_its_words():
    with pytest.raises(
        BrokenPlugin, match=r"kvconn-planted 1.0 raised RuntimeError over its options"
    ):
        load_config(GOOD.replace("timeout=2", "timeout=14"))


def test_an_exception_of_a_plugins_constructor_is_named_without_its_words():
    with pytest.raises(KvconnError, match=r"raised OSError when it was created: check") as caught:
        build_backend(f"server://:{SECRET}@nowhere")
    assert SECRET not in all_that_an_error_shows(caught.value)


# -- redact ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("shelf:///var/kv?capacity=8GiB", "shelf:///var/kv?capacity=8GiB"),
        ("shelf:///a:b@c", "shelf:///a:b@c"),
        ("server://h:6379/0", "server://h:6379/0"),
        ("server://me:pw@h/0", "server://me:**********@h/0"),
        ("server://:p/w@h/0", "server://:**********@h/0"),
        ("server://:p?w@h/0", "server://:**********@h/0"),
        ("server://:p@w@h/0", "server://:**********@h/0"),
        ("server://:p w@h/0", "server://:**********@h/0"),
        ("server://h?token=t&timeout=2", "server://h?token=**********&timeout=2"),
        ("nobody://h?token=t&timeout=2", "nobody://h?token=**********&timeout=**********"),
        ("server", "server"),
        ("server?token=t", "server?token=**********"),
    ],
)
def test_a_redacted_url_keeps_what_is_no_secret(url, shown):
    assert redact(url) == shown


@pytest.mark.parametrize(
    "url", ["redis:/host?password=hunter2", "redis:/user:hunter2@host/0", "redis//:hunter2@host"]
)
def test_C3_a_slip_in_a_url_shows_nothing_that_could_be_a_password(url):
    with pytest.raises(ConfigurationError) as caught:
        load_config(url)
    assert "hunter2" not in str(caught.value)
