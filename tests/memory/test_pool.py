import threading

import pytest

from kvconn.errors import ConfigurationError, MisuseError
from kvconn.memory import HostPool


def _resident_bytes():
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - not a file
        return int(statm.read().split()[1]) * 4096


def test_slots_are_aligned_writable_and_apart():
    with_slots = HostPool(8192, 5)
    for slot in range(5):
        buffer = with_slots.buffer(slot)
        assert len(buffer) == 8192
        assert buffer.contiguous
        assert with_slots.address(slot) % 4096 == 0
        buffer[:] = bytes([slot + 1]) * 8192
    assert with_slots.tensor.shape == (5, 8192)
    assert with_slots.tensor.data_ptr() == with_slots.address(0)
    assert [with_slots.tensor[s].unique().tolist() for s in range(5)] == [[s + 1] for s in range(5)]


@pytest.mark.parametrize("huge", [2 << 20, 64 << 20])  # the kernel aligns to the first by itself
def test_the_slots_of_a_large_pool_start_on_a_huge_page(huge, monkeypatch):
    monkeypatch.setattr("kvconn.memory.pool.HUGE_PAGE", huge)
    pool = HostPool(4096, 20_000)
    assert pool.address(0) % huge == 0
    assert pool.tensor.data_ptr() == pool.address(0)
    pool.buffer(19_999)[-1] = 7
    assert pool.tensor[-1, -1] == 7


def test_opening_a_large_pool_touches_nothing():
    before = _resident_bytes()
    pool = HostPool(1 << 20, 8 << 10)
    assert _resident_bytes() - before < 64 << 20
    pool.buffer(5000)[0] = 1
    pool.close()


@pytest.mark.parametrize(("slot_bytes", "slots"), [(0, 1), (4095, 1), (6000, 1), (4096, -1)])
def test_sizes_that_cannot_be_aligned_are_refused(slot_bytes, slots):
    with pytest.raises(ValueError, match="multiple of 4096"):
        HostPool(slot_bytes, slots)


def test_a_pool_may_have_no_slots():
    pool = HostPool(4096, 0)
    assert (pool.acquire(), pool.acquire(0), pool.free) == (None, [], 0)
    assert pool.tensor.shape == (0, 4096)
    with pytest.raises(MisuseError):
        pool.buffer(0)
    pool.close()


def test_a_batch_is_acquired_whole_or_not_at_all():
    pool = HostPool(4096, 4)
    assert pool.acquire(3) == [0, 1, 2]
    assert pool.acquire(2) is None
    assert pool.free == 1
    with pytest.raises(MisuseError):
        pool.acquire(-1)


def test_released_slots_come_back_in_the_order_they_had():
    pool = HostPool(4096, 6)
    ids = pool.acquire(4)
    pool.release(ids)
    assert pool.acquire(4) == ids


def test_a_quarantined_slot_is_neither_free_nor_in_use_until_released():
    pool = HostPool(4096, 2)
    ids = pool.acquire(2)
    pool.quarantine(ids[:1])
    assert (pool.free, pool.quarantined, pool.acquire()) == (0, 1, None)
    with pytest.raises(MisuseError, match="quarantined"):
        pool.quarantine(ids[:1])
    pool.release(ids)
    assert (pool.free, pool.quarantined) == (2, 0)


@pytest.mark.parametrize("ids", [[0, 0], [0, 2], [3], [0, 4], [-1], [0, 1, 3]], ids=str)
@pytest.mark.parametrize("verb", ["release", "quarantine"])
def test_giving_back_what_is_not_held_is_an_error_and_changes_nothing(ids, verb):
    pool = HostPool(4096, 4)
    pool.acquire(2)
    with pytest.raises(MisuseError):
        getattr(pool, verb)(ids)
    assert (pool.free, pool.quarantined) == (2, 0)
    pool.release([0, 1])


def test_releasing_twice_is_an_error():
    pool = HostPool(4096, 4)
    ids = pool.acquire(2)
    pool.release(ids)
    with pytest.raises(MisuseError, match="free"):
        pool.release(ids)
    assert pool.free == 4


def test_a_quarantined_slot_cannot_be_released_twice_either():
    pool = HostPool(4096, 1)
    ids = pool.acquire()
    pool.quarantine(ids)
    pool.release(ids)
    with pytest.raises(MisuseError):
        pool.release(ids)
    assert pool.quarantined == 0


def test_threads_never_hold_the_same_slot():
    pool = HostPool(4096, 16)
    holders, clashes = [None] * 16, []

    def work(me):
        for _ in range(400):
            ids = pool.acquire(3)
            if ids is None:
                continue
            for slot in ids:
                if holders[slot] is not None:
                    clashes.append(slot)
                holders[slot] = me
            for slot in ids:
                holders[slot] = None
            pool.release(ids)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    assert pool.free == 16


def test_closing_twice_and_with_views_out_is_safe():
    pool = HostPool(4096, 4)
    view, tensor = pool.buffer(1), pool.tensor
    view[:3] = b"abc"
    pool.close()
    pool.close()
    assert bytes(view[:3]) == b"abc"
    assert tensor[1, :3].tolist() == [97, 98, 99]
    for use in (lambda: pool.buffer(1), lambda: pool.address(1), pool.acquire):
        with pytest.raises(MisuseError, match="closed"):
            use()


def test_a_slot_that_does_not_exist_has_no_buffer():
    pool = HostPool(4096, 4)
    for slot in (-1, 4):
        with pytest.raises(MisuseError, match="no such"):
            pool.buffer(slot)


def test_every_change_of_hands_is_made_under_the_lock():
    pool = HostPool(4096, 4)

    class Lock:
        held = 0

        def __enter__(self):
            Lock.held += 1

        def __exit__(self, *raised):
            pass

    pool._lock = Lock()
    pool.quarantine(pool.acquire())
    pool.release([0])
    assert Lock.held == 3


def test_a_pinned_pool_is_unregistered_once(monkeypatch):
    addresses = []
    monkeypatch.setattr("kvconn.memory.pool.pin", lambda *_: True)
    monkeypatch.setattr("kvconn.memory.pool.unpin", addresses.append)
    pool = HostPool(4096, 4, device="cuda")
    at = pool.address(0)
    pool.close()
    pool.close()
    assert addresses == [at]


@pytest.mark.parametrize("slots", [2**40, 2**60])
def test_a_pool_larger_than_any_memory_is_a_configuration_error(slots):
    with pytest.raises(ConfigurationError, match="lower the capacity"):
        HostPool(4096, slots)
