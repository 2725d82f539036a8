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
        """``wrap`` puts something between the connector and its backend: a counter, a fault."""
        self.config = config
        self.backend_name = config.backend.name
        backend = build_backend(config.backend)
        self._backend = backend if wrap is None else wrap(backend)
        self._policies = build_policies(config)
        for choice in (config.backend, *config.policies):
            conceal(choice.options)
        self.plugins = PluginManager()
        """What is registered; the hooks are called on the bound methods, never through it."""
        self.plugins.register(self._backend, self.backend_name)
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
