"""The one place where policies are asked, and where their answers are intersected (R6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvconn.backend import PluginConfig
from kvconn.guard import Guard
from kvconn.identity import Key
from kvconn.policies.prefix_skip import PrefixSkipPolicy
from kvconn.policy import Policy
from kvconn.registry.forbid import PREFIX_SKIP
from kvconn.types import Hits, Permissions, Request

__all__ = ["PolicyGate"]

_NOTHING = Permissions(read=False, write=False)


class PolicyGate:
    """Asks every policy, each in its own ``try``; one that raises denies.

    A policy is asked only for the hooks that it overrides, about the whole of what was offered or
    found, so that no order matters.  Nothing that it answers can widen what the others left:
    permissions are combined with *and*, admitted keys must be among the offered ones, accepted
    hits are at most what was found.

    The skip policy is asked first, on a request that nobody could change yet, whether it is among
    ``policies`` or not.
    """

    def __init__(self, policies: Iterable[tuple[str, Policy]]) -> None:
        skip: list[tuple[str, Policy]] = [(PREFIX_SKIP, PrefixSkipPolicy(PluginConfig()))]
        named = skip + [named for named in policies if type(named[1]) is not PrefixSkipPolicy]
        self._guards = {name: Guard(f"policy {name}") for name, _ in named}
        self._permit = self._overriding(named, "permit")
        self._admit = self._overriding(named, "admit")
        self._accept = self._overriding(named, "accept")

    def _overriding(
        self, named: Sequence[tuple[str, Policy]], hook: str
    ) -> list[tuple[Guard, Callable[..., Any]]]:
        return [
            (self._guards[name], getattr(policy, hook))
            for name, policy in named
            if getattr(getattr(policy, hook), "__func__", None) is not getattr(Policy, hook)
        ]

    @property
    def errors(self) -> int:
        """Exceptions that policies raised so far."""
        return sum(guard.errors for guard in self._guards.values())

    def permit(self, request: Request) -> Permissions:
        """What every policy leaves allowed to ``request``."""
        left = Permissions()
        for guard, permit in self._permit:
            try:
                answer = permit(request)
                if answer is not None:
                    left = Permissions(
                        read=left.read and answer.read is True,
                        write=left.write and answer.write is True,
                    )
            except BaseException as error:  # noqa: BLE001 - a policy that raises denies
                guard.failed("permit", error, "the request neither reads nor writes")
                left = _NOTHING
        return left

    def admit(self, request: Request, keys: list[Key]) -> list[Key]:
        """Those of ``keys``, in their order, that every policy lets be stored."""
        left = keys
        for guard, admit in self._admit:
            try:
                answer = admit(request, list(keys))
                if answer is not None:
                    allowed = set(answer)
                    left = [key for key in left if key in allowed]
            except BaseException as error:  # noqa: BLE001 - a policy that raises denies
                guard.failed("admit", error, "nothing of the offer is stored")
                left = []
        return left

    def accept(self, request: Request, hits: Hits) -> int:
        """How many of the leading hits every policy lets be used."""
        left = hits.chunks
        for guard, accept in self._accept:
            try:
                answer = accept(request, hits)
                if answer is not None:
                    left = min(left, max(0, int(answer)))
            except BaseException as error:  # noqa: BLE001 - a policy that raises denies
                guard.failed("accept", error, "the hit counts as a miss")
                left = 0
        return left

    @property
    def accepts_all(self) -> bool:
        """No policy judges hits, so the connector need not ask."""
        return not self._accept

    @property
    def admits_all(self) -> bool:
        """No policy judges offers, so the connector need not ask."""
        return not self._admit
