"""K1, K2: never another block's bytes."""

from __future__ import annotations

import itertools
import os
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvconn.identity import (
    DIGEST_BYTES,
    FORMAT_VERSION,
    Namespace,
    Shard,
    chain_keys,
    content_key,
    object_id,
    parse_object_id,
)
from kvconn.types import Request

SPACE = Namespace(
    "model", "main", "bfloat16", "NHD", 16, 2, groups=((0, 8, 128),), extra=(("rope", 1),)
)

# -- K1: digests -------------------------------------------------------------------------------

SAY_ALL = """
from kvconn.identity import *
names = {"tenant", "lora", "image", "audio", "revision", "a", "b", "c"}
salt = {name: len(name) for name in names}  # in the order of the set, which the seed decides
keys = chain_keys([(1, 2), (3, 4)], salt=salt)
space = Namespace("m", groups=((0, "NHD"),), extra=(("salt", salt),)).digest
print(list(names))
print([key.hex() for key in [*keys, content_key(salt), content_key(None, True, 1.5, b"x")]])
print(space.hex(), [object_id(space, 0, Shard(1, 2), key).hex() for key in keys])
"""


def said_by_another_process(seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(  # noqa: S603 - our own interpreter, our own words
        [sys.executable, "-c", SAY_ALL],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_K1_two_processes_with_different_hash_seeds_agree():
    order, *digests = said_by_another_process("1")
    other_order, *other_digests = said_by_another_process("2")
    assert order != other_order  # else the seeds show nothing
    assert digests == other_digests


def test_K1_a_digest_is_the_same_in_every_release_of_one_format():
    """Whoever changes this changes ``FORMAT_VERSION``: what is stored is not found any more."""
    key = content_key("salt", (1, 20, -3), {"b": 1.5, "a": None}, 255, b"x")
    assert FORMAT_VERSION == 1
    assert key.hex() == "bde2b7c76d3244ed6391b0f2d596105f"
    assert SPACE.digest.hex() == "f8cad2a0b9d3284a84df173b650bc460"


def typed(value: object) -> object:
    """What makes two values the same content, spelt out."""
    if isinstance(value, Mapping):
        return "mapping", tuple((name, typed(value[name])) for name in sorted(value))
    if isinstance(value, list | tuple):
        return "sequence", tuple(map(typed, value))
    if isinstance(value, float):
        return "float", struct.pack("<d", value)
    return type(value), value


DIFFERENT = [
    (),
    (None,),
    ("",),
    (b"",),
    ((),),
    ({},),
    (0,),
    (False,),
    (0.0,),
    (-0.0,),
    ("0",),
    (1,),
    (True,),
    (1.0,),
    ("1",),
    (b"1",),
    ("n",),
    ("T",),
    (-1,),
    (255,),
    (b"\xff",),
    ("\xff",),
    (10**30,),
    (10**5000,),
    (10**5000 + 1,),
    ("a", "bc"),
    ("ab", "c"),
    ("abc",),
    ("a", "b", "c"),
    ("a", "sb"),  # tags inside the content
    ("as", "b"),
    (b"a", b"bb"),
    (b"ab", b"b"),
    (1, "i"),
    ("a", None),
    ("an",),
    (("a", "bc"),),
    (("a",), "bc"),
    ("a", ("bc",)),
    ((("a", "bc"),),),
    (("a", "bc"), ()),
    ({"a": "bc"},),
    ({"bc": "a"},),
    ({"a": ("bc",)},),
    ({"a": "bc"}, {}),
    ((1, 2), (3,)),
    ((1,), (2, 3)),
    (1, 2, 3),
    (12, 3),
    ("s\x01",),
    ("\ud800",),
    ("\ud800\udc00",),
    ("\U00010000",),
]


def test_K1_different_content_has_different_keys():
    alike: defaultdict[bytes, list[object]] = defaultdict(list)
    for parts in DIFFERENT:
        alike[content_key(*parts)].append(parts)
    assert [found for found in alike.values() if len(found) > 1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((1, 2),), ([1, 2],)),
        ((b"x",), (bytearray(b"x"),)),
        ((b"x",), (memoryview(b"x"),)),
        (({"a": 1, "b": 2},), ({"b": 2, "a": 1},)),
    ],
)
def test_K1_the_same_content_has_the_same_key_however_it_is_held(one, other):
    assert content_key(*one) == content_key(*other)


