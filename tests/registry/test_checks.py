"""Every way in which a plugin can be broken has an error that says what to change."""

from __future__ import annotations

import pytest

from kvconn.backend import Backend
from kvconn.errors import BrokenPlugin, PluginImportFailed, WrongContract, WrongSignature
from kvconn.hookspecs import BackendSpec, PolicySpec
from kvconn.policy import Policy
from kvconn.registry import load_backend_class, load_eviction_class, load_policy_class
from kvconn.registry.signatures import fault_of_method, hook_names

POLICY = """
from kvconn.policy import Policy
from kvconn.types import Permissions

class Narrow(Policy):
    contract_version = 1
"""


@pytest.fixture
def load_changed(install, good_backend):
    """Load the good backend with one piece of its source replaced."""

    def load(old: str, new: str) -> type[Backend]:
        assert old in good_backend
        install("kvconn-mem", good_backend.replace(old, new), backends={"mem": "MemBackend"})
        return load_backend_class("mem")

    return load


def test_a_good_backend_loads(install, good_backend):
    install("kvconn-mem", good_backend, backends={"mem": "MemBackend"})
    assert issubclass(load_backend_class("mem"), Backend)


def test_a_broken_plugin_that_is_not_named_harms_nobody(install, good_backend):
    install("kvconn-bad", "import no_such_module", backends={"bad": "Bad"})
    install("kvconn-mem", good_backend, backends={"mem": "MemBackend"})
    assert load_backend_class("mem").__name__ == "MemBackend"


# -- importing ---------------------------------------------------------------------------------


def test_a_missing_dependency_is_named(install):
    install("kvconn-redis", "import no_such_client", version="3.1", backends={"redis": "R"})
    with pytest.raises(PluginImportFailed, match=r"install what .* 'no_such_client'$") as caught:
        load_backend_class("redis")
    assert "backend 'redis' of kvconn-redis 3.1" in str(caught.value)


def test_a_missing_class_is_an_import_that_failed(install):
    install("kvconn-mem", backends={"mem": "Absent"})
    with pytest.raises(PluginImportFailed, match=r"Absent.*force-reinstall kvconn-mem$"):
        load_backend_class("mem")


@pytest.mark.parametrize(
    "source", ["raise SystemExit(3)", "raise RuntimeError('two\\nlines')", "this is no python"]
)
def test_whatever_an_import_raises_is_one_line_of_ours(install, source):
    install("kvconn-mem", source, backends={"mem": "Mem"})
    with pytest.raises(PluginImportFailed, match=r"does not import") as caught:
        load_backend_class("mem")
    assert "\n" not in str(caught.value)


# -- what it is --------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["Mem = 1", "class Mem: ...", "def Mem(config): ..."])
def test_what_is_no_backend_is_told_what_to_subclass(install, source):
    install("kvconn-mem", source, backends={"mem": "Mem"})
    with pytest.raises(BrokenPlugin, match=r"not a subclass of kvconn.backend.Backend"):
        load_backend_class("mem")


def test_a_backend_among_the_policies_is_no_policy(install, good_backend):
    install("kvconn-mem", good_backend, policies={"mem": "MemBackend"})
    with pytest.raises(BrokenPlugin, match=r"not a subclass of kvconn.policy.Policy"):
        load_policy_class("mem")


def test_what_is_no_eviction_policy_is_refused(install):
    install("kvconn-mem", "class Mem: ...", eviction={"mem": "Mem"})
    with pytest.raises(BrokenPlugin, match=r"not a subclass of .*EvictionPolicy"):
        load_eviction_class("mem")


def test_options_of_another_kind_are_refused(load_changed):
    with pytest.raises(BrokenPlugin, match=r"MemBackend.Config a subclass of .*PluginConfig"):
        load_changed("Config = MemConfig", "Config = dict")


# -- contract version --------------------------------------------------------------------------


def test_another_contract_version_is_named_with_ours(load_changed):
    with pytest.raises(
        WrongContract, match=r"declares contract_version 7 and .* speaks 1: install"
    ):
        load_changed("ClassVar[int] = 1", "ClassVar[int] = 7")


@pytest.mark.parametrize("version", ["'1'", "True", "1.0"])
def test_a_contract_version_is_an_integer(load_changed, version):
    with pytest.raises(WrongContract, match=r"declares contract_version"):
        load_changed("ClassVar[int] = 1", f"ClassVar[int] = {version}")


def test_an_undeclared_contract_version_is_asked_for(load_changed):
    with pytest.raises(WrongContract, match=r"add `contract_version = 1` to MemBackend"):
        load_changed("contract_version: ClassVar[int] = 1", "")


