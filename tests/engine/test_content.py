"""No wrong byte goes unseen: that is what the content of a block is made for."""

from __future__ import annotations

import pytest
import torch

from kvconn.engine import KVShape, PagedKV
from kvconn.engine.content import JUNK, BlockContent
from kvconn.errors import ConfigurationError
from kvconn.identity import content_key

KEYS = [content_key(i) for i in range(4)]
BLOCKS = [5, 0, 3, 6]


@pytest.fixture(params=[False, True], ids=["joined", "split"])
def kv(request):
    return PagedKV(KVShape(num_blocks=8, layers=2, page_bytes=256, split=request.param))


@pytest.fixture
def content(kv):
    content = BlockContent(kv.pages)
    content.write(BLOCKS, KEYS)
    return content


def test_what_was_written_is_right(content):
    assert content.wrong(BLOCKS, KEYS) == 0


def test_every_single_bit_is_seen(kv, content):
    for page in kv.pages:
        for word in range(page.shape[1]):
            for bit in (0, 31, 62):
                page[3, word] ^= 1 << bit
                assert content.wrong(BLOCKS, KEYS) == 1
                page[3, word] ^= 1 << bit


def test_no_word_occurs_twice(kv, content):
    words = torch.cat([page[BLOCKS].flatten() for page in kv.pages])
    assert len(set(words.tolist())) == len(words)


def test_another_block_page_or_rank_is_wrong(kv, content):
    assert content.wrong([5], [KEYS[1]]) == 1
    assert BlockContent(kv.pages[::-1]).wrong(BLOCKS, KEYS) == len(BLOCKS)
    assert BlockContent(kv.pages, first_page=len(kv.pages)).wrong(BLOCKS, KEYS) == len(BLOCKS)


def test_a_block_counts_once_however_many_pages_are_wrong(kv, content):
    for page in kv.pages:
        page[[0, 3]] += 2
    assert content.wrong(BLOCKS, KEYS) == 2


def test_spoilt_blocks_hold_what_content_never_is(kv, content):
    content.spoil([5])
    assert all((page[5] == JUNK).all() for page in kv.pages)
    assert JUNK % 2 == 0
    assert content.wrong(BLOCKS, KEYS) == 1


def test_many_blocks_are_compared_in_several_batches(monkeypatch, kv):
    monkeypatch.setattr("kvconn.engine.content._BATCH_BYTES", 512)
    content = BlockContent(kv.pages)
    content.write(BLOCKS, KEYS)
    kv.pages[-1][6, 0] = 0
    assert content.wrong(BLOCKS, KEYS) == 1


@pytest.mark.parametrize("page_bytes", [0, 4, 100])
def test_a_page_of_odd_size_is_a_configuration_error(page_bytes):
    with pytest.raises(ConfigurationError, match="multiple of 8"):
        KVShape(num_blocks=1, page_bytes=page_bytes)