# Letters that are tags of the encoding, so that content can look like structure.
FEW = (
    st.none()
    | st.booleans()
    | st.integers(-2, 12)
    | st.sampled_from([0.0, -0.0, 1.0, 2.5])
    | st.text("as1nil", max_size=4)
    | st.text("as1nil", max_size=4).map(str.encode)
)
NESTED = st.recursive(
    FEW,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text("ab", max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.lists(NESTED, max_size=3), st.lists(NESTED, max_size=3))
def test_K1_keys_are_equal_exactly_when_contents_are(one, other):
    same = typed(one) == typed(other)
    assert (content_key(*one) == content_key(*other)) is same


@given(ANYTHING, ANYTHING)
def test_K1_anything_that_can_be_named_has_a_key_of_its_own(one, other):
    keys = content_key(one), content_key(other)
    assert (keys[0] == keys[1]) is (typed(one) == typed(other))
    assert {type(key) for key in keys} == {bytes}


@given(st.lists(st.text("as", max_size=4), min_size=1, max_size=4), st.data())
def test_K1_no_boundary_between_parts_can_move_unseen(parts, data):
    text = "".join(parts)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=3).map(sorted))
    edges = [0, *cuts, len(text)]
    others = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert (content_key(*parts) == content_key(*others)) is (parts == others)


def test_K1_digests_have_at_least_128_bits_and_all_of_them_vary():
    digests = [content_key(number) for number in range(200)]
    digests += [Namespace(str(number)).digest for number in range(200)]
    assert {len(digest) for digest in digests} == {DIGEST_BYTES}
    assert DIGEST_BYTES * 8 >= 128
    for some in (digests[:200], digests[200:]):
        values = [int.from_bytes(digest, "big") for digest in some]
        for bit in range(DIGEST_BYTES * 8):
            assert {value >> bit & 1 for value in values} == {0, 1}


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset(),
        object(),
        1j,
        range(3),
        iter("ab"),
        {1: "a"},
        {"a": 1, 2: "b"},
        {b"a": 1},
        [{"a": {3}}],
        Namespace,
    ],
    ids=lambda value: type(value).__name__,
)
def test_K1_what_has_no_encoding_is_refused_in_one_sentence(value):
    for name in (lambda: content_key(value), lambda: Namespace("m", extra=(("x", value),)).digest):
        with pytest.raises(TypeError, match=r"^cannot name content of type \w+: pass [^\n]+$"):
            name()


CONTENTS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(CONTENTS, st.data())
def test_K1_a_chained_key_names_its_content_and_everything_before_it(contents, data):
    at = data.draw(st.integers(0, len(contents) - 1))
    changed = [*contents[:at], contents[at] + 10, *contents[at + 1 :]]
    keys, others = chain_keys(contents), chain_keys(changed)
    assert keys[:at] == others[:at]
    assert not set(keys[at:]) & set(others)
    assert len(set(keys)) == len(contents)


@given(CONTENTS, st.integers(0, 6))
def test_K1_a_chain_may_be_made_in_parts(contents, at):
    keys = chain_keys(contents)
    head = chain_keys(contents[:at])
    assert head + chain_keys(contents[at:], parent=head[-1] if head else b"") == keys


def test_K1_the_length_of_a_chunk_is_part_of_its_key():
    assert not set(chain_keys([(1, 2), (3, 4)])) & set(chain_keys([(1,), (2, 3), (4,)]))


