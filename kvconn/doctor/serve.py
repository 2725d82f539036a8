"""The arguments of ``vllm serve`` that an operator means to use, read without vLLM."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kvconn.doctor.finding import Finding, Verdict
from kvconn.errors import ConfigurationError

__all__ = ["Serve", "hashes"]

_CONNECTOR, _SEVERAL = "KVConnConnector", "MultiConnector"
_EXTRA = "kv_connector_extra_config"


@dataclass(frozen=True, slots=True)
class Serve:
    """What kvconn must know of them."""

    prefix_caching: bool = True
    hash_algorithm: str = "sha256"
    transfer: str | None = None
    """The JSON of ``--kv-transfer-config``."""

    @classmethod
    def of(cls, line: str) -> Serve:
        """From ``line``, as it stands after ``vllm serve`` in a shell.

        Raises :class:`~kvconn.errors.ConfigurationError` for one that no shell would take.
        """
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
        parser.add_argument(
            "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True
        )
        parser.add_argument("--prefix-caching-hash-algo", default="sha256")
        parser.add_argument("--kv-transfer-config")
        try:
            known, _ = parser.parse_known_args(shlex.split(line))
        except (ValueError, argparse.ArgumentError) as error:
            msg = f"--vllm is no command line ({error}): quote it as after `vllm serve` in a shell"
            raise ConfigurationError(msg) from error
        return cls(
            known.enable_prefix_caching, known.prefix_caching_hash_algo, known.kv_transfer_config
        )

    @property
    def _whole(self) -> Mapping[str, Any]:
        try:
            return _mapping(json.loads(self.transfer or "{}"))
        except ValueError:
            return {}

    @property
    def _ours(self) -> Mapping[str, Any] | None:
        """The part that names our connector; it may stand among several."""
        parts: list[Any] = [self._whole]
        if self._whole.get("kv_connector") == _SEVERAL:
            parts = _listed(_mapping(self._whole.get(_EXTRA)).get("connectors"))
        for part in map(_mapping, parts):
            if part.get("kv_connector") == _CONNECTOR:
                return part
        return None

    @property
    def backends(self) -> list[str]:
        """The URLs of what it is to store into; a backend that is a mapping has none."""
        named = _listed(_mapping(_mapping(self._ours).get(_EXTRA)).get("backend"))
        return [url for url in named if isinstance(url, str)]

    def findings(self) -> Iterator[Finding]:
        """What the connector would refuse, and why."""
        if self.prefix_caching:
            yield Finding("prefix caching", Verdict.GOOD, "on")
        else:
            says = "it is off, and with it the hashes that name blocks: remove "
            yield Finding("prefix caching", Verdict.BAD, says + "--no-enable-prefix-caching")
        yield Finding("--kv-transfer-config", *self._transfer())

    def _transfer(self) -> tuple[Verdict, str]:
        if self.transfer is None:
            return Verdict.BAD, "it is missing: see the line below, or give --backend to get one"
        ours = self._ours
        if ours is None:
            what = (
                f'no connector in it is "{_CONNECTOR}"' if self._whole else "it is no JSON object"
            )
            return Verdict.BAD, f"{what}: see the line below, which is quoted as a shell wants it"
        wanted = {
            "kv_connector_module_path": "kvconn.integrations.vllm",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
        }
        for name, value in wanted.items():
            if ours.get(name) != value:
                return Verdict.BAD, f'{name} is {ours.get(name)!r}: it must be "{value}"'
        if self._whole.get("kv_load_failure_policy") != "recompute":
            says = 'the policy of the whole counts: "kv_load_failure_policy": "recompute"'
            return Verdict.BAD, says + ' beside "connectors"'
        if not _mapping(ours.get(_EXTRA)).get("backend"):
            return Verdict.BAD, 'kv_connector_extra_config names no backend: add "backend"'
        return Verdict.GOOD, "as the connector wants it"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def hashes(algorithm: str | None) -> Finding:
    """Whether two processes agree on them; ``algorithm`` if it is known."""
    about, seed = "vLLM's block hashes", os.environ.get("PYTHONHASHSEED")
    if seed not in (None, "random"):
        return Finding(about, Verdict.GOOD, f"PYTHONHASHSEED is {seed}: every process agrees")
    if algorithm is None:
        says = (
            "sha256 and sha256_cbor agree between processes; with xxhash set PYTHONHASHSEED to "
            "the same number everywhere, or a restart finds nothing"
        )
        return Finding(about, Verdict.GOOD, says)
    if not algorithm.startswith("xxhash"):
        return Finding(about, Verdict.GOOD, f"{algorithm}: every process agrees")
    says = f"{algorithm} is random in each process: use sha256_cbor, or set PYTHONHASHSEED"
    return Finding(about, Verdict.BAD, says)
