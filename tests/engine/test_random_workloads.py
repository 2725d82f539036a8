# ruff: noqa: S311 - draws, not secrets
"""Whatever a workload does, and however late its transfers are, no byte is wrong, nothing leaks."""

from __future__ import annotations

import tempfile
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvconn.engine import KVShape, Limits
from kvconn.testing.counting import CountingBackend
from kvconn.testing.runner import open_runner
from kvconn.testing.slow import SlowBackend

SUBMIT, ABORT, PREEMPT, RESET_LOCAL, RESET_BACKEND = range(5)


@st.composite
def shapes(draw):
    blocks_per_chunk = draw(st.sampled_from([1, 2, 3, 16]))
    return KVShape(
        num_blocks=draw(st.integers(24, 40)),
        block_tokens=draw(st.sampled_from([1, 2, 4])),
        layers=draw(st.integers(1, 3)),
        page_bytes=draw(st.sampled_from([128, 256])),
        blocks_per_chunk=blocks_per_chunk,
        ranks=draw(st.sampled_from([1, 2])),
        split=draw(st.booleans()),
    )


actions = st.tuples(
    st.sampled_from([SUBMIT] * 9 + [ABORT, PREEMPT, PREEMPT, *[RESET_LOCAL] * 4, RESET_BACKEND]),
    st.integers(0, 2**31),
    st.integers(0, 3),  # steps before it
)


def act(runner, shape, action, random, requests):
    if action == SUBMIT:
        # Few texts, cut anywhere: most of what is asked for was seen before.
        prompt = random.randint(1, 17 * shape.block_tokens)
        text = [random.randint(0, 1)] * (prompt // 2) + [random.randint(0, 1)] * (
            prompt - prompt // 2
        )
        answer = text[-1:] * random.randint(0, 3 * shape.block_tokens)
        requests.append(
            runner.submit(
                text,
                answer=answer,
                max_answer=random.choice([0, len(answer) + 2]),
                skip_reading=random.random() < 0.15,
                skip_writing=random.random() < 0.1,
            )
        )
    elif action == RESET_LOCAL:
        runner.engine.reset_prefix_cache()
    elif action == RESET_BACKEND:
        runner.engine.scheduler.reset()
    elif requests:
        request_id = random.choice(requests[-8:]).context.id
        (runner.engine.abort if action == ABORT else runner.engine.preempt)(request_id)


def run(url, shape, asynchronous, wrap, workload):
    requests = []
    limits = Limits(requests=4, blocks_per_step=12, patience_s=0.0)
    with open_runner(
        url, shape, asynchronous=asynchronous, limits=limits, wrap=wrap, patience_s=20
    ) as runner:
        for action, seed, steps in workload:
            for _ in range(steps):
                runner.engine.step()
            act(runner, shape, action, Random(seed), requests)
        runner.settle()
        skipping = runner.backend.skipping
        assert (skipping.lookups, skipping.loads) == (0, 0)
        stats = runner.engine.scheduler.collect_stats()
        assert (stats["backend_errors"], stats["misuse"]) == (0, 0)


@settings(max_examples=100, deadline=None)
@pytest.mark.needs("cpu")
@given(
    shape=shapes(),
    asynchronous=st.booleans(),
    seed=st.integers(0, 2**31),
    chunks=st.integers(1, 60),
    failures=st.sampled_from([0.0, 0.2]),
    pending=st.sampled_from([0.0, 0.2]),
    workload=st.lists(actions, min_size=12, max_size=40),
)
def test_memory_that_is_late_or_fails(
    shape, asynchronous, seed, chunks, failures, pending, workload
):
    random = Random(seed)

    def wrap(backend):
        return SlowBackend(backend, random, polls=20, failures=failures, pending=pending)

    url = f"cpu://?capacity={chunks * shape.geometry.slot_bytes * shape.ranks}"
    run(url, shape, asynchronous, wrap, workload)


@pytest.mark.needs("disk")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=shapes(),
    asynchronous=st.booleans(),
    workload=st.lists(actions, min_size=8, max_size=25),
)
def test_files(shape, asynchronous, workload):
    with tempfile.TemporaryDirectory() as path:
        run(f"disk://{path}?capacity=300KiB", shape, asynchronous, CountingBackend, workload)
