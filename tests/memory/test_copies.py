import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvconn.errors import MisuseError
from kvconn.memory import Copier, HostPool, KVCaches, runs
from kvconn.memory.parts import parts_of
from kvconn.types import ABSENT

from . import layouts

PER_CHUNK = [1, 2, 3]


def _rows(per_chunk, chunks, num_blocks=layouts.BLOCKS):
    ids = np.random.default_rng(per_chunk).permutation(num_blocks)[: per_chunk * chunks]
    return ids.reshape(chunks, per_chunk).tolist()


@pytest.mark.parametrize("padding", [0, 4096])
@pytest.mark.parametrize("per_chunk", PER_CHUNK)
@pytest.mark.parametrize("layout", layouts.ALL)
def test_a_gathered_slot_holds_the_stored_form_and_nothing_else_changes(
    layout, per_chunk, padding, threads, open_copier
):
    tensors, dim = layout()
    pool, caches, copier = open_copier(
        tensors, num_blocks=layouts.BLOCKS, block_dims=dim, blocks_per_chunk=per_chunk,
        threads=threads, padding=padding,
    )  # fmt: skip
    pages, before = layouts.images(tensors), pool.tensor.clone()
    rows, slots = _rows(per_chunk, 4), [5, 6, 1, 3]
    copier.gather(rows, slots).wait()
    for row, slot in zip(rows, slots, strict=True):
        payload = bytes(pool.buffer(slot)[: caches.chunk_bytes])
        assert payload == layouts.expected_slot(caches, row)
        assert torch.equal(
            pool.tensor[slot, caches.chunk_bytes :], before[slot, caches.chunk_bytes :]
        )
    for slot in {*range(8)} - {*slots}:
        assert torch.equal(pool.tensor[slot], before[slot])
    assert layouts.images(tensors) == pages


@pytest.mark.parametrize("padding", [0, 4096])
@pytest.mark.parametrize("per_chunk", PER_CHUNK)
@pytest.mark.parametrize("layout", layouts.ALL)
def test_scattered_blocks_come_back_in_other_pages_and_neighbours_stay(
    layout, per_chunk, padding, threads, open_copier
):
    tensors, dim = layout()
    pool, _, copier = open_copier(
        tensors, num_blocks=layouts.BLOCKS, block_dims=dim, blocks_per_chunk=per_chunk,
        threads=threads, padding=padding,
    )  # fmt: skip
    blocks = [layouts.block_bytes(tensors, dim, b) for b in range(layouts.BLOCKS)]
    rows, slots = _rows(per_chunk, 4), [5, 6, 1, 3]
    copier.gather(rows, slots)
    stored = pool.tensor.clone()
    elsewhere = rows[::-1]
    assert copier.scatter(elsewhere, slots).done()
    moved = {
        to: source
        for row, other in zip(rows, elsewhere, strict=True)
        for source, to in zip(row, other, strict=True)
    }
    for block in range(layouts.BLOCKS):
        assert layouts.block_bytes(tensors, dim, block) == blocks[moved.get(block, block)]
    assert torch.equal(pool.tensor, stored)


def test_bytes_of_the_storage_that_belong_to_no_page_are_never_written(open_copier, threads):
    tensors, _ = layouts.part_of_each_block()
    _, _, copier = open_copier(tensors, num_blocks=layouts.BLOCKS, threads=threads)
    outside = [t.untyped_storage() for t in tensors.values()]
    wholes = [torch.tensor([], dtype=torch.bfloat16).set_(s).view(-1, 7, 64) for s in outside]
    before = [w.clone().view(torch.int16) for w in wholes]
    copier.scatter([[b] for b in range(8)], list(range(8)))
    for whole, was in zip(wholes, before, strict=True):
        now = whole.view(torch.int16)
        assert torch.equal(now[:, 0], was[:, 0])
        assert torch.equal(now[:, 5:], was[:, 5:])
        assert not torch.equal(now[:8, 1:5], was[:8, 1:5])


