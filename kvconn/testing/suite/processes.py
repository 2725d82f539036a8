"""F7 and F8: other processes, also one that is killed."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from kvconn.testing.another import common_keys, order_for, own_keys, start
from kvconn.testing.rig import geometry_of
from kvconn.testing.suite.base import Kit, Open, needs
from kvconn.types import Request

if TYPE_CHECKING:
    import subprocess

    from kvconn.identity import Key

__all__ = ["ProcessRules"]

CHUNKS, PROCESSES, ROUNDS = 64, 3, 6
LONG_S = 120.0
WRITER, READER = Request("writer"), Request("reader")


class ProcessRules(Kit):
    """What a store that outlives its process promises to the next one, and to those beside it."""

    @needs("keeps", "persistent")
    def test_F7_after_a_restart_what_was_complete_is_a_hit_and_loads_right(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16)
        rig.store(WRITER, keys)
        rig.close()
        again = open_rig(chunks=16)
        assert again.lookup(READER, keys) == 8
        assert again.load(READER, keys) == [True] * 8

    @needs("keeps", "persistent")
    def test_F7_what_an_engine_left_without_closing_is_found(
        self, open_rig: Open, keys: list[Key]
    ) -> None:
        rig = open_rig(chunks=16)
        rig.store(WRITER, keys[:4])
        rig.begin_store(Request("on its way"), keys[4:])  # and never completed, as after a kill
        again = open_rig(chunks=16)
        found = again.lookup(READER, keys)
        assert found >= 4
        assert again.load(READER, keys[:found])[:4] == [True] * 4

    @needs("keeps", "persistent", "one_tier")
    def test_F7_a_process_that_is_killed_leaves_nothing_that_loads_wrong(
        self, open_rig: Open
    ) -> None:
        for number in range(self.profile.kills):
            process = self._start(number, rounds=10**6)
            _await_ready(process)
            time.sleep(0.01 * (number % 7))
            process.kill()
            process.communicate()
            rig = open_rig(chunks=CHUNKS)
            for keys in (common_keys(), own_keys(number)):
                request = Request(f"{number} {keys[0].hex()}")
                found = rig.lookup(request, keys)
                assert found == 4, "what was complete before the kill is not found"
                assert rig.load(request, keys) == [True] * 4
                rig.scheduler.request_finished(request)
            rig.close()

    @needs("keeps", "persistent", "one_tier")
    def test_F8_processes_that_share_a_store_load_no_wrong_byte_and_meet_no_error(self) -> None:
        processes = [self._start(number, rounds=ROUNDS) for number in range(PROCESSES)]
        ends = [process.communicate(timeout=LONG_S) for process in processes]
        for process, (_, words) in zip(processes, ends, strict=True):
            assert process.returncode == 0, words.decode(errors="replace")[-2000:]
        saw = [json.loads(out.splitlines()[-1]) for out, _ in ends]
        assert sum(one["loaded"] for one in saw) > 0
        for one in saw:
            assert (one["errors"], one["held"], one["left"]) == (0, {}, [])

    def _start(self, number: int, rounds: int) -> subprocess.Popen[bytes]:
        backend: Any = self.make_backend(self.capacity_for(CHUNKS, geometry_of()))
        order = order_for(backend, self.namespace, number, rounds)
        if order is None:
            pytest.skip("its class or its options cannot be handed to another process")
        return start(order)


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    if line.strip() != b"ready":
        _, words = process.communicate(timeout=LONG_S)
        pytest.fail(f"the other process ended early: {words.decode(errors='replace')[-2000:]}")
