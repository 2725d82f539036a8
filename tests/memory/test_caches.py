import pytest
import torch

from kvconn.errors import CannotPage
from kvconn.memory import KVCaches

from . import layouts


def _segments(tensors, num_blocks=layouts.BLOCKS, **how):
    return KVCaches(tensors, num_blocks=num_blocks, **how).page_bytes


@pytest.mark.parametrize(
    ("layout", "pages"),
    [
        (layouts.separate, (1024,) * 3),
        (layouts.keys_and_values, (1024,) * 6),
        (layouts.one_allocation, (256,) * 4),
        (layouts.blocks_first_in_one_allocation, (1024,)),
        (layouts.heads_before_tokens_seen_the_other_way, (2048,) * 3),
        (layouts.heads_outside_blocks, (320,) * 6),
        (layouts.part_of_each_block, (512,) * 2),
        (layouts.odd_pages, (6, 12, 18, 24)),
        (layouts.layers_that_share, (128, 128)),
    ],
)
def test_a_layout_becomes_as_few_pages_as_its_memory_allows(layout, pages):
    tensors, dim = layout()
    caches = KVCaches(tensors, num_blocks=layouts.BLOCKS, block_dims=dim, blocks_per_chunk=3)
    assert caches.page_bytes == pages
    assert caches.block_bytes == sum(pages)
    assert caches.chunk_bytes == 3 * sum(pages)
    assert caches.device == torch.device("cpu")


def test_the_order_of_pages_is_that_of_registration_not_of_addresses():
    whole = torch.zeros(3, 12, 64)
    caches = KVCaches({"b": whole[2], "a": whole[0]}, num_blocks=12)
    assert [s.name for s in caches.segments] == ["b", "a"]


def test_the_block_dimension_is_found_where_only_one_has_that_size():
    assert _segments({"kv": torch.zeros(2, 12, 64)}) == (256, 256)


def test_a_block_dimension_may_be_given_by_name_and_from_the_end():
    tensors = {"kv": torch.zeros(12, 12, 64), "other": torch.zeros(12, 8)}
    assert _segments(tensors, block_dims={"kv": -2}) == (256,) * 12 + (32,)


@pytest.mark.parametrize(
    ("tensor", "how", "word"),
    [
        (torch.zeros(12, 12, 64), {}, "block_dims"),
        (torch.zeros(13, 64), {}, "block_dims"),
        (torch.zeros(13, 64), {"block_dims": 0}, "correct block_dims"),
        (torch.zeros(12, 64), {"block_dims": 2}, "correct block_dims"),
        (torch.zeros(1, 64).expand(12, 64), {}, "expanded"),
        (torch.zeros(12, 1, 64).expand(12, 4, 64), {}, "expanded"),
        (torch.zeros(600).as_strided((12, 64), (32, 1)), {}, "overlap"),
        (torch.zeros(8000).as_strided((12, 4, 64), (256, 32, 1)), {}, "more than once"),
        (torch.zeros(64, 12), {}, "keeps a block's bytes together"),
        (torch.zeros(12, 64, 64)[:, :, :15], {}, "below 64"),
        (torch.zeros(12, 64, device="meta"), {}, "plain memory"),
        (torch.zeros(12, 64).to_sparse(), {}, "plain memory"),
        (torch.zeros(12, 0), {}, "plain memory"),
    ],
)  # fmt: skip
def test_a_tensor_that_cannot_be_moved_by_blocks_is_refused_with_advice(tensor, how, word):
    with pytest.raises(CannotPage, match=word):
        KVCaches({"kv": tensor}, num_blocks=12, **how)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")  # deprecated, not gone
def test_a_quantized_tensor_is_refused():
    tensor = torch.quantize_per_tensor(torch.zeros(12, 64), 0.1, 0, torch.qint8)
    with pytest.raises(CannotPage, match="plain memory"):
        KVCaches({"kv": tensor}, num_blocks=12)


def test_runs_of_one_cache_line_are_long_enough():
    assert _segments({"kv": torch.zeros(12, 64, 64)[:, :, :16]}) == (64,) * 64