def test_a_base_of_the_plugins_own_may_declare_it(install):
    install("kvconn-p", f"{POLICY}\nclass Sub(Narrow): ...", policies={"narrow": "Sub"})
    assert load_policy_class("narrow").__name__ == "Sub"


def test_a_base_inside_kvconn_declares_it_for_nobody_else(install):
    source = "from kvconn.policies.prefix_skip import PrefixSkipPolicy\n"
    install("kvconn-p", f"{source}class Mine(PrefixSkipPolicy): ...", policies={"mine": "Mine"})
    with pytest.raises(WrongContract, match=r"add `contract_version = 1` to Mine"):
        load_policy_class("mine")


# -- signatures --------------------------------------------------------------------------------

LOOKUP = "def lookup(self, request, keys): ..."


@pytest.mark.parametrize(
    ("method", "takes"),
    [
        ("def lookup(self, request, key): ...", r"\(request, key\)"),
        ("def lookup(self, keys, request): ...", r"\(keys, request\)"),
        ("def lookup(self, request): ...", r"\(request\)"),
        ("def lookup(self, request, keys, more): ...", r"\(request, keys, more\)"),
        ("def lookup(self, request, keys=()): ...", r"\(request, keys=\(\)\)"),
        ("def lookup(self, request, *, keys): ...", r"\(request, \*, keys\)"),
        ("def lookup(self, *args): ...", r"\(\*args\)"),
        ("def lookup(self, request, keys, /): ...", r"\(request, keys, /\)"),
        ("def lookup(self, request, keys, **more): ...", r"\(request, keys, \*\*more\)"),
        ("def lookup(self, request: object, keys: list[bytes], x: int): ...", "x"),
    ],
)
def test_other_parameters_are_shown_beside_what_to_write(load_changed, method, takes):
    with pytest.raises(WrongSignature, match=rf"MemBackend.lookup takes .*{takes}.*: write") as e:
        load_changed(LOOKUP, method)
    assert str(e.value).endswith("write (request, keys)")


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        ("async def lookup(self, request, keys): ...", "is async and nobody awaits it"),
        ("async def lookup(self, request, keys): yield", "is async and nobody awaits it"),
        ("def lookup(self, request, keys): yield", "is a generator and nobody iterates it"),
        ("@staticmethod\n    def lookup(request, keys): ...", "is no plain method"),
        ("@classmethod\n    def lookup(cls, request, keys): ...", "is no plain method"),
        ("@property\n    def lookup(self): ...", "is no plain method"),
        ("lookup = None", "is no plain method"),
        ("lookup = max", "hides its signature"),
    ],
)
def test_what_cannot_be_called_as_a_method_is_refused(load_changed, method, fault):
    with pytest.raises(WrongSignature, match=f"MemBackend.lookup {fault}"):
        load_changed(LOOKUP, method)


def test_missing_hooks_are_listed(load_changed):
    with pytest.raises(WrongSignature, match=r"write lookup in MemBackend"):
        load_changed(LOOKUP, "")


def test_a_hook_with_a_default_body_is_checked_when_it_is_overridden(load_changed):
    with pytest.raises(WrongSignature, match=r"takes \(now\): write \(\)"):
        load_changed(LOOKUP, f"{LOOKUP}\n    def step(self, now): ...")


def test_annotations_do_not_matter(load_changed):
    annotated = "def lookup(self, request: object, keys: list) -> bytes: return b''"
    assert load_changed(LOOKUP, annotated)


def test_the_fault_is_shown_where_it_was_written(install):
    source = f"{POLICY}\n    def accept(self, hits): ...\nclass Sub(Narrow): ..."
    install("kvconn-p", source, policies={"narrow": "Sub"})
    with pytest.raises(WrongSignature, match=r"Narrow.accept takes \(hits\)"):
        load_policy_class("narrow")


def test_a_policy_that_overrides_nothing_keeps_every_default(install):
    install("kvconn-p", POLICY, policies={"narrow": "Narrow"})
    assert load_policy_class("narrow").accept is Policy.accept


@pytest.mark.parametrize(("base", "spec"), [(Backend, BackendSpec), (Policy, PolicySpec)])
def test_the_base_classes_agree_with_the_specifications(base, spec):
    assert [fault_of_method(base, spec, hook) for hook in hook_names(spec)] == [None] * len(
        hook_names(spec)
    )


def test_every_specified_hook_is_known():
    assert hook_names(PolicySpec) == ("permit", "admit", "accept")
    assert hook_names(BackendSpec)[0] == "open_scheduler"
    assert set(hook_names(BackendSpec)) == {
        name for name, value in vars(Backend).items() if callable(value) and name[0].islower()
    }
