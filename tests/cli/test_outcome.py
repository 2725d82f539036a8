"""Exit status and last words, whatever a verb does."""

from __future__ import annotations

import json

import pytest
import typer

from kvconn.cli.outcome import run
from kvconn.errors import (
    CapacityTooSmall,
    ConfigurationError,
    ConnectorClosed,
    KvconnError,
    TraceError,
    UnknownPlugin,
)


def raising(error: BaseException):
    def verb() -> None:
        raise error

    return verb


@pytest.mark.parametrize("answer", [0, 1, 2])
def test_the_integer_that_a_verb_answers_is_the_exit_status(answer, capsys):
    assert run(lambda: answer, as_json=True) == answer
    assert capsys.readouterr() == ("", "")


def test_a_verb_that_answers_nothing_is_good():
    assert run(lambda: None, as_json=False) == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("why"), 2),
        (UnknownPlugin("why"), 2),
        (CapacityTooSmall("why"), 2),
        (TraceError("why"), 2),
        (typer.BadParameter("why"), 2),
        (KvconnError("why"), 1),
        (ConnectorClosed("why"), 1),
    ],
)
def test_an_error_is_one_line_on_standard_error_and_never_a_traceback(error, status, capsys):
    assert run(raising(error), as_json=False) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvconn: ")
    assert err.endswith("why\n")
    assert err.count("\n") == 1


def test_a_message_of_several_lines_becomes_one(capsys):
    run(raising(ConfigurationError("one\n  two")), as_json=True)
    out, err = capsys.readouterr()
    assert err == "kvconn: one two\n"
    assert json.loads(out) == {"error": "one two"}


def test_a_mistake_in_kvconn_shows_its_traceback_and_still_one_document(capsys):
    assert run(raising(ZeroDivisionError("oops")), as_json=True) == 1
    out, err = capsys.readouterr()
    assert "Traceback" in err
    assert json.loads(out) == {"error": "unexpected ZeroDivisionError: oops"}


def test_an_interruption_has_the_shells_status(capsys):
    assert run(raising(typer.Abort()), as_json=False) == 130
    assert capsys.readouterr().err == "kvconn: interrupted\n"
