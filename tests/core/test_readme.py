"""The README's examples do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, chain_keys
from kvconn.memory import KVCaches
from kvconn.types import Request

README = Path(__file__).parents[2] / "README.md"
GEOMETRY = Geometry(block_tokens=4, block_bytes=1024, blocks_per_chunk=2)
SPACE = Namespace("m")


def python_under(heading: str) -> str:
    if not README.exists():
        pytest.skip("README.md is not beside these tests")
    section = README.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert found, f"no python under {heading!r}"
    return found[1]


def run(scheduler, worker, transfer, rows) -> list[bool]:
    worker.submit(transfer, rows)
    worker.wait([transfer.id], 20)
    ((_, verdicts),) = worker.poll()
    scheduler.complete_transfer(transfer, verdicts)
    return verdicts


@pytest.fixture
def dict_backend(install) -> str:
    """The README's backend, installed; its URL."""
    install("kvconn-dict", python_under("Write a backend"), backends={"dict": "DictBackend"})
    return "dict://?capacity=16KiB"


def test_the_backend_in_the_readme_works_as_printed(dict_backend):
    pages = torch.randint(0, 256, (16, GEOMETRY.block_bytes), dtype=torch.uint8)
    wanted = pages.clone()
    keys = chain_keys(range(6))
    with Connector.load({"backend": dict_backend, "strict": True}) as connector:
        scheduler = connector.open_scheduler(GEOMETRY, SPACE)
        caches = KVCaches({"layer": pages}, num_blocks=16, blocks_per_chunk=2)
        worker = connector.open_worker(GEOMETRY, SPACE, caches)
        objects = connector._backend.Store.objects

        request = Request("first")
        plan = scheduler.prepare_store(request, keys[:4])
        rows = GEOMETRY.rows(range(16), range(4))
        assert run(scheduler, worker, plan.transfer, rows) == [True] * 4
        assert len(objects) == 4
        scheduler.request_finished(request)

        pages.zero_()
        request = Request("second")
        assert scheduler.lookup(request, keys) == 4
        load = scheduler.prepare_load(request, keys[:4])
        assert run(scheduler, worker, load, rows) == [True] * 4
        assert torch.equal(pages[:8], wanted[:8])
        scheduler.request_finished(request)

        plan = scheduler.prepare_store(Request("third"), keys[4:])
        assert list(plan.evicted) == [keys[3], keys[2]]
        assert run(scheduler, worker, plan.transfer, rows[:2]) == [True] * 2
        assert len(objects) == 4

        assert scheduler.lookup(Request("fourth"), keys) == 2
        name = next(name for name in objects if name.endswith(keys[1]))
        objects[name] = objects[name][:-1] + b"?"
        load = scheduler.prepare_load(Request("fourth"), keys[:2])
        assert run(scheduler, worker, load, rows[:2]) == [True, False]
        assert name not in objects
        stats = scheduler.collect_stats()
        assert [stats["backend_errors"], stats["policy_errors"], stats["misuse"]] == [0, 0, 0]
