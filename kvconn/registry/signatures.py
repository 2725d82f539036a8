"""Whether a method has the shape that its hook's specification has."""

from __future__ import annotations

import inspect
from functools import cache
from inspect import Parameter

__all__ = ["fault_of_method", "hook_names"]

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@cache
def hook_names(spec: type) -> tuple[str, ...]:
    """The hooks that ``spec`` (a class of :mod:`kvconn.hookspecs`) specifies."""
    return tuple(name for name, value in vars(spec).items() if hasattr(value, "kvconn_spec"))


def fault_of_method(plugin: type, spec: type, hook: str) -> str | None:
    """What is wrong with ``plugin``'s method ``hook`` and what to write instead, if anything."""
    method = inspect.getattr_static(plugin, hook)
    where = f"{_owner(plugin, hook).__name__}.{hook}"
    wanted = _written(inspect.signature(vars(spec)[hook]))
    if not inspect.isroutine(method) or isinstance(method, staticmethod | classmethod):
        return f"{where} is no plain method: write `def {hook}(self, ...)` that takes {wanted}"
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        return f"{where} is async and nobody awaits it: write a plain `def {hook}`"
    if inspect.isgeneratorfunction(method):
        return f"{where} is a generator and nobody iterates it: return the answer, do not yield"
    try:
        signature = inspect.signature(method)
    except ValueError:
        return f"{where} hides its signature: write it in Python, taking {wanted}"
    if _written(signature) == wanted:
        return None
    return f"{where} takes {_written(signature)}: write {wanted}"


def _owner(plugin: type, hook: str) -> type:
    """The class that defines the method, which is where its author has to look."""
    return next(cls for cls in plugin.__mro__ if hook in vars(cls))


def _written(signature: inspect.Signature) -> str:
    """``(request, keys)``: without ``self`` and annotations, but with defaults and stars."""
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind in _POSITIONAL:
        parameters = parameters[1:]
    bare = [p.replace(annotation=Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))