@pytest.mark.parametrize(
    "tensors",
    [
        lambda w: {"a": w.view(12, 256), "b": w.view(12, 256)[:, :128]},
        lambda w: {"a": w.view(12, 256), "b": w.view(12, 256)[:, 128:]},
        lambda w: {"a": w.view(12, 256)[:, :129], "b": w.view(12, 256)[:, 128:]},
        lambda w: {"a": w.view(24, 128)[:12], "b": w.view(24, 128)[11:23]},
        lambda w: {"a": w.view(24, 128)[::2], "b": w.view(24, 128)[:12]},
        lambda w: {"a": w.view(12, 256)[:, 64:], "b": w.view(-1)[:12 * 128].view(12, 128)},
        # The page of one block goes on into the next block's.
        lambda w: {
            "a": w.as_strided((12, 64), (240, 1), 0),
            "b": w.as_strided((12, 200), (240, 1), 100),
        },
        # The first blocks are apart and later ones are not.
        lambda w: {
            "a": w.as_strided((12, 64), (256, 1), 0),
            "b": w.as_strided((12, 64), (192, 1), 64),
        },
    ],
)  # fmt: skip
def test_tensors_that_share_some_bytes_are_refused(tensors):
    with pytest.raises(CannotPage, match="share bytes"):
        KVCaches(tensors(torch.zeros(12 * 256)), num_blocks=12)


@pytest.mark.parametrize(
    "tensors",
    [
        lambda w: {"a": w.view(24, 128)[:12], "b": w.view(24, 128)[12:]},
        lambda w: {"a": w.view(24, 128)[::2], "b": w.view(24, 128)[1::2]},
        lambda w: {"a": w.view(12, 256)[:, :100], "b": w.view(12, 256)[:, 128:]},
        # Every other block of the first half lies between nothing of the second.
        lambda w: {"a": w.view(48, 64)[0:24:2], "b": w.view(48, 64)[24:36]},
        # Same place in the stride, other blocks, and a third that spans both.
        lambda w: {
            "a": w.view(24, 2, 64)[:12, 0],
            "b": w.view(24, 2, 64)[12:, 0],
            "c": w.view(24, 2, 64)[6:18, 1],
        },
    ],
)
def test_tensors_that_interleave_without_sharing_are_accepted(tensors):
    caches = KVCaches(tensors(torch.zeros(12 * 256)), num_blocks=12)
    assert caches.segments


def test_pages_that_touch_in_one_block_only_stay_apart():
    whole = torch.zeros(12 * 256)
    tensors = {
        "a": whole.as_strided((12, 64), (256, 1), 0),
        "b": whole.as_strided((12, 64), (128, 1), 64),
    }
    assert _segments(tensors) == (256, 256)


def test_the_stored_layout_does_not_depend_on_where_the_allocator_put_a_tensor():
    memory = bytearray(1024)
    tensors = {
        name: torch.frombuffer(memory, dtype=torch.uint8, offset=at, count=512).view(1, 512)
        for name, at in (("a", 0), ("b", 512))
    }
    assert _segments(tensors, 1, block_dims=0) == (512, 512)


def test_memory_registered_twice_is_moved_once():
    tensors, _ = layouts.layers_that_share()
    caches = KVCaches(tensors, num_blocks=layouts.BLOCKS)
    assert caches.block_bytes == 2 * 128


def test_no_tensors_and_no_blocks_are_refused():
    for tensors, blocks in (({}, 12), ({"kv": torch.zeros(0, 12)}, 0)):
        with pytest.raises(CannotPage, match="at least one"):
            KVCaches(tensors, num_blocks=blocks)


def test_tensors_of_two_devices_are_refused(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "device", property(lambda t: torch.device("cuda", t.ndim)))
    with pytest.raises(CannotPage, match="one device"):
        KVCaches({"a": torch.zeros(12, 64), "b": torch.zeros(2, 12, 64)}, num_blocks=12)


def test_one_block_may_be_all_there_is():
    assert _segments({"kv": torch.zeros(1, 64)}, 1) == (256,)


def test_blocks_without_a_stride_of_their_own_that_overlap_are_refused():
    memory = torch.zeros(8192, dtype=torch.uint8)
    one = memory.as_strided((1, 4096), (0, 1))
    other = memory[64:].as_strided((1, 4096), (0, 1))
    with pytest.raises(CannotPage):
        KVCaches({"one": one, "other": other}, num_blocks=1)