@pytest.mark.parametrize("padding", [0, 4096])
@pytest.mark.parametrize(
    ("per_chunk", "held"), [(n, held) for n in (1, 2, 3, 16) for held in range(n + 1)]
)
def test_absent_blocks_are_left_bit_for_bit(per_chunk, held, padding, open_copier):
    tensors = {f"layer {i}": torch.randint(0, 99, (64, 24), dtype=torch.int16) for i in range(3)}
    pool, caches, copier = open_copier(
        tensors, num_blocks=64, blocks_per_chunk=per_chunk, padding=padding
    )
    rows = _rows(per_chunk, 3, 64)
    wanted = [[ABSENT] * held + rows[0][held:], *rows[1:]]
    slots = [4, 5, 2]

    before = [t.clone() for t in tensors.values()]
    copier.scatter(wanted, slots)
    at = 0
    for (_, now), was in zip(tensors.items(), before, strict=True):
        expected = was.clone()
        for row, slot in zip(wanted, slots, strict=True):
            pages = pool.tensor[slot, at : at + 48 * per_chunk].view(torch.int16).view(-1, 24)
            for j, block in enumerate(row):
                if block != ABSENT:
                    expected[block] = pages[j]
        assert torch.equal(now, expected)
        at += 48 * per_chunk

    pool.tensor.random_(0, 256)
    stale = pool.tensor.clone()
    copier.gather(wanted, slots)
    whole = [b if b != ABSENT else 0 for b in wanted[0]]
    fresh = np.frombuffer(layouts.expected_slot(caches, whole), np.uint8).reshape(3, per_chunk, 48)
    now, was = (
        t[4, : caches.chunk_bytes].numpy().reshape(3, per_chunk, 48) for t in (pool.tensor, stale)
    )
    assert (now[:, :held] == was[:, :held]).all()
    assert (now[:, held:] == fresh[:, held:]).all()
    assert torch.equal(pool.tensor[:, caches.chunk_bytes :], stale[:, caches.chunk_bytes :])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_permuted_padded_layout_comes_back(data):
    inner = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3), label="inner")
    blocks = data.draw(st.integers(2, 9), label="blocks")
    dtype = data.draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32]), label="dtype")
    run = data.draw(st.integers(64, 80), label="run")
    margins = data.draw(
        st.lists(st.integers(0, 2), min_size=len(inner) + 2, max_size=len(inner) + 2)
    )
    order = data.draw(st.permutations(range(len(inner) + 1)), label="order")
    per_chunk = data.draw(st.integers(1, 2), label="per chunk")
    threads = data.draw(st.integers(1, 2), label="threads")

    # Physical dimensions in ``order`` with the run innermost; each in a larger one (margins).
    sizes = [blocks, *inner]
    physical = [sizes[d] for d in order] + [run]
    storage = torch.randint(
        0, 256, [s + m for s, m in zip(physical, margins, strict=True)], dtype=torch.uint8
    )
    storage = storage.to(dtype)
    view = storage[tuple(slice(m, m + s) for s, m in zip(physical, margins, strict=True))]
    dim = order.index(0)
    caches = KVCaches({"kv": view}, num_blocks=blocks, block_dims=dim, blocks_per_chunk=per_chunk)
    assert caches.block_bytes * blocks == view.nbytes
    pool = HostPool(-(-caches.chunk_bytes // 4096) * 4096, 4)
    copier = Copier(pool, caches, threads=threads)
    before = storage.clone()
    chunks = min(4, blocks // per_chunk)
    ids = data.draw(st.permutations(range(blocks)), label="ids")[: chunks * per_chunk]
    rows = [list(ids[i * per_chunk : (i + 1) * per_chunk]) for i in range(chunks)]
    copier.gather(rows, list(range(chunks)))
    view.index_fill_(dim, torch.tensor(ids, dtype=torch.int64), 7)
    copier.scatter(rows, list(range(chunks)))
    assert torch.equal(storage, before)


@pytest.mark.parametrize("nbytes", [1, 5000, 64 << 10])
def test_a_copy_is_cut_into_calls_without_a_seam(nbytes, open_copier, threads, monkeypatch):
    monkeypatch.setattr(runs, "TOUCH_BYTES", nbytes)
    tensors, dim = layouts.keys_and_values()
    pool, caches, copier = open_copier(
        tensors, num_blocks=layouts.BLOCKS, block_dims=dim, blocks_per_chunk=2, threads=threads
    )
    before = layouts.images(tensors)
    rows, slots = _rows(2, 6), [6, 7, 0, 1, 5, 3]
    copier.gather(rows, slots)
    for row, slot in zip(rows, slots, strict=True):
        payload = bytes(pool.buffer(slot)[: caches.chunk_bytes])
        assert payload == layouts.expected_slot(caches, row)
    for tensor in tensors.values():
        tensor.zero_()
    copier.scatter(rows, slots)
    assert layouts.images(tensors) == before


def test_a_large_copy_comes_back(open_copier, threads):
    tensors = {f"layer {i}": torch.randint(0, 255, (600, 1024)) for i in range(2)}
    pool, caches, copier = open_copier(
        tensors, num_blocks=600, slots=300, threads=threads, blocks_per_chunk=2
    )
    rows = _rows(2, 300, 600)
    before = [t.clone() for t in tensors.values()]
    slots = [*range(150), *range(299, 149, -1)]
    copier.gather(rows, slots)
    assert bytes(pool.buffer(299)[: caches.chunk_bytes]) == layouts.expected_slot(caches, rows[150])
    for tensor in tensors.values():
        tensor.zero_()
    copier.scatter(rows, slots)
    assert all(map(torch.equal, tensors.values(), before))


def test_tensors_on_both_sides_of_the_pool_share_no_view():
    # A numpy copy between memory that may overlap goes through a temporary: twice the time.
    arena = torch.zeros(3, 1 << 16, dtype=torch.uint8)
    caches = KVCaches({"a": arena[0].view(16, -1), "b": arena[2].view(16, -1)}, num_blocks=16)
    pool = HostPool(8192, 4)
    pool.tensor = arena[1, : 4 * 8192].view(4, 8192)
    pool._base = pool.tensor.data_ptr()
    parts = list(parts_of(caches, pool))
    assert len(parts) == 2
    assert not any(np.may_share_memory(part.rows, part.slots) for part in parts)


@pytest.mark.parametrize(
    "rows",
    [[[0, 40]], [[0, -2]], [[0]], [[0, 1, 2]], [0, 1], [[0, 1], [2]], [[0.0, 1.0]], [["0", "1"]],
     [[0, 2**70]], [[]], [[[0, 1]]]],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_wrong_block_ids_are_refused_before_a_byte_moves(rows, direction, open_copier):
    tensors = {"kv": torch.randint(0, 255, (40, 64))}
    pool, _, copier = open_copier(tensors, num_blocks=40, blocks_per_chunk=2)
    before, slots = tensors["kv"].clone(), pool.tensor.clone()
    with pytest.raises(MisuseError):
        getattr(copier, direction)([[2, 3], *rows], list(range(1 + len(rows))))
    assert torch.equal(tensors["kv"], before)
    assert torch.equal(pool.tensor, slots)


@pytest.mark.parametrize("slots", [[0], [0, 8], [-1, 0], [0, 1, 2], [[0, 1]], ["a", "b"]], ids=str)
@pytest.mark.parametrize("direction", ["gather", "scatter"])
def test_wrong_slots_are_refused_before_a_byte_moves(slots, direction, open_copier):
    tensors = {"kv": torch.randint(0, 255, (40, 64))}
    pool, _, copier = open_copier(tensors, num_blocks=40)
    before = pool.tensor.clone()
    with pytest.raises(MisuseError):
        getattr(copier, direction)([[0], [1]], slots)
    assert torch.equal(pool.tensor, before)


def test_nothing_to_move_is_no_error(open_copier):
    _, _, copier = open_copier({"kv": torch.zeros(40, 64)}, num_blocks=40, slots=0)
    assert copier.gather([], []).done()
    with pytest.raises(MisuseError):
        copier.gather([[1]], [0])


def test_rows_may_be_arrays_or_tuples(open_copier):
    tensors = {"kv": torch.randint(0, 255, (40, 64))}
    pool, caches, copier = open_copier(tensors, num_blocks=40, blocks_per_chunk=2)
    copier.gather(np.array([[3, 4]], np.int32), np.array([0]))
    copier.gather(((3, 4),), (1,))
    for slot in (0, 1):
        payload = bytes(pool.buffer(slot)[: caches.chunk_bytes])
        assert payload == layouts.expected_slot(caches, [3, 4])


def test_a_chunk_that_does_not_fit_a_slot_is_refused():
    caches = KVCaches({"kv": torch.zeros(4, 2048)}, num_blocks=4)
    with pytest.raises(ValueError, match="must fit a slot"):
        Copier(HostPool(4096, 1), caches)


def test_a_copy_uses_one_of_torchs_threads_and_leaves_the_others(open_copier, monkeypatch):
    tensors = {"kv": torch.zeros(40, 32)[:, :24]}
    _, _, copier = open_copier(tensors, num_blocks=40)
    inside, real = [], torch.index_select

    def select(*args, **how):
        inside.append(torch.get_num_threads())
        return real(*args, **how)

    monkeypatch.setattr(torch, "index_select", select)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        copier.gather([[1]], [0])
        assert inside == [1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_failure_in_another_thread_reaches_the_caller(open_copier, monkeypatch):
    _, _, copier = open_copier({"kv": torch.zeros(40, 64)}, num_blocks=40, threads=2)
    failed = threading.Event()

    def gather(*_):
        if threading.current_thread() is threading.main_thread():
            assert failed.wait(10)
        else:
            failed.set()
            raise FileNotFoundError

    monkeypatch.setattr("kvconn.memory.cpu._gather", gather)
    with pytest.raises(FileNotFoundError):
        copier.gather([[b] for b in range(8)], list(range(8)))


def test_small_chunks_are_copied_by_one_thread(open_copier, monkeypatch):
    monkeypatch.setattr("kvconn.memory.cpu.THREADS_FROM_BYTES", 257)
    threads = set()
    monkeypatch.setattr(
        "kvconn.memory.cpu._gather", lambda *_: threads.add(threading.current_thread())
    )
    _, _, copier = open_copier({"kv": torch.zeros(40, 64)}, num_blocks=40, threads=2)
    copier.gather([[b] for b in range(8)], list(range(8)))
    assert threads == {threading.main_thread()}


@pytest.mark.parametrize("rows", [[[0], [1]], [[0, 1, 2], [3, 4, 5]]], ids=str)
def test_rows_that_are_all_of_a_wrong_length_are_refused(rows, open_copier):
    _, _, copier = open_copier({"kv": torch.zeros(40, 64)}, num_blocks=40, blocks_per_chunk=2)
    with pytest.raises(MisuseError, match="rows of 2"):
        copier.scatter(rows, [0, 1])


@pytest.mark.parametrize("dense", [True, False])
def test_a_call_is_bounded_and_each_small_page_is_touched_once_before_it(dense, monkeypatch):
    monkeypatch.setattr(runs, "TOUCH_BYTES", 7 * 4096)
    touched = []

    class Heads:
        def __getitem__(self, index):
            touched.extend(index.tolist())

    def place(slot, first):
        return (0, slot * 5 + first) if dense else (slot, first)

    part = SimpleNamespace(page_bytes=4096, pages=5, dense=dense, heads=Heads(), place=place)
    index = np.arange(100, 130)
    seen = []
    for rows, (_, pages) in runs.pieces(part, index, np.array([3, 4, 5, 1, 2, 0])):
        assert 0 < rows.stop - rows.start == pages.stop - pages.start <= 7
        seen.extend(index[rows].tolist())
        assert touched[: len(seen)] == seen
    assert seen == touched == index.tolist()


def test_large_pages_are_not_touched_and_calls_of_them_are_bounded_too():
    part = SimpleNamespace(page_bytes=1 << 20, pages=6, dense=False, place=lambda s, f: (s, f))
    pieces = [rows for rows, _ in runs.pieces(part, np.arange(12), np.array([0, 1]))]
    assert pieces == [slice(0, 4), slice(4, 6), slice(6, 8), slice(8, 12)]
