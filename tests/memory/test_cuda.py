"""The CUDA path: its arithmetic anywhere, with a stream that does everything at once; the rest
where there is a device."""

import pytest
import torch

from kvconn.memory import Copier, HostPool, KVCaches, cuda
from kvconn.memory.copies import _FINISHED
from kvconn.types import ABSENT

from . import layouts

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class _AtOnce:
    def __enter__(self):
        pass

    def __exit__(self, *raised):
        pass

    def record(self):
        return _FINISHED


@pytest.mark.parametrize("per_chunk", [1, 2, 3])
@pytest.mark.parametrize("layout", layouts.ALL)
def test_staged_copies_move_what_plain_copies_move(layout, per_chunk, monkeypatch):
    monkeypatch.setattr(cuda, "STAGING_BYTES", 2 << 12)  # batches of two slots at most
    tensors, dim = layout()
    caches = KVCaches(
        tensors, num_blocks=layouts.BLOCKS, block_dims=dim, blocks_per_chunk=per_chunk
    )
    pool = HostPool(-(-caches.chunk_bytes // 4096) * 4096, 6)
    pool.tensor.random_(0, 256)
    staged = cuda.StagedCopies(pool, caches, _AtOnce())
    ids = torch.randperm(layouts.BLOCKS)[: 3 * per_chunk].view(3, per_chunk).numpy()
    ids[1, 0] = ABSENT
    slots = torch.tensor([4, 2, 5]).numpy()

    def both(direction):
        """Bytes of slots and storages after a staged copy, and after a plain one from there."""
        start = pool.tensor.clone(), {n: t.clone() for n, t in tensors.items()}
        getattr(staged, direction)(ids, slots)
        after = [pool.tensor[:, : caches.chunk_bytes].clone(), layouts.images(tensors)]
        pool.tensor.copy_(start[0])
        for name, tensor in tensors.items():
            tensor.copy_(start[1][name])
        getattr(Copier(pool, caches), direction)(ids, slots)
        return after, [pool.tensor[:, : caches.chunk_bytes].clone(), layouts.images(tensors)]

    for direction in ("gather", "scatter"):
        pool.tensor.random_(0, 256)
        (slots_now, pages_now), (slots_plain, pages_plain) = both(direction)
        assert torch.equal(slots_now, slots_plain)
        assert pages_now == pages_plain


@needs_cuda
def test_blocks_of_a_device_come_back():
    tensors = {f"layer {i}": torch.randn(2, 50, 16, 64, device="cuda") for i in range(4)}
    caches = KVCaches(tensors, num_blocks=50, block_dims=1, blocks_per_chunk=2)
    pool = HostPool(-(-caches.chunk_bytes // 4096) * 4096, 8, device=caches.device)
    copier = Copier(pool, caches)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    rows, slots = [[3, 9], [40, 1], [7, 49]], [2, 3, 0]
    copier.gather(rows, slots).wait()
    for tensor in tensors.values():
        tensor.zero_()
    copy = copier.scatter([[3, 9], [ABSENT, 1], [7, 49]], slots)
    copy.wait()
    assert copy.done()
    for name, tensor in tensors.items():
        assert torch.equal(tensor[:, [3, 9, 1, 7, 49]], before[name][:, [3, 9, 1, 7, 49]])
        assert not tensor[:, 40].any()
    pool.close()


@needs_cuda
def test_a_store_copies_what_the_computation_before_it_wrote():
    kv = torch.zeros(64, 1 << 20, device="cuda")
    caches = KVCaches({"kv": kv}, num_blocks=64)
    pool = HostPool(caches.chunk_bytes, 1, device=caches.device)
    work = torch.randn(4096, 4096, device="cuda")
    for _ in range(50):  # long enough that a copy without the fence would overtake it
        work = work @ work * 1e-4
    kv[5] = 7
    Copier(pool, caches).gather([[5]], [0]).wait()
    assert pool.tensor.view(torch.float32).unique().tolist() == [7]
    pool.close()