@pytest.mark.parametrize(
    ("salt", "other"),
    list(itertools.combinations([None, "", "a", 1, True, ("a", None), (None, "a")], 2)),
)
def test_K1_chains_of_different_salts_share_no_key(salt, other):
    assert not set(chain_keys([1, 2], salt=salt)) & set(chain_keys([1, 2], salt=other))


# -- K2: namespaces and objects ----------------------------------------------------------------

OTHER_SPACES: dict[str, object] = {
    "model": "model2",
    "revision": "dev",
    "dtype": "float16",
    "layout": "HND",
    "block_tokens": 32,
    "blocks_per_chunk": 1,
    "groups": ((0, 8, 64),),
    "weights_epoch": 1,
    "format_version": FORMAT_VERSION + 1,
    "extra": (("rope", 2),),
}


def test_K2_every_field_of_a_namespace_is_tested_below():
    assert OTHER_SPACES.keys() == {field.name for field in fields(Namespace)}


@pytest.mark.parametrize(("field", "value"), OTHER_SPACES.items(), ids=list(OTHER_SPACES))
def test_K2_every_field_changes_the_digest(field, value):
    assert replace(SPACE, **{field: value}).digest != SPACE.digest
    assert replace(SPACE).digest == SPACE.digest


def test_K2_a_value_in_another_field_is_another_namespace():
    spaces = [
        Namespace("x", "y"),
        Namespace("xy"),
        Namespace("x", dtype="y"),
        Namespace("x", layout="y"),
        Namespace("x", block_tokens=2),
        Namespace("x", blocks_per_chunk=2),
        Namespace("x", weights_epoch=2),
        Namespace("x", format_version=2),
        Namespace("x", groups=(("y",),)),
        Namespace("x", groups=(("y",), ("y",))),
        Namespace("x", groups=(("y", "y"),)),
        Namespace("x", extra=(("y", 0),)),
        Namespace("x", extra=(("y", "0"),)),
    ]
    assert len({space.digest for space in spaces}) == len(spaces)


def test_K2_a_namespace_is_never_the_key_of_the_same_content():
    values = [getattr(SPACE, field.name) for field in fields(Namespace)]
    assert content_key(*values) != SPACE.digest


def test_K2_a_namespace_describes_every_field_by_its_name():
    described = SPACE.describe()
    assert Namespace(**described) == SPACE  # type: ignore[arg-type]
    assert described.keys() == OTHER_SPACES.keys()


def test_K2_namespace_group_shard_index_count_and_key_all_change_the_name():
    names = [
        object_id(space, group, shard, key)
        for space in (SPACE.digest, Namespace("other").digest)
        for group in (0, 1, 256)
        for shard in (Shard(0, 1), Shard(0, 2), Shard(1, 2), Shard(1, 3), Shard(2, 258))
        for key in (content_key("a"), content_key("b"), content_key("a") + b"\0")
    ]
    assert len(set(names)) == len(names)


SHARDS = st.integers(1, 0xFFFF).flatmap(
    lambda count: st.builds(Shard, st.integers(0, count - 1), st.just(count))
)
DIGESTS = st.binary(min_size=DIGEST_BYTES, max_size=DIGEST_BYTES)


@given(DIGESTS, st.integers(0, 0xFFFF), SHARDS, st.binary(min_size=DIGEST_BYTES, max_size=40))
def test_K2_a_name_can_be_taken_apart_again(space, group, shard, key):
    assert parse_object_id(object_id(space, group, shard, key)) == (space, group, shard, key)


@given(st.binary(max_size=60))
def test_K2_bytes_that_are_no_name_are_refused_and_nothing_else_is(name):
    try:
        parts = parse_object_id(name)
    except ValueError:
        return
    assert object_id(*parts) == name


