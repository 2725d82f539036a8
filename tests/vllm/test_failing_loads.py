"""Loads that fail, in every way and at every place: the answer is right and the engine lives."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu")]

PROMPT = [[1, 1000]]
SIBLING = [[1, 500], [2, 400]]
FAULTS = (
    "second key", "last key", "all keys", "submit raises", "prepare_load raises",
    "nothing to load", "only the first key",
)  # fmt: skip
RESTORED = 960


def under(fault, do, **how):
    return [["forget_local", {}], ["fault", {"how": fault}], [do, how], ["fault", {"how": ""}]]


@pytest.fixture(scope="module")
def answers(run_engine):
    steps = [["generate", {"prompts": [PROMPT]}], ["generate", {"prompts": [SIBLING]}]]
    names = ["cold", "sibling"]
    for fault in FAULTS:
        steps += under(fault, "generate", prompts=[PROMPT])
        names += ["", "", fault, ""]
        steps += under("", "generate", prompts=[PROMPT])
        names += ["", "", f"after {fault}", ""]
    steps += under("second key", "generate", prompts=[PROMPT, SIBLING, PROMPT])
    names += ["", "", "together", ""]
    steps += [["forget_local", {}], ["free_blocks", {}]]
    names += ["", "free before"]
    steps += under("slow", "abort_while_loading", prompt=PROMPT)
    names += ["", "", "aborted", ""]
    steps += [["counts", {}], ["forget_local", {}], ["free_blocks", {}]]
    names += ["at rest", "", "free after"]
    steps += under("lies", "generate", prompts=[PROMPT])
    names += ["", "", "lies", ""]
    config = {"backend": "cpu://?capacity=256MiB", "blocks_per_chunk": 3, "strict": True}
    return dict(zip(names, run_engine(config, steps), strict=True))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_whose_load_failed_answers_as_without_a_cache(answers, fault):
    assert answers[fault][0]["tokens"] == answers["cold"][0]["tokens"]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_failed_is_stored_anew_and_hits_again(answers, fault):
    assert answers[f"after {fault}"][0]["cached"] == RESTORED
    assert answers[f"after {fault}"][0]["tokens"] == answers["cold"][0]["tokens"]


def test_requests_that_share_a_failing_chunk_all_answer(answers):
    cold, sibling = answers["cold"][0]["tokens"], answers["sibling"][0]["tokens"]
    assert [answer["tokens"] for answer in answers["together"]] == [cold, sibling, cold]


def test_a_load_whose_request_was_aborted_gives_its_blocks_back_when_it_ends(answers):
    assert [answer["tokens"] for answer in answers["aborted"]] == [answers["cold"][0]["tokens"]]
    assert answers["free after"] == answers["free before"]


def test_nothing_leaks(answers):
    rest = answers["at rest"]
    assert (rest["tracked"], rest["verdicts"], rest["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse"):
        assert rest["stats"][figure] == 0, figure


def test_wrong_bytes_would_have_been_noticed(answers):
    assert answers["lies"][0]["tokens"] != answers["cold"][0]["tokens"]
