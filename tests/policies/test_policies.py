"""What each policy that ships with kvconn refuses, and what it leaves alone."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kvconn.backend import PluginConfig
from kvconn.policies.min_load_tokens import MinLoadTokensConfig, MinLoadTokensPolicy
from kvconn.policies.prefix_skip import PrefixSkipPolicy
from kvconn.policies.store_threshold import StoreThresholdConfig, StoreThresholdPolicy
from kvconn.registry import load_policy_class
from kvconn.types import Hits, Permissions, Request

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def request(number: int) -> Request:
    return Request(f"request {number}")


@pytest.mark.parametrize("name", ["prefix_skip", "store_threshold", "min_load_tokens"])
def test_it_comes_through_the_same_door_as_everybody_elses(name):
    policy = load_policy_class(name)
    assert policy(policy.Config()).contract_version == 1


# -- prefix_skip -------------------------------------------------------------------------------


@pytest.mark.parametrize("skip_reading", [False, True])
@pytest.mark.parametrize("skip_writing", [False, True])
def test_each_skip_flag_closes_its_own_direction_and_no_other(skip_reading, skip_writing):
    asked = Request(
        "r", skip_reading_prefix_cache=skip_reading, skip_writing_prefix_cache=skip_writing
    )
    answer = PrefixSkipPolicy(PluginConfig()).permit(asked)
    assert answer == Permissions(read=not skip_reading, write=not skip_writing)


# -- store_threshold ---------------------------------------------------------------------------


def threshold(**options: int) -> StoreThresholdPolicy:
    return StoreThresholdPolicy(StoreThresholdConfig(**options))


def test_a_chunk_is_admitted_with_its_second_request_by_default():
    policy = threshold()
    assert policy.admit(request(1), [A, B]) == []
    assert policy.admit(request(2), [A]) == [A]
    assert policy.admit(request(3), [A, B, C]) == [A, B]


def test_one_request_that_offers_again_in_every_step_counts_once():
    policy = threshold()
    assert [policy.admit(request(1), [A]) for _ in range(5)] == [[]] * 5


def test_two_requests_that_alternate_count_twice():
    policy = threshold(offers=3)
    answers = [policy.admit(request(number), [A]) for number in (1, 2, 1, 2, 1)]
    assert answers == [[]] * 5
    assert policy.admit(request(3), [A]) == [A]


def test_an_admitted_chunk_stays_admitted():
    policy = threshold()
    policy.admit(request(1), [A])
    assert [policy.admit(request(2), [A]) for _ in range(3)] == [[A]] * 3
    assert policy.admit(request(1), [A]) == [A]


def test_the_order_of_the_offer_is_kept():
    policy = threshold()
    policy.admit(request(1), [C, A, B])
    assert policy.admit(request(2), [B, C, A]) == [B, C, A]


def test_a_threshold_of_one_admits_everything():
    assert threshold(offers=1).admit(request(1), [A, B]) == [A, B]


def test_the_longest_unoffered_chunk_is_forgotten():
    policy = threshold(tracked=2)
    policy.admit(request(1), [A, B])
    policy.admit(request(1), [A])
    policy.admit(request(1), [C])
    assert policy.admit(request(2), [A]) == [A]
    assert policy.admit(request(2), [B]) == []


def test_an_admitted_chunk_that_is_still_offered_is_not_forgotten():
    policy = threshold(tracked=2)
    for number in (1, 2):
        policy.admit(request(number), [A])
    policy.admit(request(1), [B])
    policy.admit(request(1), [A])
    policy.admit(request(1), [C])
    assert policy.admit(request(3), [A]) == [A]


def test_memory_stays_within_what_may_be_tracked():
    policy = threshold(offers=3, tracked=10)
    for number in range(100):
        policy.admit(request(number), [number.to_bytes(16), A])
    assert len(policy._offered_by) == 10
    assert all(len(requests) < 3 for requests in policy._offered_by.values())


@pytest.mark.parametrize("options", [{"offers": 0}, {"tracked": 0}, {"offers": 17}, {"offer": 2}])
def test_a_threshold_that_makes_no_sense_is_refused(options):
    with pytest.raises(ValidationError):
        StoreThresholdConfig(**options)


# -- min_load_tokens ---------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "used"), [(255, 0), (256, 4), (257, 4)])
def test_a_hit_below_the_threshold_is_a_miss_and_any_other_is_used_whole(tokens, used):
    policy = MinLoadTokensPolicy(MinLoadTokensConfig(tokens=256))
    assert policy.accept(request(1), Hits(chunks=4, tokens=tokens)) == used


def test_a_threshold_of_nothing_uses_every_hit():
    policy = MinLoadTokensPolicy(MinLoadTokensConfig(tokens=0))
    assert policy.accept(request(1), Hits(chunks=1, tokens=0)) == 1


def test_a_negative_threshold_is_refused():
    with pytest.raises(ValidationError):
        MinLoadTokensConfig(tokens=-1)