@pytest.mark.parametrize("length", [0, 21, 22, 22 + DIGEST_BYTES - 1])
def test_K2_a_name_without_a_whole_key_is_refused(length):
    with pytest.raises(ValueError, match="too short for an object's name"):
        parse_object_id(object_id(SPACE.digest, 0, Shard(), content_key("a"))[:length])


@pytest.mark.parametrize(("index", "count"), [(0, 0), (1, 1), (-1, 2), (2, 2)])
def test_K2_a_shard_that_does_not_exist_is_refused(index, count):
    with pytest.raises(ValueError, match="does not exist: count from 0"):
        Shard(index, count)


def test_K2_a_name_of_a_shard_that_does_not_exist_is_no_name():
    whole = object_id(SPACE.digest, 0, Shard(0, 2), content_key("a"))
    wrong = whole[:DIGEST_BYTES] + struct.pack("<HHH", 0, 2, 2) + whole[DIGEST_BYTES + 6 :]
    with pytest.raises(ValueError, match="shard 2 of 2"):
        parse_object_id(wrong)


# -- K2: over a store that outlives its engine -------------------------------------------------


def leave_behind(open_shelf, keys, **how) -> None:
    """An engine stores ``keys``, and ends."""
    rig = open_shelf(**how)
    assert rig.store(Request("first"), keys).accepted == tuple(keys)
    rig.close()


def test_K2_shards_of_two_divisions_never_make_up_a_chunk(open_shelf, shelf, keys):
    leave_behind(open_shelf, keys, ranks=1)
    leave_behind(open_shelf, keys, ranks=2)
    for name in list(shelf.objects):
        if parse_object_id(name)[2] == Shard(1, 2):
            del shelf.objects[name]
    rig = open_shelf(ranks=2)
    assert rig.hits(keys) == 0
    assert rig.scheduler.collect_stats()["entries"] == 0


def shards_of(shelf) -> set[Shard]:
    return {parse_object_id(name)[2] for name in shelf.objects}


def test_K2_replicated_kv_is_shard_0_of_1_and_stored_once(open_shelf, shelf, keys):
    replicas = [open_shelf(), open_shelf()]
    for number, rig in enumerate(replicas):
        rig.store(Request(f"replica {number}"), keys)
    assert shards_of(shelf) == {Shard(0, 1)}
    assert len(shelf.objects) == len(keys)


def test_K2_a_sharded_chunk_is_one_object_for_each_rank(open_shelf, shelf, keys):
    leave_behind(open_shelf, keys, ranks=2)
    assert shards_of(shelf) == {Shard(0, 2), Shard(1, 2)}
    assert len(shelf.objects) == 2 * len(keys)


def test_K2_names_carry_the_namespace_and_the_key(open_shelf, shelf, keys):
    leave_behind(open_shelf, keys, namespace=SPACE)
    named = [parse_object_id(name) for name in shelf.objects]
    assert named == [(SPACE.digest, 0, Shard(0, 1), key) for key in keys]


@pytest.mark.parametrize("which", ["key", "shard", "namespace"])
def test_K4_a_store_that_hands_out_another_object_is_a_miss(open_shelf, shelf, keys, which):
    leave_behind(open_shelf, keys, ranks=2)
    leave_behind(open_shelf, keys, ranks=2, namespace=SPACE)
    rig = open_shelf(ranks=2)
    space = rig.namespace.digest
    wrong = object_id(space, 0, Shard(0, 2), keys[2])
    shelf.objects[wrong] = shelf.objects[
        {
            "key": object_id(space, 0, Shard(0, 2), keys[3]),
            "shard": object_id(space, 0, Shard(1, 2), keys[2]),
            "namespace": object_id(SPACE.digest, 0, Shard(0, 2), keys[2]),
        }[which]
    ]
    assert rig.load(Request("again"), keys) == [True, True, False, *[True] * 5]
    assert wrong not in shelf.objects
    assert rig.hits(keys) == 2
