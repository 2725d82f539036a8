"""K1, K2, K4 and F5: never another block's bytes, whatever happened to them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvconn.identity import Key, chain_keys
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import Request

if TYPE_CHECKING:
    from kvconn.identity import Namespace

__all__ = ["IdentityRules"]

PLAIN, READER = Request("plain"), Request("reader")

OTHER_SPACES: dict[str, Callable[[Namespace], Namespace]] = {
    "model": lambda space: replace(space, model="another"),
    "revision": lambda space: replace(space, revision=f"{space.revision}+1"),
    "dtype": lambda space: replace(space, dtype="float16"),
    "block size": lambda space: replace(space, block_tokens=space.block_tokens + 16),
    "weights epoch": lambda space: replace(space, weights_epoch=space.weights_epoch + 1),
}

CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "the first bit": lambda stored: bytes([stored[0] ^ 1]) + stored[1:],
    "a bit in the middle": lambda stored: (
        stored[: len(stored) // 4]
        + bytes([stored[len(stored) // 4] ^ 0x80])
        + stored[len(stored) // 4 + 1 :]
    ),
    "the last bit": lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]),
    "half is lost": lambda stored: stored[: len(stored) // 2],
    "shifted": lambda stored: b"\0" + stored[:-1],
    "zeros": lambda stored: bytes(len(stored)),
    "empty": lambda _stored: b"",
}


def near(key: Key) -> list[Key]:
    """Keys that differ from ``key`` in one place: at its start, in the middle, at its end."""
    return [
        key[:at] + bytes([key[at] ^ bit]) + key[at + 1 :]
        for at, bit in ((0, 1), (len(key) // 2, 0x10), (len(key) - 1, 0x80), (len(key) - 1, 1))
    ]


class IdentityRules(Kit):
    """What a key, a namespace and a shard name, and nothing else."""

    @needs("keeps")
    def test_K1_a_key_that_differs_in_one_bit_is_another_key(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:1])
        assert [rig.hits([other]) for other in near(keys[0])] == [0, 0, 0, 0]
        assert rig.store(READER, near(keys[0])).accepted == tuple(near(keys[0]))
        for key in [keys[0], *near(keys[0])]:
            request = Request(key.hex())
            assert rig.lookup(request, [key]) == 1
            assert rig.load(request, [key]) == [True]

    @needs("keeps")
    def test_K1_keys_of_any_bytes_are_kept_apart(self, open_rig: Open) -> None:
        rig = open_rig()
        odd = [
            bytes(16),
            b"\xff" * 16,
            b"../../../../etc/p",
            b"a\0b/c\\d\n%s'\"; --"[:16],
            b" " * 16,
        ]
        odd = [key[:16].ljust(16, b"\0") for key in odd]
        rig.store(PLAIN, odd)
        for key in odd:
            request = Request(key.hex())
            assert rig.lookup(request, [key]) == 1
            assert rig.load(request, [key]) == [True]

    @needs("keeps", "persistent")
    @pytest.mark.parametrize("field", OTHER_SPACES)
    def test_K2_chunks_of_another_namespace_are_a_miss(
        self, open_rig: Open, keys: list[Key], field: str
    ) -> None:
        rig = open_rig(chunks=16)
        rig.store(PLAIN, keys)
        rig.close()
        assert open_rig(chunks=16, namespace=OTHER_SPACES[field](self.namespace)).hits(keys) == 0
        again = open_rig(chunks=16)
        assert again.lookup(READER, keys) == 8
        assert again.load(READER, keys) == [True] * 8

    @needs("keeps", "persistent")
    def test_K2_two_namespaces_in_one_store_keep_their_own_bytes_under_equal_keys(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=32)
        rig.store(PLAIN, keys)
        other = open_rig(chunks=32, namespace=OTHER_SPACES["model"](self.namespace))
        mirrored = [key[::-1] for key in keys]
        plan = other.scheduler.prepare_store(PLAIN, list(keys))
        assert plan.accepted == tuple(keys)
        other.run(plan.transfer, other.compute(mirrored))  # other bytes, equal keys
        rig.lookup(READER, keys)
        assert rig.load(READER, keys) == [True] * 8
        assert other.lookup(READER, keys) == 8
        transfer = other.begin_load(READER, keys)
        assert other.collect(transfer) == [True] * 8
        assert other.holds(mirrored, other.rows(8))

    @needs("keeps", "persistent")
    @pytest.mark.parametrize(("ranks", "others"), [(1, 2), (2, 1)])
    def test_K2_chunks_of_another_number_of_shards_are_a_miss(
        self, open_rig: Open, keys: list[Key], ranks: int, others: int
    ) -> None:
        rig = open_rig(chunks=32, ranks=ranks)
        rig.store(PLAIN, keys)
        rig.close()
        assert open_rig(chunks=32, ranks=others).hits(keys) == 0
        assert open_rig(chunks=32, ranks=ranks).hits(keys) == 8

    @needs("keeps")
    def test_K2_each_rank_gets_its_own_shard_back(self, open_rig: Open, keys: list[Key]) -> None:
        rig = open_rig(ranks=3)
        rig.store(PLAIN, keys)
        assert rig.lookup(READER, keys) == 8
        assert rig.load(READER, keys) == [True] * 8

    @needs("keeps")
    def test_K2_workers_that_hold_the_same_shard_all_get_it_back(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(ranks=2, replicas=2)
        rig.store(PLAIN, keys)
        assert rig.lookup(READER, keys) == 8
        assert rig.load(READER, keys) == [True] * 8

    @needs("keeps", "persistent")
    def test_K2_what_workers_hold_in_common_is_stored_as_one_shard(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16, replicas=2)
        rig.store(PLAIN, keys)
        rig.close()
        other = open_rig(chunks=16)  # an engine of one worker
        assert other.lookup(READER, keys) == 8
        assert other.load(READER, keys) == [True] * 8

    @needs("keeps", "persistent")
    def test_K2_two_engines_with_equal_namespaces_share(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16)
        rig.store(PLAIN, keys)
        other = open_rig(chunks=16)
        assert other.lookup(READER, keys) == 8
        assert other.load(READER, keys) == [True] * 8

    @needs("keeps")
    def test_K3_content_under_two_salts_has_no_key_in_common(self, open_rig: Open) -> None:
        rig = open_rig()
        ours, theirs = (chain_keys(range(4), salt=salt) for salt in ("us", "them"))
        rig.store(PLAIN, ours)
        assert rig.hits(theirs) == 0
        assert rig.hits(ours) == 4

    # -- K4 and F5: what changed is a miss ---------------------------------------------------

    @needs("keeps", "block_store")
    @pytest.mark.parametrize("change", CHANGES)
    def test_F5_an_object_that_changed_is_a_miss_and_is_removed(
        self, open_rig: Open, keys: list[Key], change: str
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys)
        stored = dict(self.stored_objects())
        assert len(stored) == 8, "stored_objects() does not find what was stored"
        name = sorted(stored)[3]
        self.replace_object(name, CHANGES[change](stored[name]))
        assert rig.lookup(READER, keys) == 8
        verdicts = rig.load(READER, keys)
        assert verdicts.count(False) == 1, "bytes that had changed were loaded as good"
        bad = keys[verdicts.index(False)]
        assert rig.hits([bad]) == 0
        rig.sweep()
        assert name not in self.stored_objects()

    @needs("keeps", "block_store")
    def test_K4_objects_exchanged_under_their_names_are_misses(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:2])
        (one, first), (other, second) = dict(self.stored_objects()).items()
        self.replace_object(one, second)
        self.replace_object(other, first)
        rig.lookup(READER, keys)
        assert rig.load(READER, keys[:2]) == [False, False]
        assert rig.is_wiped()

    @needs("keeps", "block_store")
    def test_K4_random_bytes_in_the_place_of_an_object_are_a_miss(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig()
        rig.store(PLAIN, keys[:1])
        ((name, content),) = dict(self.stored_objects()).items()
        self.replace_object(name, os.urandom(len(content)))
        rig.lookup(READER, keys)
        assert rig.load(READER, keys[:1]) == [False]
        assert rig.is_wiped()
