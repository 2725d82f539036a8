import pytest
import torch

from kvconn.memory import Copier, HostPool, KVCaches, cpu


@pytest.fixture(autouse=True)
def _threads_for_small_chunks_too(monkeypatch):
    """Small tensors are enough to see what several threads do to one copy."""
    monkeypatch.setattr("kvconn.memory.cpu.THREADS_FROM_BYTES", 0)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request):
    return request.param


@pytest.fixture(autouse=True)
def _every_row_is_a_share(monkeypatch):
    """Small copies are split among threads too."""
    monkeypatch.setattr(cpu, "SHARE_BYTES", 1)


@pytest.fixture
def open_copier():
    """A pool, caches and a copier that fit each other, over random bytes."""

    def make(tensors, *, num_blocks, slots=8, threads=1, padding=0, **how):
        caches = KVCaches(tensors, num_blocks=num_blocks, **how)
        pool = HostPool(-(-caches.chunk_bytes // 4096) * 4096 + padding, slots)
        torch.manual_seed(0)
        pool.tensor.random_(0, 256)
        return pool, caches, Copier(pool, caches, threads=threads)

    return make
