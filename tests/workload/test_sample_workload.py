"""The sample that ships with kvconn is what the generator gives, in every Python."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from kvconn.workload import read_trace, sample_path, summary, write_trace
from kvconn.workload.sample import sample_requests

if TYPE_CHECKING:
    from pathlib import Path


def test_the_shipped_sample_is_what_the_generator_gives(tmp_path: Path) -> None:
    write_trace(tmp_path / "sample.jsonl", sample_requests())
    shipped = gzip.decompress(sample_path().read_bytes())
    assert shipped == (tmp_path / "sample.jsonl").read_bytes()


def test_the_sample_is_small_and_reuses_prefixes() -> None:
    assert sample_path().stat().st_size < 60_000
    counted = summary(read_trace(sample_path()))
    assert 400 <= counted.requests <= 600
    assert counted.hit_rate > 0.5


def test_the_sample_tells_neither_when_nor_as_what_it_was_written() -> None:
    assert sample_path().read_bytes()[3:8] == bytes(5)
