"""R1 to R6: what a request forbids, no backend hears of."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from kvconn.backend import PluginConfig
from kvconn.hookspecs import hookimpl
from kvconn.identity import Namespace, content_key
from kvconn.policies.prefix_skip import PrefixSkipPolicy
from kvconn.policy import Policy
from kvconn.registry import PluginManager
from kvconn.scheduler import SchedulerConnector
from kvconn.testing.counting import CountingBackend
from kvconn.types import Hits, Permissions, Request

PLAIN = Request("plain")
SKIPPING = Request("skipping", skip_reading_prefix_cache=True)
NOT_WRITING = Request("not writing", skip_writing_prefix_cache=True)
EVERYTHING = 10**30


class Grants(Policy):
    """Says yes to everything, to the limits of what its hooks can carry."""

    def permit(self, request):
        return Permissions(read=True, write=True)

    def admit(self, request, keys):
        return [*keys, *keys, content_key("never offered")]

    def accept(self, request, hits):
        return EVERYTHING


class GrantsWithAnything(Grants):
    """Truthy things where booleans belong."""

    class Yes:
        read = write = "yes"

    def permit(self, request):
        return self.Yes()


class GrantsFirst(Policy):
    """Wants to be asked first, and to wrap the others."""

    @hookimpl(tryfirst=True)
    def permit(self, request):
        return Permissions()

    @hookimpl(wrapper=True, tryfirst=True)
    def accept(self, request, hits):
        return EVERYTHING

    @hookimpl(trylast=True)
    def admit(self, request, keys):
        return keys


class Unfreezes(Policy):
    """Clears the flags of the request that it is shown."""

    def permit(self, request):
        object.__setattr__(request, "skip_reading_prefix_cache", False)
        object.__setattr__(request, "skip_writing_prefix_cache", False)
        return Permissions()


class Refuses(Policy):
    def permit(self, request):
        return Permissions(read=False, write=False)

    def admit(self, request, keys):
        return []

    def accept(self, request, hits):
        return 0


class Raises(Policy):
    """Raises from the hooks that it is told to."""

    def __init__(self, *hooks, error=RuntimeError):
        super().__init__(PluginConfig())
        self.hooks, self.error = hooks, error

    def _maybe(self, hook):
        if hook in self.hooks:
            raise self.error(hook)

    def permit(self, request):
        self._maybe("permit")

    def admit(self, request, keys):
        self._maybe("admit")

    def accept(self, request, hits):
        self._maybe("accept")


class Notes(Policy):
    """Narrows nothing, and keeps what it was asked."""

    def __init__(self):
        super().__init__(PluginConfig())
        self.asked = []

    def permit(self, request):
        self.asked.append("permit")

    def admit(self, request, keys):
        self.asked.append(("admit", tuple(keys)))

    def accept(self, request, hits):
        self.asked.append(("accept", hits.chunks))


HOSTILE = [Grants, GrantsWithAnything, GrantsFirst, Unfreezes]


def hostile(kind: type[Policy]) -> tuple[str, Policy]:
    return kind.__name__, kind(PluginConfig())


def use_every_read_path(rig, request, keys) -> None:
    """Whatever an engine might do to get at blocks: early, late, again, without asking."""
    rig.scheduler.request_started(request)
    for _ in range(3):
        assert rig.scheduler.lookup(request, keys) == 0
        assert rig.scheduler.lookup(request, keys[:1], computed_tokens=4) == 0
        assert rig.scheduler.prepare_load(request, keys) is None
        rig.step()
    rig.scheduler.release(request)


def reads(calls) -> int:
    return calls.lookups + calls.loads


# -- R1 ----------------------------------------------------------------------------------------


# -- R2 ----------------------------------------------------------------------------------------


# -- R3 ----------------------------------------------------------------------------------------


# -- R4 ----------------------------------------------------------------------------------------


# -- R5 ----------------------------------------------------------------------------------------


# -- R6 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("others_first", [False, True])
def test_R6_no_policy_grants_reading_to_a_skipping_request(open_memory, keys, kind, others_first):
    policies = [("prefix_skip", PrefixSkipPolicy(PluginConfig())), hostile(kind)]
    if others_first:
        policies.reverse()
    rig = open_memory(policies=policies, wrap=CountingBackend)
    rig.store(PLAIN, keys)
    request = Request("r", skip_reading_prefix_cache=True)
    assert rig.scheduler.lookup(request, keys) == 0
    assert rig.scheduler.prepare_load(request, keys) is None
    assert reads(rig.backend.plain) + reads(rig.backend.skipping) == 0


@pytest.mark.parametrize("kind", HOSTILE)
def test_R6_no_policy_grants_writing_to_a_request_that_must_not(open_memory, keys, kind):
    rig = open_memory(policies=[hostile(kind)])
    assert rig.store(Request("r", skip_writing_prefix_cache=True), keys).accepted == ()
    assert rig.hits(keys) == 0


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("refusal_first", [False, True])
def test_R6_what_one_policy_refuses_no_other_grants(open_memory, keys, kind, refusal_first):
    both = [hostile(kind), hostile(Refuses)]
    rig = open_memory(policies=both[::-1] if refusal_first else both)
    plain = open_memory()
    assert rig.store(PLAIN, keys).accepted == ()
    assert rig.scheduler.lookup(PLAIN, keys) == 0
    assert plain.store(PLAIN, keys).accepted == tuple(keys)


@pytest.mark.parametrize("kind", [Grants, GrantsFirst, Unfreezes])
def test_R6_a_policy_cannot_add_keys_or_hits(open_rig, keys, kind):
    rig = open_rig(policies=[hostile(kind)])
    assert rig.store(PLAIN, keys[:4]).accepted == tuple(keys[:4])
    assert rig.scheduler.lookup(PLAIN, keys) == 4
    assert rig.hits([content_key("never offered")]) == 0


def test_R6_answers_are_intersected_in_any_order(open_memory, keys):
    class Odd(Policy):
        def admit(self, request, keys):
            return keys[1::2]

        def accept(self, request, hits):
            return 3

    class Low(Policy):
        def admit(self, request, keys):
            return keys[:4]

        def accept(self, request, hits):
            return 2

    for order in ([Odd, Low], [Low, Odd]):
        rig = open_memory(policies=[(kind.__name__, kind(PluginConfig())) for kind in order])
        assert rig.store(PLAIN, keys).accepted == (keys[1], keys[3])
        rig.store(PLAIN, [keys[0]])


def test_R6_every_policy_is_asked_about_everything_whatever_others_answered(open_memory, keys):
    notes = Notes()
    policies = [hostile(Refuses), ("raises", Raises("permit", "admit", "accept")), ("notes", notes)]
    gate = open_memory(policies=policies).scheduler._gate
    gate.permit(PLAIN)
    assert gate.admit(PLAIN, keys) == []
    assert gate.accept(PLAIN, Hits(chunks=3, tokens=24)) == 0
    assert notes.asked == ["permit", ("admit", tuple(keys)), ("accept", 3)]


@pytest.mark.parametrize("error", [RuntimeError, KeyError, AssertionError, StopIteration])
def test_R6_a_policy_that_raises_from_permit_denies_both_and_no_life_cycle_call(
    open_memory, keys, error
):
    rig = open_memory(policies=[("raises", Raises("permit", error=error))], wrap=CountingBackend)
    rig.scheduler.request_started(PLAIN)
    assert rig.scheduler.lookup(PLAIN, keys) == 0
    assert rig.scheduler.prepare_load(PLAIN, keys) is None
    assert rig.store(PLAIN, keys).accepted == ()
    rig.scheduler.touch(PLAIN, keys)
    rig.scheduler.request_finished(PLAIN)
    calls = asdict(rig.backend.plain)
    assert calls == dict.fromkeys(calls, 0) | {"started": 1, "touches": 1, "finished": 1}


def test_R6_a_policy_that_raises_from_admit_denies_the_store_only(open_rig, keys):
    rig = open_rig(policies=[("raises", Raises("admit"))])
    assert rig.store(PLAIN, keys).accepted == ()
    assert rig.scheduler.lookup(PLAIN, keys) == 0
    assert rig.scheduler.collect_stats()["policy_errors"] == 1


def test_R6_a_policy_that_raises_from_accept_denies_the_hit_only_and_leaves_no_lease(
    open_rig, keys
):
    rig = open_rig(policies=[("raises", Raises("accept"))])
    assert rig.store(PLAIN, keys).accepted == tuple(keys)
    assert rig.scheduler.lookup(PLAIN, keys) == 0
    assert "leases" not in rig.held()


def test_R6_a_policy_that_raises_is_logged_once(open_memory, keys, log_lines):
    rig = open_memory(policies=[("raises", Raises("permit"))])
    for number in range(5):
        rig.scheduler.lookup(Request(str(number)), keys)
    assert len(log_lines()) == 1
    assert "policy raises.permit" in log_lines()[0]
    assert rig.scheduler.collect_stats()["policy_errors"] == 5


@pytest.mark.parametrize("answer", ["read", 3, object(), (True, True)])
def test_R6_nonsense_from_permit_denies(open_memory, keys, answer):
    class Nonsense(Policy):
        def permit(self, request):
            return answer

    rig = open_memory(policies=[("nonsense", Nonsense(PluginConfig()))])
    assert rig.store(PLAIN, keys).accepted == ()


def test_R6_only_true_allows(open_memory, keys):
    rig = open_memory(policies=[hostile(GrantsWithAnything)])
    assert rig.store(PLAIN, keys).accepted == ()
    assert rig.scheduler.prepare_load(PLAIN, keys) is None
    assert rig.scheduler.stats.refused_loads == rig.scheduler.stats.refused_stores == 1


@pytest.mark.parametrize("answer", [-5, float("nan"), float("inf"), "many", object()])
def test_R6_nonsense_from_accept_is_at_most_what_was_found(open_rig, keys, answer):
    class Nonsense(Policy):
        def accept(self, request, hits):
            return answer

    rig = open_rig(policies=[("nonsense", Nonsense(PluginConfig()))])
    rig.store(PLAIN, keys)
    assert rig.scheduler.lookup(PLAIN, keys) == 0


@pytest.mark.parametrize("answer", [3, object(), [[]], b"key"])
def test_R6_nonsense_from_admit_stores_nothing(open_memory, keys, answer):
    class Nonsense(Policy):
        def admit(self, request, keys):
            return answer

    rig = open_memory(policies=[("nonsense", Nonsense(PluginConfig()))])
    assert rig.store(PLAIN, keys).accepted == ()


def test_R6_a_policy_that_spoils_the_list_it_is_shown_changes_no_offer(open_memory, keys):
    class Spoils(Policy):
        def admit(self, request, keys):
            keys[:] = [content_key("another")]

    rig = open_memory(policies=[("spoils", Spoils(PluginConfig()))])
    assert rig.store(PLAIN, list(keys)).accepted == tuple(keys)


def test_R6_a_hook_that_a_policy_sets_on_itself_is_asked(open_memory, keys):
    class Late(Policy):
        def __init__(self):
            super().__init__(PluginConfig())
            self.permit = lambda request: Permissions(read=False, write=False)

    rig = open_memory(policies=[("late", Late())])
    assert rig.store(PLAIN, keys).accepted == ()


def test_R6_a_connector_that_is_given_no_policy_still_skips(open_memory, keys):
    rig = open_memory()
    bare = SchedulerConnector(rig.make(), [], rig.geometry, Namespace("model"))
    plan = bare.prepare_store(PLAIN, keys)
    bare.complete_transfer(plan.transfer, [True] * len(keys))
    assert bare.lookup(SKIPPING, keys) == 0
    assert bare.prepare_load(SKIPPING, keys) is None
    assert bare.prepare_store(NOT_WRITING, [content_key("other")]).accepted == ()
    assert bare.lookup(PLAIN, keys) == len(keys)


def test_R6_a_hostile_backend_that_wants_to_be_first_is_not_asked_either(open_memory, keys):
    class Eager(CountingBackend):
        @hookimpl(tryfirst=True)
        def lookup(self, request, keys):
            return super().lookup(request, keys)

        @hookimpl(tryfirst=True)
        def permit(self, request):
            return Permissions()

    rig = open_memory(wrap=Eager)
    manager = PluginManager()
    manager.register(rig.backend, "late")
    rig.store(PLAIN, keys)
    use_every_read_path(rig, SKIPPING, keys)
    assert reads(rig.backend.skipping) == 0
