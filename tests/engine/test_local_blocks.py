"""The engine's own blocks and its local prefix cache."""

from __future__ import annotations

import pytest

from kvconn.engine.prefix_cache import LocalBlocks
from kvconn.identity import content_key

A, B, C = (content_key(name) for name in "abc")


@pytest.fixture
def blocks():
    return LocalBlocks(4)


def prefix(blocks, *keys):
    """Somebody computed these and went away."""
    taken = blocks.allocate(len(keys))
    for block, key in zip(taken, keys, strict=True):
        blocks.publish(block, key)
    blocks.release(taken)
    return taken


def test_a_prefix_is_found_up_to_the_first_that_is_missing(blocks):
    first, _ = prefix(blocks, A, B)
    assert blocks.leading([A, C, B]) == [first]


def test_a_block_in_use_is_not_handed_out(blocks):
    prefix(blocks, A)
    [found] = blocks.leading([A])
    assert blocks.free == 3
    assert found not in blocks.allocate(3)


def test_a_block_is_free_when_the_last_lets_go(blocks):
    [block] = blocks.allocate(1)
    blocks.hold([block])
    blocks.release([block])
    assert blocks.free == 3
    blocks.release([block])
    assert blocks.free == 4


def test_the_deepest_block_of_the_oldest_prefix_goes_first(blocks):
    prefix(blocks, A, B)
    prefix(blocks, C)
    blocks.allocate(2)  # the one that was never used, then b
    assert blocks.leading([A]) != []
    assert blocks.leading([C]) != []
    assert blocks.leading([B]) == []


def test_what_a_block_held_is_forgotten_when_it_is_handed_out(blocks):
    prefix(blocks, A)
    blocks.allocate(4)
    assert blocks.leading([A]) == []


def test_two_blocks_with_the_same_content_are_one_prefix(blocks):
    [first] = prefix(blocks, A)
    prefix(blocks, A)
    assert blocks.leading([A]) == [first]


def test_a_reset_forgets_prefixes_and_takes_no_block_away(blocks):
    prefix(blocks, A)
    blocks.leading([A])
    blocks.reset()
    assert blocks.leading([A]) == []
    assert blocks.free == 3
