"""The scenario that the project starts from, in the real engine, over each backend."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.engine

PROMPT = [[1, 1000]]
START = [[1, 138]]
"""Its first 138 tokens: four whole blocks of 32, which are one chunk of three and a third."""
FLAG = {"skip_reading_prefix_cache": True}
LOGPROBS = {"prompt_logprobs": 1}

STEPS = {
    "cold": ["generate", {"prompts": [PROMPT]}],
    "stored": ["counts", {}],
    "reset 1": ["forget_local", {}],
    "offloaded": ["generate", {"prompts": [PROMPT]}],
    "before flag": ["counts", {}],
    "reset 2": ["forget_local", {}],
    "skipped by flag": ["generate", {"prompts": [PROMPT], **FLAG}],
    "after flag": ["counts", {}],
    "reset 3": ["forget_local", {}],
    "skipped by prompt_logprobs": ["generate", {"prompts": [PROMPT], **LOGPROBS}],
    "after prompt_logprobs": ["counts", {}],
    "reset 4": ["forget_local", {}],
    "offloaded again": ["generate", {"prompts": [PROMPT]}],
    "reset 5": ["forget_local", {}],
    "the start": ["generate", {"prompts": [START], "max_tokens": 1, **FLAG}],
    "after the start": ["generate", {"prompts": [PROMPT]}],
    "reset 6": ["forget_local", {}],
    "aligned": ["generate", {"prompts": [[[1, 960]]]}],
    "aligned cold": ["generate", {"prompts": [[[1, 960]]], **FLAG}],
    "before unwritten": ["counts", {}],
    "unwritten": ["generate", {"prompts": [[[2, 1000]]], "extra_args": {
        "kv_transfer_params": {"skip_writing_prefix_cache": True}}}],
    "after unwritten": ["counts", {}],
    "reset 7": ["forget_local", {}],
    "unwritten again": ["generate", {"prompts": [[[2, 1000]]]}],
    "reset 8": ["forget_local", {}],
    "first token": ["first_token", {"prompt": PROMPT}],
    "emptied": ["forget_all", {}],
    "after emptying": ["generate", {"prompts": [PROMPT]}],
    "at rest": ["counts", {}],
    "reset 9": ["forget_local", {}],
    "planted": ["fault", {"how": "second key on rank 1"}],
    "failed on one rank": ["generate", {"prompts": [PROMPT]}],
    "after failing": ["counts", {}],
    "mended": ["fault", {"how": ""}],
    "reset 10": ["forget_local", {}],
    "stored once more": ["generate", {"prompts": [PROMPT]}],
}  # fmt: skip

ENGINES = {
    "cpu, chunks of 3": ("cpu://?capacity=256MiB", 3, {}),
    "cpu, chunks of 1, separate processes": ("cpu://?capacity=256MiB", 1, {"processes": True}),
    "disk, chunks of 3, separate processes": ("disk://{}?capacity=256MiB", 3, {"processes": True}),
    "disk, chunks of 1": ("disk://{}?capacity=256MiB", 1, {}),
    "cpu, chunks of 3, two ranks": (
        "cpu://?capacity=256MiB", 3, {"processes": True, "tensor_parallel_size": 2},
    ),
    "null, chunks of 3": ("null://", 3, {}),
    "cpu, over disk, separate processes": (
        ["cpu://?capacity=256MiB", "disk://{}?capacity=256MiB"], 3, {"processes": True},
    ),
}  # fmt: skip


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=pytest.mark.needs(name.partition(",")[0])) for name in ENGINES
    ],
)
def engine(request, run_engine, tmp_path_factory):
    url, blocks, how = ENGINES[request.param]
    place = tmp_path_factory.mktemp("disk")
    config = {
        "backend": [u.format(place) for u in url] if isinstance(url, list) else url.format(place),
        "blocks_per_chunk": blocks,
        "strict": True,
    }
    timed = request.param.startswith("cpu") and "ranks" not in request.param
    steps = {name: step for name, step in STEPS.items() if timed or name != "first token"}
    answers = dict(zip(steps, run_engine(config, list(steps.values()), **how), strict=True))
    if "disk" in request.param and "separate" in request.param:
        (answers["restarted"],) = run_engine(config, [STEPS["cold"]])
    return request.param, blocks, answers


def whole_chunks(tokens, blocks):
    return tokens // (32 * blocks) * 32 * blocks


def test_every_run_answers_the_same_tokens(engine):
    _, _, answers = engine
    same = ["cold", "offloaded", "skipped by flag", "skipped by prompt_logprobs",
            "offloaded again", "after the start", "after emptying",
            "failed on one rank", "stored once more"]  # fmt: skip
    for run in same:
        assert answers[run][0]["tokens"] == answers["cold"][0]["tokens"], run
    assert len(set(answers["cold"][0]["tokens"])) > 4  # else a wrong context might go unnoticed


def test_all_whole_chunks_are_restored(engine):
    name, blocks, answers = engine
    restored = 0 if name.startswith("null") else whole_chunks(1000, blocks)
    assert answers["cold"][0]["cached"] == 0
    assert answers["offloaded"][0]["cached"] == restored
    assert answers["offloaded again"][0]["cached"] == restored


@pytest.mark.parametrize("how", ["flag", "prompt_logprobs"])
def test_a_skipping_request_reads_nothing_and_reaches_no_lookup(engine, how):
    _, _, answers = engine
    before = answers["before flag" if how == "flag" else "after flag"]
    after = answers[f"after {how}"]
    assert answers[f"skipped by {how}"][0]["cached"] == 0
    assert after["skipping"]["lookups"] == after["skipping"]["loads"] == 0
    assert after["plain"] == before["plain"]
    assert after["stats"]["queries"] == before["stats"]["queries"]
    assert after["stats"]["bypassed"] == before["stats"]["bypassed"] + 1
    for call in ("started", "touches", "offers", "finished"):
        assert after["skipping"][call] == before["skipping"][call] + 1


def test_a_chunk_of_which_the_engine_has_a_part_is_loaded_around_it(engine):
    name, blocks, answers = engine
    restored = 128 if name.startswith("null") else whole_chunks(1000, blocks)
    assert answers["after the start"][0]["cached"] == restored


def test_a_prompt_that_is_all_there_computes_its_last_token(engine):
    _, _, answers = engine
    assert answers["aligned"][0]["tokens"] == answers["aligned cold"][0]["tokens"]


def test_a_request_that_must_not_write_stores_nothing(engine):
    _, _, answers = engine
    before, after = answers["before unwritten"], answers["after unwritten"]
    assert after["plain"]["offers"] == before["plain"]["offers"]
    assert after["stats"]["refused_stores"] > before["stats"]["refused_stores"]
    assert answers["unwritten again"][0]["cached"] == 0


def test_an_emptied_cache_restores_nothing(engine):
    _, _, answers = engine
    assert answers["emptied"] is True
    assert answers["after emptying"][0]["cached"] == 0


def test_the_cold_run_stores_every_whole_chunk(engine):
    _, blocks, answers = engine
    stats = answers["stored"]["stats"]
    assert stats["stored"] == stats["accepted"] == 1000 // (32 * blocks)


def test_nothing_leaks_and_nothing_raised(engine):
    _, _, answers = engine
    rest = answers["at rest"]
    assert not rest["pending"]
    assert (rest["tracked"], rest["verdicts"], rest["raised"]) == (0, 0, 0)
    for figure in ("leases", "reservations", "transfers", "requests", "misuse",
                   "backend_errors", "policy_errors", "failed_loads", "failed_stores"):  # fmt: skip
        assert rest["stats"][figure] == 0, figure


def test_a_load_that_fails_on_one_rank_fails_on_all_and_is_stored_anew(engine):
    name, blocks, answers = engine
    assert answers["after failing"]["stats"]["failed_loads"] == int("two ranks" in name)
    restored = 0 if name.startswith("null") else whole_chunks(1000, blocks)
    assert answers["stored once more"][0]["cached"] == restored


def test_another_engine_finds_what_is_on_the_disk(engine):
    _, blocks, answers = engine
    if "restarted" not in answers:
        pytest.skip("once is enough")
    assert answers["restarted"][0]["cached"] == whole_chunks(1000, blocks)
    assert answers["restarted"][0]["tokens"] == answers["cold"][0]["tokens"]


def test_the_first_token_comes_sooner(engine, record_property, capsys):
    name, _, answers = engine
    if "first token" not in answers:
        pytest.skip("timed over cpu, on one rank: benchmarks/vllm/first_token.py times the others")
    taken = answers["first token"]
    ratio = taken["computed"] / taken["loaded"]
    record_property("first token, computed / loaded", ratio)
    line = (
        f"{name}: first token {taken['loaded'] * 1e3:.1f} ms loaded, "
        f"{taken['computed'] * 1e3:.1f} ms computed, ratio {ratio:.1f}"
    )
    with capsys.disabled():
        print(f"\n{line}")  # noqa: T201 - for whoever reads the run; it is no claim
