"""Write ``docs/reference`` from the code: hooks, types, options, command line, errors.

Usage: ``python tools/write_reference.py [--check]``; ``--check`` writes nothing, and is status 1
when a page is stale.  Pages of backends that are not installed are left as they are.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import griffe
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from kvconn import errors
from kvconn.backend import PluginConfig
from kvconn.blockstore import StoreConfig
from kvconn.cli.app import VERBS, verb
from kvconn.config import ConnectorConfig, Per
from kvconn.config.options import holds_secret
from kvconn.hookspecs import CONTRACT_VERSION
from kvconn.registry import (
    BACKENDS,
    EVICTION,
    POLICIES,
    available,
    load_backend_class,
    load_policy_class,
)
from kvconn.testing import KIT_VERSION
from kvconn.testing.rules import RULES
from kvconn.testing.suite import BackendTests
from kvconn.testing.suite.base import rule_of

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
OWN = ("kvconn-cpu", "kvconn-disk", "kvconn-null", "kvconn")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*?\.)?([\w]+)`")
_LITERAL = re.compile(r"``([^`]+)``")


def said(docstring: str | None) -> str:
    """A docstring as Markdown."""
    text = inspect.cleandoc(docstring or "")
    text = _ROLE.sub(r"`\1`", text)
    return re.sub(r"::\n", ":\n", _LITERAL.sub(r"`\1`", text))


def _page(title: str, lead: str, parts: Iterator[str] | list[str]) -> str:
    note = "<!-- Written by tools/write_reference.py: change the code instead. -->"
    return "\n\n".join([note, f"# {title}", lead, *parts]).rstrip() + "\n"


# -- Python ---------------------------------------------------------------------------------------


def _module(name: str) -> griffe.Module:
    path = Path(str(inspect.getfile(__import__(name, fromlist=["_"])))).parents[name.count(".")]
    root = path if (path / "__init__.py").exists() else path.parent
    loaded = griffe.load(name, search_paths=[str(root.parent), str(ROOT)], resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)  # noqa: S101 - it was named as one
    return loaded


def _signature(function: griffe.Function) -> str:
    shown = [
        f"{p.name}: {p.annotation}" if p.annotation else p.name
        for p in function.parameters
        if p.name != "self"
    ]
    answer = f" -> {function.returns}" if function.returns else ""
    return f"{function.name}({', '.join(shown)}){answer}"


def _members(owner: griffe.Class) -> Iterator[str]:
    for name, member in owner.members.items():
        if name.startswith("_") or member.is_alias:
            continue
        if isinstance(member, griffe.Function):
            yield f"### `{owner.name}.{name}`\n\n```python\n{_signature(member)}\n```"
        elif isinstance(member, griffe.Attribute):
            annotation = f": {member.annotation}" if member.annotation else ""
            value = f" = {member.value}" if member.value is not None else ""
            yield f"### `{owner.name}.{name}`\n\n```python\n{name}{annotation}{value}\n```"
        else:
            continue
        if member.docstring:
            yield said(member.docstring.value)


def _classes(module: griffe.Module) -> Iterator[str]:
    for name in module.exports or []:
        member = module.members[str(name)]
        if isinstance(member, griffe.Class):
            yield f"## `{member.name}`"
            yield said(member.docstring.value if member.docstring else "")
            yield from _members(member)
        elif isinstance(member, griffe.Function):
            yield f"## `{_signature(member)}`"
            yield said(member.docstring.value if member.docstring else "")
        elif isinstance(member, griffe.Attribute):
            yield f"## `{name}`"
            yield said(member.docstring.value if member.docstring else "")


def hooks() -> str:
    """Both specifications."""
    module = _module("kvconn.hookspecs")
    parts = [f"`CONTRACT_VERSION = {CONTRACT_VERSION}`"]
    for name in ("PolicySpec", "BackendSpec"):
        spec = module.members[name]
        assert isinstance(spec, griffe.Class)  # noqa: S101 - so it is
        parts += [f"## {name}", said(spec.docstring.value if spec.docstring else "")]
        parts += [part.replace(f"`{name}.", "`") for part in _members(spec)]
    return _page("Hooks", said(module.docstring.value if module.docstring else ""), parts)


def _types(title: str, *names: str) -> str:
    modules = [_module(name) for name in names]
    lead = said(modules[0].docstring.value if modules[0].docstring else "")
    return _page(title, lead, [part for module in modules for part in _classes(module)])


def error_tree() -> str:
    """The exception classes, as their own docstring draws them."""
    return _page("Errors", said(errors.__doc__).replace("\n    ", "\n    "), [])


# -- options --------------------------------------------------------------------------------------


def _options(model: type[BaseModel]) -> str:
    rows = ["| option | type | default | means |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        default = "needed" if field.is_required() else f"`{_plain(field.default)}`"
        per = next((f" ({m})" for m in field.metadata if isinstance(m, Per)), "")
        kind = _type(field.annotation)
        means = said(field.description or _attribute(model, name)).replace("\n", " ")
        secret = "; a secret, never shown" if holds_secret(field) else ""
        rows.append(f"| `{field.alias or name}` | {kind}{per} | {default} | {means}{secret} |")
    return "\n".join(rows)


def _plain(value: object) -> str:
    if value is PydanticUndefined:
        return ""
    human = getattr(value, "human_readable", None)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20:
        return f"{value >> 20}MiB"
    return str(human()) if human else str(value)


def _type(annotation: Any) -> str:  # noqa: ANN401 - whatever a model says
    if get_origin(annotation) is Annotated:
        return _type(get_args(annotation)[0])
    if str(get_origin(annotation)).endswith("Literal"):
        return " or ".join(f"`{value}`" for value in get_args(annotation))
    name = getattr(annotation, "__name__", str(annotation))
    return {"ByteSize": "size", "Path": "path", "str": "text", "int": "number"}.get(name, name)


def _attribute(model: type[BaseModel], name: str) -> str:
    """The docstring under a field."""
    owner = _module(model.__module__).members[model.__name__]
    member = owner.members.get(name)
    return member.docstring.value if member is not None and member.docstring else ""


def configuration() -> str:
    """The connector's own options, and where the others are."""
    lead = (
        "A URL, a mapping, a `.toml` or a `.json` file; all of them resolve to the same model.  "
        "A backend's URL is its name, a path if it has one, and its options: "
        "`disk:///var/cache/kv?capacity=200GiB&sync=close`.  Sizes carry units (`8GiB`, `8GB`).  "
        "An unknown option is an error that names the valid ones."
    )
    parts = [
        "## The connector", _options(ConnectorConfig),
        "## Every block store", _options(StoreConfig),
        "## The environment",
        (
            "`KVCONN_FORBID=disk,arc` keeps plugins out by name, whatever a configuration says; "
            "the skip policy cannot be kept out."
        ),
    ]  # fmt: skip
    return _page("Configuration", lead, parts)


