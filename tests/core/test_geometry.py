"""Tokens, blocks and chunks, whatever offset a sequence starts and ends at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvconn.geometry import Geometry
from kvconn.types import ABSENT

SMALL = st.integers(1, 5)


@given(st.integers(0, 500), SMALL, SMALL)
def test_a_partial_chunk_is_no_chunk(tokens, block_tokens, blocks_per_chunk):
    geometry = Geometry(block_tokens, 1, blocks_per_chunk)
    whole = geometry.whole_chunks(tokens)
    assert whole * geometry.chunk_tokens <= tokens < (whole + 1) * geometry.chunk_tokens


@given(st.data(), SMALL)
def test_every_block_is_in_its_chunks_row_unless_the_engine_has_it(data, size):
    count = data.draw(st.integers(1, 5))
    first = data.draw(st.integers(0, count))
    blocks = data.draw(
        st.lists(st.integers(0, 99), min_size=count * size, max_size=count * size, unique=True)
    )
    # What the engine has reaches into the first chunk of the row at most, as with any load.
    computed = data.draw(st.integers(0, min(first + 1, count) * size))
    rows = Geometry(4, 1, size).rows(blocks, range(first, count), computed)
    assert [len(row) for row in rows] == [size] * (count - first)
    for chunk, row in enumerate(rows, start=first):
        for at, block in enumerate(row, start=chunk * size):
            assert block == (ABSENT if at < computed else blocks[at])


@given(SMALL, st.integers(0, 30))
def test_rows_are_copies_of_the_block_table(size, computed):
    blocks = list(range(3 * size))
    Geometry(4, 1, size).rows(blocks, range(3), computed)
    assert blocks == list(range(3 * size))
