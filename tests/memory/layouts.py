"""Layouts of real engines, and a slow, plain copy to judge the fast ones by."""

import ctypes

import torch

BLOCKS = 12


def _random(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(sum(shape))
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).squeeze(-1)


def separate():
    return {f"layer {i}": _random(BLOCKS, 16, 4, 8) for i in range(3)}, 0


def keys_and_values():
    return {f"layer {i}": _random(2, BLOCKS, 16, 4, 8) for i in range(3)}, 1


def one_allocation():
    whole = _random(4, BLOCKS, 128)
    return {f"layer {i}": whole[i] for i in range(4)}, 0


def blocks_first_in_one_allocation():
    whole = _random(BLOCKS, 4, 128)
    return {f"layer {i}": whole[:, i] for i in range(4)}, 0


def heads_before_tokens_seen_the_other_way():
    # vLLM: physical [blocks, 2, heads, tokens, size], logical [blocks, 2, tokens, heads, size].
    return {f"layer {i}": _random(BLOCKS, 2, 4, 16, 8).permute(0, 1, 3, 2, 4) for i in range(3)}, 0


def heads_outside_blocks():
    return {f"layer {i}": _random(3, BLOCKS, 5, 32).permute(1, 2, 0, 3) for i in range(2)}, 0


def part_of_each_block():
    return {f"layer {i}": _random(BLOCKS, 7, 64)[:, 1:5] for i in range(2)}, 0


def odd_pages():
    return {f"layer {i}": _random(BLOCKS, 3 * (i + 1)) for i in range(4)}, 0


def single_bytes():
    return {f"layer {i}": _random(BLOCKS, 5 + 2 * i, dtype=torch.uint8) for i in range(3)}, 0


def pages_of_two_sizes():
    sizes = (32, 32, 8, 32)
    return {f"layer {i}": _random(BLOCKS, n) for i, n in enumerate(sizes)}, 0


def large_pages():
    return {f"layer {i}": _random(BLOCKS, 40 << 10, dtype=torch.uint8) for i in range(2)}, 0


def layers_that_share():
    one, other = _random(BLOCKS, 64), _random(BLOCKS, 64)
    return {"a": one, "b": other, "c": one}, 0


ALL = [
    separate,
    keys_and_values,
    one_allocation,
    blocks_first_in_one_allocation,
    heads_before_tokens_seen_the_other_way,
    heads_outside_blocks,
    part_of_each_block,
    odd_pages,
    single_bytes,
    pages_of_two_sizes,
    large_pages,
    layers_that_share,
]


def images(tensors):
    """Every byte of every storage, apart from the tensors themselves."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors.values()}
    return [
        torch.tensor([], dtype=torch.uint8).set_(storage).numpy().tobytes()
        for storage in storages.values()
    ]


def block_bytes(tensors, block_dim, block):
    """What a block means to the engine: its elements, whatever their places."""
    return [
        t.select(block_dim, block).contiguous().view(torch.uint8).numpy().tobytes()
        for t in tensors.values()
    ]


def expected_slot(caches, row):
    """The stored form of one chunk, by the book: segment-major, one byte at a time."""
    return b"".join(
        ctypes.string_at(segment.base + block * segment.stride, segment.page_bytes)
        for segment in caches.segments
        for block in row
    )
