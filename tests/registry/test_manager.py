"""pluggy registers and checks; it cannot be used to change what another plugin answers."""

from __future__ import annotations

import pytest
from healthy import MemoryBackend, MemoryConfig

from kvconn.backend import PluginConfig
from kvconn.errors import WrongSignature
from kvconn.hookspecs import hookimpl
from kvconn.policies.prefix_skip import PrefixSkipPolicy
from kvconn.policy import Policy
from kvconn.registry import PluginManager, load_backend_class
from kvconn.types import Permissions, Request


@pytest.fixture
def manager() -> PluginManager:
    return PluginManager()


def plugins_of(manager: PluginManager, hook: str) -> list[str]:
    return [impl.plugin_name for impl in getattr(manager.hook, hook).get_hookimpls()]


def test_a_method_named_like_a_hook_is_one_without_a_marker(manager):
    manager.register(PrefixSkipPolicy(PluginConfig()), "prefix_skip")
    manager.check_pending()
    assert plugins_of(manager, "permit") == ["prefix_skip"]


def test_tryfirst_and_wrapper_marks_mean_nothing(manager):
    class First(Policy):
        @hookimpl(tryfirst=True)
        def permit(self, request):
            return Permissions()

        @hookimpl(wrapper=True)
        def accept(self, request, hits):
            yield

    manager.register(First(PluginConfig()), "first")
    (permit,) = manager.hook.permit.get_hookimpls()
    (accept,) = manager.hook.accept.get_hookimpls()
    assert not permit.tryfirst
    assert not accept.wrapper


def test_a_mark_cannot_make_another_method_a_hook(manager):
    class Sneaky(Policy):
        @hookimpl(specname="permit", optionalhook=True)
        def grant(self, request):
            return Permissions()

    manager.register(Sneaky(PluginConfig()), "sneaky")
    assert plugins_of(manager, "permit") == []
    with pytest.raises(WrongSignature, match=r"unknown hook 'grant'"):
        manager.check_pending()


def test_a_backend_with_a_method_called_permit_is_no_policy(manager, install, good_backend):
    source = f"{good_backend}\n    def permit(self, request): return 1\n"
    install("kvconn-mem", source, backends={"mem": "MemBackend"})
    backend = load_backend_class("mem")
    manager.register(backend(backend.Config()), "mem")
    assert plugins_of(manager, "lookup") == ["mem"]
    assert plugins_of(manager, "permit") == []


def test_another_parameter_name_is_an_error_of_ours(manager):
    class Wrong(Policy):
        def permit(self, req):
            return None

    with pytest.raises(WrongSignature, match=r"permit"):
        manager.register(Wrong(PluginConfig()), "wrong")
    assert not manager.has_plugin("wrong")


def test_no_property_is_read_while_registering(manager):
    class Closed(Policy):
        @property
        def accept(self):
            raise AssertionError

    assert manager.register(Closed(PluginConfig()), "closed") == "closed"


def test_one_instance_is_registered_once(manager):
    policy = PrefixSkipPolicy(PluginConfig())
    manager.register(policy, "prefix_skip")
    with pytest.raises(ValueError, match=r"already registered"):
        manager.register(policy, "again")


def test_the_bound_method_is_what_answers(manager):
    manager.register(PrefixSkipPolicy(PluginConfig()), "prefix_skip")
    policy = manager.get_plugin("prefix_skip")
    request = Request("r", skip_reading_prefix_cache=True)
    assert policy.permit(request) == Permissions(read=False, write=True)


class Touching(MemoryBackend):
    def touch(self, request, keys):
        pass


def test_who_implements_a_hook_that_will_go_is_warned_when_registered():
    manager = PluginManager()
    said = DeprecationWarning("touch goes in contract 2: write nothing in its place")
    manager.hook.touch.spec.warn_on_impl = said
    with pytest.warns(DeprecationWarning, match="touch goes in contract 2"):
        manager.register(Touching(MemoryConfig(capacity=8192)), "touching")


def test_who_leaves_a_hook_that_will_go_alone_is_not_warned():
    manager = PluginManager()
    manager.hook.holds.spec.warn_on_impl = DeprecationWarning("holds goes")
    manager.register(Touching(MemoryConfig(capacity=8192)), "touching")


def test_who_takes_an_argument_that_will_go_is_warned():
    manager = PluginManager()
    said = DeprecationWarning("touch's keys go")
    manager.hook.touch.spec.warn_on_impl_args = {"keys": said}
    with pytest.warns(DeprecationWarning, match="touch's keys go"):
        manager.register(Touching(MemoryConfig(capacity=8192)), "touching")