def backend(name: str) -> str:
    """One backend's options."""
    kind = load_backend_class(name)
    return _page(f"`{name}`", said(kind.__doc__), [_options_of(kind.Config), *_declared(kind)])


def _options_of(model: type[PluginConfig]) -> str:
    example = said(model.__doc__) if model is not PluginConfig else ""
    table = _options(model) if model.model_fields else "It takes no options."
    return f"{example}\n\n{table}".strip()


def _declared(kind: type) -> list[str]:
    keeps = (
        "A lease really keeps a block (`pinned`)."
        if getattr(kind, "pinned", True)
        else "A lease keeps a block from kvconn's own eviction; others may remove it all the same, "
        "which is a failed key and nothing worse (`pinned = False`)."
    )
    return [f"{keeps}  Contract version {getattr(kind, 'contract_version', '')}."]


def policies() -> str:
    """The policies that come with the core."""
    parts: list[str] = []
    for name, found in sorted(available(POLICIES).items()):
        if found.distribution == "kvconn":
            kind = load_policy_class(name)
            parts += [f"## `{name}`", said(kind.__doc__), _options_of(kind.Config)]
    names = [f"`{n}`" for n, f in sorted(available(EVICTION).items()) if f.distribution == "kvconn"]
    parts += ["## Eviction policies", f"`eviction=` names one of {', '.join(names)}."]
    return _page("Policies", "Every policy is asked; none can grant what another refused.", parts)


