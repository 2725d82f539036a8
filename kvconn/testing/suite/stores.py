"""The five methods of a block store, called as kvconn calls them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kvconn.blockstore import BlockStore
from kvconn.identity import Namespace, Shard, content_key, object_id
from kvconn.memory import HostPool
from kvconn.testing.rig import PATIENCE_S
from kvconn.testing.suite.base import Kit, needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

import pytest

__all__ = ["StoreRules"]

THREADS, TURNS = 6, 12


def content(seed: int, size: int) -> bytes:
    """Bytes that say whose they are, at every place."""
    return bytes((seed * 31 + i * (seed + 7)) % 251 for i in range(size))


class StoreRules(Kit):
    """What ``exists``, ``get``, ``put``, ``delete`` and ``scan`` promise."""

    @pytest.fixture
    def open_store(self) -> Iterator[Callable[..., BlockStore]]:
        """Opens stores as an engine's processes do, each an instance of its own."""
        opened: list[BlockStore] = []

        def open_it(namespace: Namespace | None = None) -> BlockStore:
            backend: Any = self.make_backend(1 << 20)
            store: BlockStore = backend.Store(backend.config)
            store.open(namespace or self.namespace)
            if store.capabilities.registered_memory:
                self._pool = HostPool(8192, 32)
                store.register(self._pool.memory)
            opened.append(store)
            return store

        yield open_it
        for store in opened:
            store.close()

    def names(self, count: int, of: object = "object") -> list[bytes]:
        """Names as kvconn makes them."""
        space = self.namespace.digest
        return [object_id(space, 0, Shard(), content_key(of, i)) for i in range(count)]

    def buffers(self, *contents: bytes) -> list[memoryview]:
        """One aligned buffer per content, as kvconn owns them."""
        size = max(map(len, contents), default=1)
        pool = self._pool = HostPool(-(-size // 4096) * 4096, max(1, len(contents)))
        views = [pool.buffer(i)[: len(held)] for i, held in enumerate(contents)]
        for view, held in zip(views, contents, strict=True):
            view[:] = held
        return views

    @needs("block_store")
    def test_F2_what_was_put_is_got_back_byte_for_byte(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(5)
        contents = [content(i, 4096) for i in range(5)]
        assert store.put(names, self.buffers(*contents)) == [True] * 5
        assert store.exists(names) == [True] * 5
        into = self.buffers(*[bytes(4096)] * 5)
        assert store.get(names, into) == [True] * 5
        assert [bytes(buffer) for buffer in into] == contents

    @needs("block_store")
    def test_F2_what_is_not_there_is_said_not_to_be_and_nothing_is_raised(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(3)
        store.put(names[1:2], self.buffers(content(1, 4096)))
        assert store.exists(names) == [False, True, False]
        assert store.get(names, self.buffers(*[bytes(4096)] * 3)) == [False, True, False]
        assert store.delete(names) == [False, True, False]

    @needs("block_store")
    def test_F2_a_deleted_object_is_gone_at_once_and_can_be_put_again(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(2)
        store.put(names, self.buffers(content(1, 4096), content(2, 4096)))
        assert store.delete(names[:1]) == [True]
        assert store.exists(names) == [False, True]
        assert store.get(names[:1], self.buffers(bytes(4096))) == [False]
        assert store.put(names[:1], self.buffers(content(3, 4096))) == [True]
        into = self.buffers(bytes(4096))
        assert store.get(names[:1], into) == [True]
        assert bytes(into[0]) == content(3, 4096)

    @needs("block_store")
    def test_F2_an_object_that_is_put_again_is_replaced(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(1)
        for seed in (1, 2):
            assert store.put(names, self.buffers(content(seed, 4096))) == [True]
        into = self.buffers(bytes(4096))
        store.get(names, into)
        assert bytes(into[0]) == content(2, 4096)
        assert store.delete(names) == [True]
        assert store.exists(names) == [False]

    @needs("block_store")
    def test_F2_nothing_is_an_empty_batch(self, open_store: Callable[..., BlockStore]) -> None:
        store = open_store()
        assert [store.exists([]), store.get([], []), store.put([], []), store.delete([])] == [
            []
        ] * 4

    @needs("block_store")
    def test_F2_arguments_are_left_as_they_are(self, open_store: Callable[..., BlockStore]) -> None:
        store, names = open_store(), self.names(3)
        given, contents = list(names), [content(i, 4096) for i in range(3)]
        buffers = self.buffers(*contents)
        held = list(buffers)
        store.put(given, buffers)
        store.exists(given)
        assert [bytes(buffer) for buffer in buffers] == contents
        store.get(given, buffers)
        store.delete(given)
        assert (given, buffers) == (names, held)

    @needs("block_store")
    def test_L8_a_store_keeps_no_buffer_after_the_call(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(2)
        buffers = self.buffers(content(1, 4096), content(2, 4096))
        store.put(names, buffers)
        for buffer in buffers:  # they are used for something else
            buffer[:] = bytes(4096)
        for _ in range(2):
            into = self.buffers(bytes(4096), bytes(4096))
            assert store.get(names, into) == [True, True]
            assert [bytes(buffer) for buffer in into] == [content(1, 4096), content(2, 4096)]
            for buffer in into:
                buffer[:] = b"\xff" * 4096

    @needs("block_store")
    def test_F5_an_object_of_another_size_is_not_got(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(1)
        store.put(names, self.buffers(content(1, 4096)))
        assert store.get(names, self.buffers(bytes(8192))) == [False]

    @needs("block_store")
    def test_K1_objects_whose_names_differ_in_one_bit_are_kept_apart(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, (name,) = open_store(), self.names(1)
        near = [name[:at] + bytes([name[at] ^ 1]) + name[at + 1 :] for at in range(len(name))]
        names = [name, *(other for other in near if other[:16] == name[:16])]
        contents = [content(i, 4096) for i in range(len(names))]
        store.put(names, self.buffers(*contents))
        into = self.buffers(*[bytes(4096)] * len(names))
        assert store.get(names, into) == [True] * len(names)
        assert [bytes(buffer) for buffer in into] == contents

    @needs("block_store", "persistent")
    def test_K2_another_instance_finds_what_was_put(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        names = self.names(4)
        contents = [content(i, 4096) for i in range(4)]
        first = open_store()
        first.put(names, self.buffers(*contents))
        second = open_store()
        assert second.exists(names) == [True] * 4
        into = self.buffers(*[bytes(4096)] * 4)
        assert second.get(names, into) == [True] * 4
        assert [bytes(buffer) for buffer in into] == contents

    @needs("block_store", "persistent")
    def test_F7_a_scan_names_what_is_there_once_each_and_nothing_else(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, names = open_store(), self.names(6)
        store.put(names, self.buffers(*[content(i, 4096) for i in range(6)]))
        store.delete(names[:2])
        assert sorted(open_store().scan()) == sorted(names[2:])

    @needs("block_store", "persistent")
    def test_K2_a_scan_names_no_object_of_another_namespace(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        names = self.names(2)
        open_store().put(names, self.buffers(content(1, 4096), content(2, 4096)))
        other = Namespace("another model", revision=self.namespace.revision)
        assert list(open_store(other).scan()) == []

    @needs("block_store")
    def test_F8_threads_that_use_one_store_get_whole_objects_and_no_error(
        self, open_store: Callable[..., BlockStore]
    ) -> None:
        store, common = open_store(), self.names(3, of="common")
        valid = {content(seed, 4096) for seed in range(THREADS)}
        wrong: list[object] = []

        def live(number: int) -> None:
            pool = HostPool(4096, 4)
            own = self.names(2, of=number)
            try:
                for _ in range(TURNS):
                    for i in range(4):
                        pool.buffer(i)[:] = content(number, 4096)
                    slots = [pool.buffer(i) for i in range(3)]
                    store.put(own, slots[:2])
                    store.put(common, slots)
                    there = store.get(common, slots)
                    torn = [
                        bytes(slot) not in valid
                        for slot, whole in zip(slots, there, strict=True)
                        if whole
                    ]
                    wrong.extend("torn" for bad in torn if bad)
                    if store.get(own, slots[:2]) != [True, True]:
                        wrong.append("its own objects were lost")
                    store.exists(common)
                    if number == 0:
                        store.delete(common)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is shown
                wrong.append(error)

        threads = [threading.Thread(target=live, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * PATIENCE_S)
        assert not wrong, wrong[0]
        assert not any(thread.is_alive() for thread in threads), "a call never returns"

    @needs("block_store")
    def test_F9_a_store_may_be_closed_twice(self, open_store: Callable[..., BlockStore]) -> None:
        store = open_store()
        store.put(self.names(1), self.buffers(content(1, 4096)))
        store.close()
        store.close()
