"""An engine in a process of its own: stores, loads and checks, until it is told or killed.

Run as ``python -m kvconn.testing.another`` with one pickled :class:`Order` on standard input.
Prints ``ready`` once it has stored something, and a JSON object of what it saw when it ends.
"""

from __future__ import annotations

import importlib
import json
import pickle
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvconn.identity import Namespace, content_key
from kvconn.testing.rig import Rig, geometry_of
from kvconn.types import Request

if TYPE_CHECKING:
    from kvconn.backend import Backend

__all__ = ["Order", "order_for", "start"]


@dataclass(frozen=True)
class Order:
    """What the other process does."""

    backend: tuple[str, str]
    """Module and qualified name of the backend's class."""
    config: bytes
    """Its options, pickled."""
    namespace: Namespace
    number: int
    """Seed, and name of the keys that are its own."""
    rounds: int


def order_for(backend: Backend, namespace: Namespace, number: int, rounds: int) -> Order | None:
    """An order for one more instance of ``backend``; ``None`` where it cannot be made again."""
    kind = type(backend)
    try:
        config = pickle.dumps(backend.config)
    except Exception:  # noqa: BLE001 - a configuration that lives in this process only
        return None
    named = kind.__module__, kind.__qualname__
    if "<locals>" in named[1] or getattr(sys.modules.get(named[0]), named[1], None) is not kind:
        return None
    return Order(named, config, namespace, number, rounds)


def start(order: Order) -> subprocess.Popen[bytes]:
    """A process that follows ``order``; it sees what can be imported here."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvconn.testing.another"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(pickle.dumps((sys.path, pickle.dumps(order))))
    process.stdin.close()
    process.stdin = None
    return process


def common_keys() -> list[bytes]:
    """What every process stores."""
    return [content_key("common", i) for i in range(4)]


def own_keys(number: int) -> list[bytes]:
    """What one process stores."""
    return [content_key("own", number, i) for i in range(4)]


def _follow(order: Order) -> dict[str, Any]:
    module, name = order.backend
    kind = getattr(importlib.import_module(module), name)
    config = pickle.loads(order.config)  # noqa: S301 - from our own parent
    draw = random.Random(order.number)  # noqa: S311 - reproducible, not secret
    rig = Rig(lambda: kind(config), geometry_of(), order.namespace)
    loaded = failed = 0
    for turn in range(order.rounds):
        for keys in draw.sample([common_keys(), own_keys(order.number)], 2):
            request = Request(f"{order.number} {turn} {keys[0].hex()}")
            found = rig.lookup(request, keys)
            if found:
                transfer = rig.scheduler.prepare_load(request, keys[:found])
                if transfer is not None:
                    verdicts = rig.run_checked(transfer)  # raises for a wrong byte
                    loaded, failed = loaded + sum(verdicts), failed + verdicts.count(False)
            rig.store(request, keys)
            rig.scheduler.request_finished(request)
            rig.step()
        if turn == 0:
            print("ready", flush=True)  # noqa: T201 - the parent waits for it
    errors = rig.figures()["backend_errors"] + sum(worker.errors for worker in rig.workers)
    held = rig.held()
    left = rig.close()
    return {"loaded": loaded, "failed": failed, "errors": errors, "held": held, "left": left}


def main() -> None:
    """Follow the order on standard input."""
    path, order = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    sys.path[:] = path
    print(json.dumps(_follow(pickle.loads(order))), flush=True)  # noqa: S301, T201


if __name__ == "__main__":
    main()
