"""The report that kvconn starts from, over every backend and both ways of scheduling."""

from __future__ import annotations

from kvconn.engine import KVShape
from kvconn.testing.runner import open_runner

SHAPE = KVShape(num_blocks=16, block_tokens=4, blocks_per_chunk=3)
ONE_CHUNK = [0] * 12
BLOCKS = [0, 1, 2]


def test_a_request_that_skips_reading_is_given_nothing_and_still_stores(url, keeps, asynchronous):
    flushed = [] if asynchronous else BLOCKS
    with open_runner(url, SHAPE, asynchronous=asynchronous) as runner:
        runner.run(ONE_CHUNK, stored=BLOCKS, flushed=flushed)

        runner.engine.reset_prefix_cache()
        runner.run(
            ONE_CHUNK,
            skip_reading=True,
            loaded=[],
            stored=[] if keeps else BLOCKS,  # else the backend has it already
            flushed=[] if keeps else flushed,
        )
        skipping = runner.backend.skipping
        assert (skipping.lookups, skipping.loads) == (0, 0)
        assert (skipping.started, skipping.offers, skipping.finished) == (1, 1, 1)
        assert skipping.touches > 0
        assert runner.engine.figures.computed == 6

        runner.engine.reset_prefix_cache()
        if keeps:
            runner.run(ONE_CHUNK, loaded=BLOCKS)
            assert runner.backend.plain.offers == 1  # what came from there is not offered again
        else:
            runner.run(ONE_CHUNK, stored=BLOCKS, flushed=flushed)
        assert runner.backend.plain.lookups == 2


def test_what_a_skipping_request_computes_is_stored_for_the_next(url, keeps, asynchronous):
    flushed = [] if asynchronous else BLOCKS
    with open_runner(url, SHAPE, asynchronous=asynchronous) as runner:
        runner.run(ONE_CHUNK, skip_reading=True, stored=BLOCKS, flushed=flushed)
        runner.engine.reset_prefix_cache()
        if keeps:
            runner.run(ONE_CHUNK, loaded=BLOCKS)
        assert runner.backend.skipping.lookups == 0


def test_a_skipping_request_does_not_read_the_local_prefix_cache_either(url, asynchronous):
    with open_runner(url, SHAPE, asynchronous=asynchronous) as runner:
        for _ in range(2):
            runner.submit(ONE_CHUNK, skip_reading=True)
            runner.settle()
        assert runner.engine.figures.computed == 6
        assert runner.engine.figures.local_hits == 0
        assert runner.engine.figures.queried == 0
