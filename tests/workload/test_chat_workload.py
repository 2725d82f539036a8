"""Generated chat: ids that chain, time that goes forward, the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice, pairwise
from math import inf, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kvconn.errors import ConfigurationError
from kvconn.workload import ChatShape, LogNormal, TraceRequest, generate_chat, summary
from kvconn.workload.draws import exponential, geometric, rank, zipf_cumulative

SMALL_BLOCKS = ChatShape(conversations=200, block_tokens=64)


def one_conversation(**changes: Any) -> list[TraceRequest]:
    return list(generate_chat(5, ChatShape(**{"conversations": 1, "mean_turns": 30} | changes)))


def test_the_same_seed_gives_the_same_requests_and_another_seed_others() -> None:
    assert list(generate_chat(1)) == list(generate_chat(1))
    assert list(generate_chat(1)) != list(generate_chat(2))


def test_neither_process_nor_hash_seed_matters() -> None:
    program = "from kvconn.workload import *; print(list(generate_chat(7)))"
    said = {
        subprocess.run(  # noqa: S603 - own program
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert said == {f"{list(generate_chat(7))}\n"}


def test_requests_come_in_the_order_of_their_time() -> None:
    times = [request.timestamp_ms for request in generate_chat(3)]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_conversations_interleave() -> None:
    firsts = [request.hash_ids[:9] for request in generate_chat(3, SMALL_BLOCKS)]
    assert sum(a != b for a, b in pairwise(firsts)) > len(firsts) / 2


def test_a_turn_begins_with_all_whole_blocks_of_the_turn_before() -> None:
    turns = one_conversation()
    assert len(turns) > 5
    for before, after in pairwise(turns):
        assert after.whole_blocks[: len(before.whole_blocks)] == before.whole_blocks


def test_a_turn_holds_the_answer_before_it_and_a_new_message() -> None:
    for before, after in pairwise(one_conversation()):
        assert after.input_length > before.input_length + before.output_length


def test_an_answer_is_read_before_the_next_message() -> None:
    for before, after in pairwise(one_conversation(answer_tokens_per_second=10)):
        assert after.timestamp_ms - before.timestamp_ms >= before.output_length * 100 - 1


def test_users_think_for_the_mean_time_of_the_shape() -> None:
    turns = one_conversation(think_seconds=40, answer_tokens_per_second=1e9, mean_turns=1000)
    assert turns[-1].timestamp_ms / 1000 / (len(turns) - 1) == pytest.approx(40, rel=0.2)


def test_an_id_names_one_content_after_one_prefix() -> None:
    parents: dict[int, tuple[int, ...]] = {}
    for request in generate_chat(3, SMALL_BLOCKS):
        for at, block in enumerate(request.hash_ids):
            assert parents.setdefault(block, request.hash_ids[:at]) == request.hash_ids[:at]


def test_a_partial_block_never_comes_again() -> None:
    times = Counter(block for r in generate_chat(3, SMALL_BLOCKS) for block in r.hash_ids)
    for request in generate_chat(3, SMALL_BLOCKS):
        for partial in request.hash_ids[len(request.whole_blocks) :]:
            assert times[partial] == 1


def test_ids_count_up_from_zero_as_content_appears() -> None:
    ids = dict.fromkeys(block for r in generate_chat(3, SMALL_BLOCKS) for block in r.hash_ids)
    assert list(ids) == list(range(len(ids)))


def test_conversations_share_exactly_the_whole_blocks_of_their_system_prompt() -> None:
    shape = ChatShape(conversations=50, mean_turns=1, system_prompts=1)
    shape = replace(shape, system_tokens=LogNormal(1300, 0), message_tokens=LogNormal(900, 0))
    requests = list(generate_chat(3, shape))
    assert len(requests) == 50
    assert {request.hash_ids[:2] for request in requests} == {(0, 1)}
    assert len({request.hash_ids[2] for request in requests}) == 50


def test_system_prompts_share_nothing() -> None:
    shape = ChatShape(conversations=300, zipf_exponent=0, system_prompts=5)
    assert len({request.hash_ids[0] for request in generate_chat(3, shape)}) == 5


def test_a_popular_system_prompt_is_used_more() -> None:
    shape = ChatShape(conversations=1000, mean_turns=1, system_prompts=4, zipf_exponent=2)
    uses = Counter(request.hash_ids[0] for request in generate_chat(3, shape)).most_common()
    assert [count / 1000 for _, count in uses] == pytest.approx(
        [weight / 1.4236 for weight in (1, 1 / 4, 1 / 9, 1 / 16)], abs=0.04
    )


def test_turns_and_lengths_follow_the_shape() -> None:
    shape = ChatShape(conversations=2000, mean_turns=3, answer_tokens=LogNormal(100, 1))
    requests = list(generate_chat(3, shape))
    assert len(requests) / 2000 == pytest.approx(3, rel=0.05)
    assert sorted(r.output_length for r in requests)[len(requests) // 2] == pytest.approx(100, 0.1)


def test_conversations_arrive_at_their_rate() -> None:
    shape = ChatShape(conversations=2000, mean_turns=1, conversations_per_second=4)
    *_, last = generate_chat(3, shape)
    assert last.timestamp_ms / 1000 == pytest.approx(2000 / 4, rel=0.1)


def test_prompts_never_outgrow_the_longest_one_allowed() -> None:
    lengths = [r.input_length for r in one_conversation(max_input_tokens=5000)]
    assert max(lengths) <= 5000
    assert len(one_conversation()) > len(lengths)
    assert [r.input_length for r in one_conversation(max_input_tokens=2)] == [2]


def test_the_longest_prompt_leaves_room_for_a_message_of_its_own() -> None:
    shape = ChatShape(system_prompts=1, system_tokens=LogNormal(5000, 0), max_input_tokens=1024)
    (shared, message), (again, other) = (r.hash_ids for r in islice(generate_chat(3, shape), 2))
    assert shared == again
    assert message != other


def test_the_blocks_have_the_size_of_the_shape() -> None:
    assert {request.block_tokens for request in generate_chat(3, SMALL_BLOCKS)} == {64}


def test_requests_are_made_as_they_are_asked_for() -> None:
    endless = generate_chat(3, ChatShape(conversations=10**12))
    assert summary(islice(endless, 1000)).requests == 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"conversations": 0},
        {"mean_turns": 0.5},
        {"system_prompts": 0},
        {"zipf_exponent": -1},
        {"think_seconds": -1},
        {"think_seconds": nan},
        {"think_seconds": inf},
        {"max_input_tokens": 1},
        {"block_tokens": 0},
        {"conversations_per_second": 0},
        {"answer_tokens_per_second": 0},
        {"answer_tokens_per_second": inf},
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_name(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigurationError, match=f"{name}={value} cannot be: give"):
        ChatShape(**wrong)


@pytest.mark.parametrize(("median", "sigma"), [(0, 1), (nan, 1), (5, -1), (5, nan), (5, inf)])
def test_a_length_that_cannot_be_drawn_is_refused(median: float, sigma: float) -> None:
    with pytest.raises(ConfigurationError, match="cannot be drawn from: give"):
        LogNormal(median, sigma)


class HighestDraw(Random):
    """Always draws the largest number below one."""

    def random(self) -> float:
        return 1 - 2**-53


class LowestDraw(Random):
    """Always draws zero."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("random", [LowestDraw(), HighestDraw()])
def test_the_extreme_draws_stay_in_range(random: Random) -> None:
    assert 0 <= exponential(random, 1) < 40
    assert 1 <= geometric(random, 4) < 200
    assert geometric(random, 1) == 1
    assert 0 <= rank(random, zipf_cumulative(3, 1)) <= 2


def test_a_length_is_never_zero() -> None:
    assert min(LogNormal(1, 3).draw(Random(seed)) for seed in range(100)) == 1  # noqa: S311 - a workload
