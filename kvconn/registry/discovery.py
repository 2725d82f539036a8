"""What is installed, read from metadata alone: nothing here imports a plugin."""

from __future__ import annotations

import difflib
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from kvconn.errors import BrokenPlugin, ForbiddenPlugin, UnknownPlugin
from kvconn.registry.forbid import FORBID, is_forbidden

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "BACKENDS",
    "EVICTION",
    "GROUPS",
    "POLICIES",
    "Found",
    "available",
    "find",
    "installed",
]

BACKENDS = "kvconn.backends"
POLICIES = "kvconn.policies"
EVICTION = "kvconn.eviction"
GROUPS = {BACKENDS: "backend", POLICIES: "policy", EVICTION: "eviction policy"}
"""Every entry-point group, and what messages call its members."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """One entry point of one installed distribution."""

    group: str
    name: str
    value: str
    """``module:attribute``, as the distribution wrote it."""
    distribution: str
    version: str

    @property
    def kind(self) -> str:
        """What a message calls it: ``backend``, ``policy`` or ``eviction policy``."""
        return GROUPS[self.group]

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.distribution} {self.version}"


def installed(group: str) -> list[Found]:
    """Every entry point of ``group``, rivals for one name included, sorted by name."""
    return sorted(_scan(group), key=lambda found: (found.name, found.distribution))


def available(group: str) -> dict[str, Found]:
    """What ``group`` offers by name; of rivals the first, which :func:`find` would refuse."""
    return {found.name: found for found in reversed(installed(group))}


def find(group: str, name: str) -> Found:
    """The one plugin called ``name`` that may be loaded.

    Raises :class:`UnknownPlugin`, :class:`ForbiddenPlugin`, or :class:`BrokenPlugin` when two
    distributions offer different objects under that name.
    """
    offers = [found for found in installed(group) if found.name == name]
    if not offers:
        raise UnknownPlugin(_unknown(group, name))
    if is_forbidden(name):
        msg = f"{offers[0]} is forbidden: take {name!r} out of the environment variable {FORBID}"
        raise ForbiddenPlugin(msg)
    if len({found.value for found in offers}) > 1:
        rivals = " and ".join(f"{found.distribution} {found.version}" for found in offers)
        msg = f"{GROUPS[group]} {name!r} is offered by {rivals}: uninstall all but one of them"
        raise BrokenPlugin(msg)
    return offers[0]


def _unknown(group: str, name: str) -> str:
    known = sorted(available(group))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)  # redis is no typo of disk
    there = f"installed are {', '.join(known)}" if known else "none is installed"
    guess = f"did you mean {close[0]!r}? If not, " if close else ""
    package = _canonical(f"kvconn-{name}")  # by convention
    return f"no {GROUPS[group]} is called {name!r} ({there}): {guess}pip install {package}"


def _canonical(distribution: str) -> str:
    """PEP 503: the form in which two spellings of one distribution are equal."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _scan(group: str) -> Iterator[Found]:
    """Like :func:`importlib.metadata.entry_points`, but one unreadable distribution harms none."""
    names: set[str] = set()
    for distribution in metadata.distributions():
        with _unharmed(distribution):
            if distribution.entry_points.select(group=group):
                names.add(_canonical(distribution.metadata["Name"]))
    for name in names:
        first = metadata.distribution(name)  # of several copies, the one that imports
        with _unharmed(first):
            for point in first.entry_points.select(group=group):
                yield Found(group, point.name, point.value, name, first.version)


@contextmanager
def _unharmed(distribution: metadata.Distribution) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is not ours
        _log.debug("cannot read the metadata of %r: %s", distribution, error)
