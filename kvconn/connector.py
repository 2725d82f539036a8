"""The door for engines: one configuration, opened as a scheduler half, a worker half, or both."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kvconn.backend import Backend, Settings
from kvconn.config import (
    ConnectorConfig,
    build_backend,
    build_policies,
    load_config,
    log_resolved,
)
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, Shard
from kvconn.memory import KVCaches
from kvconn.registry import PluginManager
from kvconn.scheduler import SchedulerConnector
from kvconn.secrets import conceal
from kvconn.tiers import compose
from kvconn.worker import WorkerConnector

__all__ = ["Connector"]


class Connector:
    """Opens the halves of one configured backend.

    In a scheduler process call :meth:`open_scheduler`, in a worker process :meth:`open_worker`,
    in one process for both call both; transfers cross between them, as bytes where needed.  As a
    context manager it closes what it opened.

    >>> with Connector.load("cpu://?capacity=8GiB") as connector:
    ...     scheduler = connector.open_scheduler(geometry, namespace)
    ...     worker = connector.open_worker(geometry, namespace, caches)
    """

    def __init__(
        self, config: ConnectorConfig, *, wrap: Callable[[Backend], Backend] | None = None
    ) -> None:
        """``wrap`` puts something before the backend, before each tier: a counter, a fault."""
        self.config = config
        tiers = _named_tiers(config)
        if wrap is not None:
            tiers = [(name, wrap(backend)) for name, backend in tiers]
        self.tier_names = [name for name, _ in tiers]
        """The fastest first; a second disk is ``disk#2``."""
        self.backend_name = " over ".join(self.tier_names)
        self._backend = compose(tiers, config.write)
        self._policies = build_policies(config)
        for choice in (*config.tiers, *config.policies):
            conceal(choice.options)
        self.plugins = PluginManager()
        """What is registered; the hooks are called on the bound methods, never through it."""
        for name, backend in tiers:
            self.plugins.register(backend, name)
        for name, policy in self._policies:
            self.plugins.register(policy, name)
        self.plugins.check_pending()
        self._settings = Settings(
            lease_seconds=config.lease_seconds,
            transfer_timeout_s=config.transfer_timeout_s,
            events=config.events,
        )
        self.scheduler: SchedulerConnector | None = None
        self.worker: WorkerConnector | None = None
        log_resolved(config)

    @classmethod
    def load(
        cls,
        source: str | Path | Mapping[str, Any] | ConnectorConfig,
        *,
        wrap: Callable[[Backend], Backend] | None = None,
    ) -> Self:
        """From a URL, a mapping, or a ``.toml`` or ``.json`` file.

        Raises a :class:`~kvconn.errors.ConfigurationError` that says what would be valid.
        """
        config = source if isinstance(source, ConnectorConfig) else load_config(source)
        return cls(config, wrap=wrap)

    def open_scheduler(self, geometry: Geometry, namespace: Namespace) -> SchedulerConnector:
        """The half that decides; once, in the engine's scheduler process."""
        self.scheduler = SchedulerConnector(
            self._backend,
            self._policies,
            geometry,
            namespace,
            name=self.backend_name,
            settings=self._settings,
            strict=self.config.strict,
        )
        return self.scheduler

    def open_worker(
        self,
        geometry: Geometry,
        namespace: Namespace,
        caches: KVCaches,
        shard: Shard | None = None,
    ) -> WorkerConnector:
        """The half that moves bytes; once per worker process, with that rank's ``shard``."""
        self.worker = WorkerConnector(
            self._backend,
            geometry,
            namespace,
            caches,
            shard=shard,
            name=self.backend_name,
            settings=self._settings,
        )
        return self.worker

    def close(self, deadline: float = 5.0) -> list[int]:
        """Close both halves, worker first; the ids of the transfers left behind."""
        left: set[int] = set()
        ends = time.monotonic() + deadline
        for half in (self.worker, self.scheduler):
            if half is not None:
                left.update(half.close(max(0.0, ends - time.monotonic())))
        return sorted(left)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _named_tiers(config: ConnectorConfig) -> list[tuple[str, Backend]]:
    """Each backend by a name of its own: a second disk is ``disk#2``."""
    tiers: list[tuple[str, Backend]] = []
    for choice in config.tiers:
        backend = build_backend(choice)
        known = sum(other.name == choice.name for other in config.tiers[: len(tiers)])
        name = f"{choice.name}#{known + 1}" if known else choice.name
        if known and hasattr(backend, "tier"):
            backend.tier = name  # names it in events and resets
        tiers.append((name, backend))
    return tiers
