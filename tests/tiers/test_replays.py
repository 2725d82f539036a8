"""A workload over two tiers, every block checked: in both ways to write, also with faults."""

from __future__ import annotations

from itertools import islice

import pytest

from kvconn.engine import KVShape
from kvconn.engine.replay import replay
from kvconn.workload import BLOCK_TOKENS, read_trace, sample_path

pytestmark = [
    pytest.mark.needs("cpu", "disk"),
]

REQUESTS = 150


@pytest.fixture(scope="module")
def requests():
    return list(islice(read_trace(sample_path()), REQUESTS))


def run(requests, path, *, write: str, **how):
    shape = KVShape(
        num_blocks=2 * max(len(request.hash_ids) for request in requests),
        block_tokens=BLOCK_TOKENS,
        layers=2,
        page_bytes=2048,
    )
    tiers = ["cpu://?capacity=512KiB", f"disk://{path}/store?capacity=32MiB"]
    return replay(requests, {"backend": tiers, "write": write}, shape, skip_fraction=0.1, **how)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_no_block_is_wrong_nothing_is_left_and_both_tiers_serve(
    requests, tmp_path, write, asynchronous
):
    report = run(requests, tmp_path, write=write, asynchronous=asynchronous)
    assert report.good
    assert [tier.name for tier in report.tiers] == ["cpu", "disk"]
    assert report.tiers[1].hits
    assert report.tiers[0].hits or asynchronous  # that early, a promotion has not come yet


@pytest.mark.parametrize("write", ["write_through", "write_back"])
def test_with_a_disk_that_fails_again_and_again_no_block_is_wrong_and_nothing_is_left(
    requests, tmp_path, write
):
    assert run(requests, tmp_path, write=write, fault_every_s=0.2).good


def test_two_tiers_have_more_hits_than_the_fast_one_alone(requests, tmp_path):
    both = run(requests, tmp_path, write="write_through")
    shape = KVShape(
        num_blocks=2 * max(len(request.hash_ids) for request in requests),
        block_tokens=BLOCK_TOKENS,
        layers=2,
        page_bytes=2048,
    )
    alone = replay(requests, "cpu://?capacity=512KiB", shape, skip_fraction=0.1)
    assert both.blocks.external_hits > alone.blocks.external_hits
