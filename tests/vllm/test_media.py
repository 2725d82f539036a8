"""What a disk does wrong in the middle of a run: every answer is right, and nobody waits long."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.needs("cpu", "disk")]

PROMPT, OTHER, THIRD = [[1, 500]], [[1, 250], [2, 250]], [[3, 500]]
RESTORED = 500 // 64 * 64
TIMEOUT_S = 1.0
FORGET = ["forget_local", {}]
BLOCK = 4 * 2 * 2 * 64 * 4 * 32
"""Bytes: layers, key and value, heads, head, float32, tokens."""


def ask(*prompts):
    return ["timed", {"prompts": list(prompts)}]


def fault(how):
    return ["fault", {"how": how}]


def config(*backend):
    return {
        "backend": list(backend), "blocks_per_chunk": 2, "strict": True,
        "transfer_timeout_s": TIMEOUT_S,
    }  # fmt: skip


def run(run_engine, config_, steps):
    return dict(zip(steps, run_engine(config_, list(steps.values())), strict=True))


def tokens(answer):
    return [one["tokens"] for one in answer["answers"]]


@pytest.fixture(scope="module")
def right(run_engine):
    """Of an engine without a connector."""
    (answers,) = run_engine(None, [["generate", {"prompts": [PROMPT, OTHER, THIRD]}]])
    return dict(zip(("PROMPT", "OTHER", "THIRD"), (a["tokens"] for a in answers), strict=True))


@pytest.fixture(scope="module", params=["disk", "cpu over disk"])
def broken(request, run_engine, tmp_path_factory):
    place = tmp_path_factory.mktemp("disk") / "store"
    tiers = [f"disk://{place}?capacity=64MiB"]
    if request.param != "disk":
        tiers.insert(0, f"cpu://?capacity={4 * 2 * BLOCK}")
    again = ["until_loaded", {"prompt": PROMPT}]
    steps = {
        "cold": ask(PROMPT), "rest": ["counts", {}], "loaded": ask(PROMPT),
        "late": ["flag_comes_late", {"prompt": PROMPT}], "counts": ["counts", {}],
        "flip": ["damage", {"place": str(place)}], "damaged": ask(PROMPT), "stored anew": again,
        "corrupt": fault("store corrupts"), "corrupted": ask(PROMPT), "1": fault(""),
        "clean": again,
        "fail": fault("store fails"), "failing": ask(PROMPT, OTHER), "2": fault(""), "whole": again,
        "hang": fault("store hangs"), "hanging": ask(PROMPT, OTHER), "open": ask(PROMPT),
        "still open": ask(THIRD), "3": fault(""), "recovered": again,
        "gone": ["remove", {"place": str(place)}], "removed": ask(PROMPT), "again": again,
        "hang again": fault("store hangs"), "last": ask(PROMPT), "shut down": ["shut_down", {}],
    }  # fmt: skip
    return request.param, run(run_engine, config(*tiers), steps)


FAULTS = ("damaged", "corrupted", "failing", "hanging", "open", "removed", "last")


@pytest.mark.parametrize("when", FAULTS)
def test_F2_whatever_the_disk_does_the_answer_is_right(right, broken, when):
    _, answers = broken
    assert tokens(answers[when])[0] == right["PROMPT"]
    assert tokens(answers[when])[1:] == [right["OTHER"]] * (len(tokens(answers[when])) - 1)


def test_F3_a_hung_disk_costs_a_deadline_once_and_then_nothing(right, broken):
    _, answers = broken
    assert answers["hanging"]["seconds"] < 4 * TIMEOUT_S
    assert tokens(answers["still open"]) == [right["THIRD"]]
    for when in ("open", "still open"):
        assert answers[when]["seconds"] < TIMEOUT_S


@pytest.mark.parametrize("when", ["stored anew", "clean", "whole", "recovered", "again"])
def test_F6_when_it_is_well_again_it_is_used_again(right, broken, when):
    _, answers = broken
    assert answers[when]["tokens"] == right["PROMPT"]
    assert answers[when]["cached"] > 0


def test_F5_a_flipped_bit_is_found(broken):
    kind, answers = broken
    assert answers["flip"] >= 7
    assert answers["loaded"]["answers"][0]["cached"] == RESTORED
    if kind == "disk":
        assert answers["damaged"]["answers"][0]["cached"] == 0
        assert answers["corrupted"]["answers"][0]["cached"] == 0


def test_L8_no_call_of_the_disk_touches_the_engines_memory(broken):
    io = broken[1]["counts"]["io"]
    assert io["buffers"] >= 7
    assert io["in pages"] == 0


def test_F4_no_call_of_the_disk_is_made_on_the_engines_thread(broken):
    io = broken[1]["counts"]["io"]
    assert io["calls"] > 0
    assert io["on the main thread"] == 0


def test_R2_a_flag_that_comes_late_ends_the_lease(broken):
    late = broken[1]["late"]
    assert late["found"] == 7
    assert late["leases"] > 0
    assert late["found with the flag"] == late["leases with the flag"] == 0


def test_R3_a_load_that_the_engine_asks_for_all_the_same_is_refused(broken):
    late = broken[1]["late"]
    assert not late["loads with the flag"]
    assert late["refused"] == 1


def test_F9_the_engine_ends_in_time_while_the_disk_hangs(broken):
    assert broken[1]["shut down"] < 15


def test_F6_a_disk_that_is_full_takes_no_more_and_gives_what_it_has(right, run_engine, tmp_path):
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4608k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:  # noqa: S603
        pytest.skip("this machine does not let us mount a file system")
    try:
        filler = place / "filler"
        filler.write_bytes(bytes(2 << 20))
        steps = {
            "cold": ask(PROMPT), "1": ["counts", {}], "full": ask(PROMPT), "other": ask(OTHER),
            "third": ask(THIRD), "counts": ["counts", {}], "free": ["free", {"place": str(filler)}],
            "later": ["until_loaded", {"prompt": THIRD}],
        }  # fmt: skip
        answers = run(run_engine, config(f"disk://{place}/store?capacity=64MiB"), steps)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)  # noqa: S603, S607
    for when, which in (("full", "PROMPT"), ("other", "OTHER"), ("third", "THIRD")):
        assert tokens(answers[when]) == [right[which]], when
    assert answers["full"]["answers"][0]["cached"] == RESTORED
    assert answers["later"]["tokens"] == right["THIRD"]
    assert answers["later"]["cached"] > 0
    assert answers["counts"]["stats"]["failed_stores"] > 0
    assert answers["counts"]["raised"] == 0
