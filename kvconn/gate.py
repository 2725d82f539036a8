"""The one place where policies are asked, and where their answers are intersected (R6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kvconn.guard import Guard
from kvconn.identity import Key
from kvconn.policy import Policy
from kvconn.types import Hits, Permissions, Request

__all__ = ["PolicyGate"]

_NOTHING = Permissions(read=False, write=False)


class PolicyGate:
    """Asks every policy, each in its own ``try``; one that raises denies.

    A policy is asked only for the hooks that it overrides.  Nothing that a policy answers can
    widen what the others left: permissions are combined with *and*, admitted keys must be among
    the offered ones, accepted hits are at most what was found.
    """

    def __init__(self, policies: Iterable[tuple[str, Policy]]) -> None:
        named = list(policies)
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
            if getattr(type(policy), hook) is not getattr(Policy, hook)
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
            except Exception as error:  # noqa: BLE001 - a policy that raises denies
                guard.failed("permit", error, "the request neither reads nor writes")
                left = _NOTHING
        return left

    def admit(self, request: Request, keys: list[Key]) -> list[Key]:
        """Those of ``keys``, in their order, that every policy lets be stored."""
        for guard, admit in self._admit:
            try:
                answer = admit(request, list(keys))
                if answer is not None:
                    allowed = set(answer)
                    keys = [key for key in keys if key in allowed]
            except Exception as error:  # noqa: BLE001 - a policy that raises denies
                guard.failed("admit", error, "nothing of the offer is stored")
                return []
        return keys

    def accept(self, request: Request, hits: Hits) -> int:
        """How many of the leading hits every policy lets be used."""
        left = hits.chunks
        for guard, accept in self._accept:
            try:
                answer = accept(request, hits)
                if answer is not None:
                    left = min(left, max(0, int(answer)))
            except Exception as error:  # noqa: BLE001 - a policy that raises denies
                guard.failed("accept", error, "the hit counts as a miss")
                return 0
        return left

    @property
    def accepts_all(self) -> bool:
        """No policy judges hits, so the connector need not ask."""
        return not self._accept

    @property
    def admits_all(self) -> bool:
        """No policy judges offers, so the connector need not ask."""
        return not self._admit
