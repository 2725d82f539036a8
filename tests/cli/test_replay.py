"""``kvconn replay``: what it promises to scripts, and that it tells good from bad."""

from __future__ import annotations

import json

import pytest

from kvconn.cli import app
from kvconn.engine import engine as engine_module
from kvconn.engine.content import BlockContent
from kvconn.policies.prefix_skip import PrefixSkipPolicy
from kvconn.testing.counting import CountingBackend

BACKENDS = [
    pytest.param(url, id=name, marks=pytest.mark.needs(name))
    for name, url in {
        "cpu": "cpu://?capacity=8MiB",
        "disk": "disk://{path}?capacity=16MiB",
        "null": "null://",
    }.items()
]
QUICK = ["--page-bytes", "64", "--layers", "2", "--limit", "120"]


@pytest.fixture
def kvconn(capsys):
    """Call the command line; its exit status, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(list(arguments))
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return call


@pytest.fixture
def replay(kvconn):
    """Call ``kvconn replay --json`` over a part of the sample; its exit status and document."""

    def call(*arguments: str) -> tuple[int, dict]:
        status, out, err = kvconn("replay", "--json", *QUICK, *arguments)
        assert err == ""
        return status, json.loads(out)

    return call


@pytest.fixture
def trace(tmp_path):
    """Write a trace of requests with these ids; its path."""

    def write(*requests: list[int]) -> str:
        path = tmp_path / "trace.jsonl"
        lines = [
            {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            for ids in requests
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    return write


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheduling", [(), ("--async-scheduling",)], ids=["sync", "async"])
def test_a_good_backend_is_good(replay, backend, scheduling, tmp_path):
    backend = backend.format(path=tmp_path)
    status, found = replay("--backend", backend, "--skip-fraction", "0.2", *scheduling)
    assert status == 0
    assert found["requests"] == 120
    assert found["wrong_blocks"] == 0
    assert not any(found["leaks"].values())
    assert found["skip"]["requests"] > 0
    assert found["skip"]["backend_lookups"] == found["skip"]["backend_loads"] == 0
    assert found["blocks"]["accepted"] > 0
    [tier] = found["tiers"]
    assert tier["name"] == backend.partition(":")[0]
    assert (tier["hits"] > 0) is (tier["name"] != "null")
    assert tier["loaded_bytes"] == tier["hits"] * 2 * 64


@pytest.mark.needs("cpu")
def test_the_document_has_what_was_promised(replay):
    _, found = replay()
    assert {
        "requests", "blocks", "hit_rate", "tiers", "wrong_blocks", "skip", "leaks", "lookup_us",
        "load_gbps", "store_gbps", "seconds",
    } <= set(found)  # fmt: skip
    assert {
        "queried", "local_hits", "external_hits", "computed", "accepted", "evicted",
    } <= set(found["blocks"])  # fmt: skip
    assert set(found["skip"]) == {"requests", "backend_lookups", "backend_loads", "accepted"}
    assert {"leases", "reservations", "transfers"} <= set(found["leaks"])
    assert 0 < found["lookup_us"]["p50"] <= found["lookup_us"]["p99"]


@pytest.mark.needs("cpu")
def test_every_block_comes_from_somewhere(replay):
    _, found = replay("--skip-fraction", "0.3")
    blocks = found["blocks"]
    hits = blocks["local_hits"] + blocks["external_hits"]
    assert blocks["queried"] + blocks["bypassed"] == hits + blocks["computed"]
    assert found["hit_rate"] == hits / blocks["queried"]


@pytest.mark.needs("cpu")
def test_the_seed_decides_who_skips(replay):
    shares = ["--skip-fraction", "0.5", "--seed"]
    first, again, other = (replay(*shares, seed)[1]["skip"] for seed in ("1", "1", "2"))
    assert first == again != other


@pytest.mark.needs("cpu")
def test_requests_that_skip_compute_every_block_of_theirs(kvconn, trace):
    path = trace([1, 2, 3], [1, 2, 3], [1, 2, 3])
    status, out, _ = kvconn("replay", path, "--json", "--skip-fraction", "1")
    found = json.loads(out)
    assert status == 0
    assert found["blocks"]["computed"] == found["blocks"]["bypassed"] == 9
    assert found["blocks"]["queried"] == found["hit_rate"] == 0
    assert found["skip"] == {
        "requests": 3, "backend_lookups": 0, "backend_loads": 0, "accepted": 3,
    }  # fmt: skip


@pytest.mark.needs("cpu")
def test_a_block_is_stored_only_as_part_of_a_whole_chunk(kvconn, trace):
    path = trace([1, 2, 3, 4], [9])
    _, out, _ = kvconn("replay", path, "--json", "--blocks-per-chunk", "3")
    assert json.loads(out)["blocks"]["accepted"] == 3


@pytest.mark.needs("cpu")
def test_a_wrong_byte_ends_with_1(replay, monkeypatch):
    write = BlockContent.write

    def write_and_slip(self, blocks, keys):
        write(self, blocks, keys)
        if blocks:
            self._pages[-1][blocks[0], -1] ^= 1

    monkeypatch.setattr(BlockContent, "write", write_and_slip)
    status, found = replay()
    assert status == 1
    assert found["wrong_blocks"] > 0


@pytest.mark.needs("cpu")
def test_a_skip_that_is_not_kept_ends_with_1(replay, monkeypatch):
    monkeypatch.setattr(PrefixSkipPolicy, "permit", lambda self, request: None)
    status, found = replay("--skip-fraction", "0.5")
    assert status == 1
    assert found["skip"]["backend_lookups"] > 0
    assert found["wrong_blocks"] == 0


@pytest.mark.needs("cpu")
def test_a_lease_that_nobody_gives_up_ends_with_1(replay, monkeypatch):
    monkeypatch.setattr(CountingBackend, "prepare_load", lambda self, request, keys: None)
    monkeypatch.setattr(CountingBackend, "release", lambda self, request: None)
    monkeypatch.setattr(CountingBackend, "request_finished", lambda self, request: None)
    status, found = replay()
    assert status == 1
    assert found["leaks"]["leases"] > 0


@pytest.mark.needs("cpu")
def test_a_transfer_that_never_ends_is_a_leak_and_no_hang(replay, monkeypatch):
    monkeypatch.setattr("kvconn.engine.replay._PATIENCE_S", 0.2)
    monkeypatch.setattr(engine_module.Engine, "_hear", lambda self: None)
    status, found = replay("--async-scheduling", "--local-blocks", "60")
    assert status == 1
    assert found["leaks"]["transfers"] > 0
    assert found["leaks"]["requests"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ["--backend", "null://", "--backend", "null://"],
            "listed twice",
            marks=pytest.mark.needs("null"),
        ),
        (["--backend", "nosuch://"], "nosuch"),
        pytest.param(
            ["--backend", "cpu://?capacity=1KiB"], "capacity", marks=pytest.mark.needs("cpu")
        ),
        pytest.param(
            ["--backend", "cpu://?capcity=1MiB"], "capcity", marks=pytest.mark.needs("cpu")
        ),
        (["--page-bytes", "100"], "multiple of 8"),
        (["--local-blocks", "3"], "--local-blocks"),
        (["--skip-fraction", "2"], "skip-fraction"),
        (["no-such-trace.jsonl"], "no-such-trace.jsonl"),
    ],
)
def test_a_wrong_call_ends_with_2_and_one_sentence(kvconn, arguments, words):
    status, out, err = kvconn("replay", *arguments)
    assert status == 2
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_line_that_is_no_request_ends_with_2(kvconn, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0}\n')
    status, _, err = kvconn("replay", str(path))
    assert status == 2
    assert "line 1" in err


@pytest.mark.needs("cpu")
def test_people_see_a_table_and_no_progress_where_there_is_no_terminal(kvconn):
    status, out, err = kvconn("replay", *QUICK, "--skip-fraction", "0.1")
    assert status == 0
    assert err == ""
    for words in ("hit rate", "computed", "compared bit for bit, 0 wrong", "nothing left behind"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.needs("cpu")
def test_what_went_wrong_is_marked(kvconn, monkeypatch):
    monkeypatch.setattr(BlockContent, "wrong", lambda self, blocks, keys: len(blocks))
    status, out, _ = kvconn("replay", *QUICK)
    assert status == 1
    assert "✘" in out