# -- the command line -----------------------------------------------------------------------------


def command_line() -> str:
    """Every verb and option, as ``--help`` has them."""
    lead = (
        "Every verb takes `--json` where it prints a report, and then prints one document on "
        "standard output and nothing else there.  Exit status 0: done and good; 1: done, and "
        "something is wrong; 2: the call or the configuration is wrong."
    )
    return _page("Command line", lead, [_verb(name) for name in VERBS])


def _verb(name: str) -> str:
    command = verb(name)
    rows = ["| option | default | means |", "|---|---|---|"]
    for parameter in command.params:
        if "--help" not in parameter.opts:
            argument = parameter.param_type_name == "argument"
            names = parameter.name.upper() if argument else ", ".join(parameter.opts)
            default = _default(parameter)
            rows.append(f"| `{names}` | {default} | {getattr(parameter, 'help', '') or ''} |")
    return f"## `kvconn {name}`\n\n{VERBS[name]}\n\n" + "\n".join(rows)


def _default(parameter: Any) -> str:  # noqa: ANN401 - typer's
    if parameter.required:
        return "needed"
    value = parameter.default
    if value is None or value is False or value == ():
        return ""
    return f"`{' '.join(map(str, value)) if isinstance(value, list | tuple) else value}`"


# -- the kit --------------------------------------------------------------------------------------


def kit() -> str:
    """Every test by its rule."""
    tests: dict[str, list[str]] = {}
    for name in sorted(n for n in dir(BackendTests) if n.startswith("test_")):
        tests.setdefault(rule_of(name), []).append(name)
    parts = []
    for rule in RULES:
        if rule in tests:
            listed = "\n".join(f"- `{name}`" for name in tests[rule])
            parts.append(f"## {rule}: {RULES[rule]}\n\n{listed}")
    lead = (
        f"Kit version {KIT_VERSION}; what a test needs beyond the contract it says when it skips."
    )
    return _page("The conformance kit's tests", lead, parts)


PAGES: dict[str, Callable[[], str]] = {
    "hooks.md": hooks,
    "types.md": lambda: _types("Types", "kvconn.types", "kvconn.identity", "kvconn.geometry"),
    "backend.md": lambda: _types("Backend", "kvconn.backend"),
    "block-store.md": lambda: _types("Block store", "kvconn.blockstore.store"),
    "policy.md": lambda: _types("Policy", "kvconn.policy", "kvconn.eviction.base"),
    "engine.md": lambda: _types(
        "For engines",
        "kvconn.connector",
        "kvconn.scheduler",
        "kvconn.worker",
        "kvconn.memory.caches",
    ),
    "testing.md": lambda: _types("Testing", "kvconn.testing.suite.base", "kvconn.testing.faults"),
    "kit.md": kit,
    "configuration.md": configuration,
    "policies.md": policies,
    "command-line.md": command_line,
    "errors.md": error_tree,
}


def pages() -> dict[str, str]:
    """Every page that can be written with what is installed, by its path under ``reference``."""
    written = {name: make() for name, make in PAGES.items()}
    for name, found in available(BACKENDS).items():
        if found.distribution in OWN:
            written[f"backends/{name}.md"] = backend(name)
    return written


def main(*arguments: str) -> int:
    """Write the pages, or say which are stale."""
    stale = []
    for name, text in pages().items():
        path = REFERENCE / name
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in arguments:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    for name in stale:
        print(f"{'stale' if '--check' in arguments else 'wrote'} {name}")  # noqa: T201
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
