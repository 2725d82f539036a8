"""K2 and K4 over what an earlier engine left: found whole, or not at all."""

from __future__ import annotations

import pytest

from kvconn.blockstore import Capabilities
from kvconn.identity import Shard, parse_object_id
from kvconn.types import Request

WRITER, READER = Request("writer"), Request("reader")


def leave(rig, keys) -> None:
    rig.store(WRITER, keys)
    rig.close()


def test_K2_a_hit_needs_every_shard_also_when_a_store_is_found_again(open_shelf, shelf, keys):
    leave(open_shelf(ranks=2), keys)
    lost = next(n for n in shelf.objects if parse_object_id(n)[2:] == (Shard(1, 2), keys[3]))
    del shelf.objects[lost]
    again = open_shelf(ranks=2)
    assert again.hits(keys) == 3
    assert again.scheduler.lookup(READER, keys) == 3
    assert again.load(READER, keys[:3]) == [True] * 3


def test_K2_what_workers_hold_in_common_is_put_once(open_shelf, shelf, keys):
    leave(open_shelf(), keys)
    alone = shelf.calls["put"]
    shelf.objects.clear()
    leave(open_shelf(replicas=3), keys)
    assert shelf.calls["put"] == 2 * alone
    assert len(shelf.objects) == len(keys)


def test_L6_workers_whose_stores_are_their_own_each_hold_a_copy(open_shelf, shelf):
    assert open_shelf(chunks=8, replicas=2).capacity == 8
    shelf.capabilities = Capabilities(scheduler_visible=False)
    assert open_shelf(chunks=8, replicas=2).capacity == 4


def test_K2_a_shard_that_is_listed_twice_does_not_stand_for_another(open_shelf, shelf, keys):
    leave(open_shelf(ranks=2), keys[:1])
    first = next(n for n in shelf.objects if parse_object_id(n)[2].index == 0)
    shelf.objects = {first: shelf.objects[first]}
    shelf.lies["scan"] = lambda honest: honest * 2
    assert open_shelf(ranks=2).hits(keys) == 0


@pytest.mark.parametrize("foreign", [b"", b"short", b"\xff" * 60, b"\1" * 38])
def test_K2_foreign_names_in_a_store_are_left_out(open_shelf, shelf, keys, foreign):
    leave(open_shelf(), keys)
    shelf.objects[foreign] = b"not ours"
    assert open_shelf().hits(keys) == 8


def test_K4_objects_exchanged_under_their_names_are_misses(open_shelf, shelf, keys):
    rig = open_shelf()
    rig.store(WRITER, keys[:2])
    one, other = shelf.objects
    shelf.objects[one], shelf.objects[other] = shelf.objects[other], shelf.objects[one]
    rig.scheduler.lookup(READER, keys)
    assert rig.load(READER, keys[:2]) == [False, False]
    assert rig.is_wiped()
