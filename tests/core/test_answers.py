"""Which answers of a backend the contract allows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconn.answers import BrokenAnswer, check_load, check_plan, leading_hits
from kvconn.identity import content_key
from kvconn.types import BlockState, StorePlan, Transfer, TransferKind

KEYS = [content_key(number) for number in range(4)]
HIT, MISS, PENDING = BlockState.HIT, BlockState.MISS, BlockState.PENDING


@given(st.lists(st.sampled_from([0, 1, 2, 3, 255]), max_size=8), st.booleans())
def test_the_leading_run_ends_at_the_first_state_that_is_no_hit(states, as_bytes):
    run = next((i for i, state in enumerate(states) if state != HIT), len(states))
    pending = run < len(states) and states[run] == PENDING
    answer = bytes(states) if as_bytes else states
    assert leading_hits(answer, len(states)) == (run, pending)


@pytest.mark.parametrize("answer", [b"", bytes([HIT]), [HIT] * 3, bytes([HIT] * 3), ()])
def test_another_number_of_states_than_keys_is_a_broken_answer(answer):
    with pytest.raises(BrokenAnswer, match=rf"{len(answer)} states for 2 keys"):
        leading_hits(answer, 2)


@pytest.mark.parametrize("answer", [None, 5j, ["hit", "miss"], [None, None], [256, 1], [-1, 1]])
def test_what_is_no_sequence_of_states_raises(answer):
    with pytest.raises((TypeError, ValueError)):
        leading_hits(answer, 2)


def load(*keys: bytes, kind: TransferKind = TransferKind.LOAD) -> Transfer:
    return Transfer(1, kind, "r", keys)


@pytest.mark.parametrize("count", range(5))
def test_a_load_names_a_leading_run(count):
    check_load(load(*KEYS[:count]), KEYS)


@pytest.mark.parametrize(
    "transfer",
    [
        load(KEYS[1]),
        load(KEYS[1], KEYS[0]),
        load(KEYS[0], KEYS[2]),
        load(*KEYS, content_key("more")),
        load(KEYS[0], kind=TransferKind.STORE),
        load(KEYS[0], kind=TransferKind.MOVE),
    ],
)
def test_another_load_is_a_broken_answer(transfer):
    with pytest.raises(BrokenAnswer, match="the backend answered a load"):
        check_load(transfer, KEYS)


def plan(*keys: bytes, moves: tuple[bytes, ...] | None = None, kind=TransferKind.STORE):
    return StorePlan(keys, Transfer(1, kind, "r", keys if moves is None else moves))


@pytest.mark.parametrize(
    "answer",
    [StorePlan(), StorePlan(evicted=[KEYS[3]]), plan(*KEYS), plan(KEYS[1], KEYS[3]), plan()],
)
def test_a_plan_accepts_any_of_the_offered_keys(answer):
    check_plan(answer, KEYS)


@pytest.mark.parametrize(
    "answer",
    [
        plan(content_key("other")),
        plan(KEYS[0], KEYS[0]),
        plan(KEYS[0], moves=(KEYS[1],)),
        plan(KEYS[0], moves=()),
        plan(KEYS[0], kind=TransferKind.LOAD),
        StorePlan((KEYS[0],), None),
        StorePlan(evicted=7),
        (KEYS[0],),
        True,
    ],
)
def test_another_plan_is_a_broken_answer(answer):
    with pytest.raises(BrokenAnswer):
        check_plan(answer, KEYS)
