"""F7 and F8: processes that share one store directory, also one that was killed in it."""

from __future__ import annotations

import subprocess
import sys
import time

PROCESSES, ROUNDS = 8, 12

ENGINE = """
import random, sys
import torch
from kvconn.connector import Connector
from kvconn.geometry import Geometry
from kvconn.identity import Namespace, content_key
from kvconn.memory import KVCaches
from kvconn.types import Request

url, number, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pages = torch.zeros(4, 5000, dtype=torch.uint8)
geometry, space = Geometry(4, 5000), Namespace("shared")
common = [content_key("common", i) for i in range(4)]
own = [content_key(number, i) for i in range(4)]
draw = random.Random(number)
loaded = 0
with Connector.load({"backend": url, "strict": True}) as connector:
    scheduler = connector.open_scheduler(geometry, space)
    worker = connector.open_worker(geometry, space, KVCaches({"layer": pages}, num_blocks=4))

    def run(transfer, keys):
        worker.submit(transfer, [[keys.index(key)] for key in transfer.keys])
        worker.wait([transfer.id], 30)
        ((_, verdicts),) = worker.poll()
        scheduler.complete_transfer(transfer, verdicts)
        return verdicts

    for turn in range(rounds):
        for keys in draw.sample([common, own], 2):
            request = Request(f"{turn} {keys[0].hex()}")
            found = scheduler.lookup(request, keys)
            if found:
                pages.zero_()
                transfer = scheduler.prepare_load(request, keys[:found])
                for i, good in enumerate(run(transfer, keys)):
                    loaded += good
                    assert (pages[i] == keys[i][0]).all() or not good, "wrong bytes"
            for i, key in enumerate(keys):
                pages[i] = key[0]
            plan = scheduler.prepare_store(request, keys)
            if plan.transfer is not None:
                run(plan.transfer, keys)
            scheduler.request_finished(request)
            scheduler.step()
        if draw.random() < 0.2:
            scheduler.reset()  # deletes under the others' hands
    figures = scheduler.collect_stats()
    assert not figures["backend_errors"] and not worker.errors, figures
print(loaded)
"""


def test_F8_processes_that_share_a_directory_load_no_wrong_byte_and_meet_no_error(tmp_path):
    url = f"disk://{tmp_path}/store?capacity=64MiB&staging=256KiB"
    engines = [
        subprocess.Popen(  # noqa: S603 - this interpreter
            [sys.executable, "-c", ENGINE, url, str(number), str(ROUNDS)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    ends = [engine.communicate(timeout=300) for engine in engines]
    assert [engine.returncode for engine in engines] == [0] * PROCESSES, [end[1] for end in ends]
    assert sum(int(out) for out, _ in ends) > 0
    assert not [err for _, err in ends if err]
    assert list((tmp_path / "store").rglob("*.tmp")) == []


def test_F7_after_a_kill_another_process_loads_no_wrong_byte_and_nothing_half_written_stays(
    tmp_path,
):
    url = f"disk://{tmp_path}/store?capacity=64MiB&staging=256KiB"
    call = [sys.executable, "-c", ENGINE, url]
    killed = subprocess.Popen([*call, "0", "1000000"])  # noqa: S603 - this interpreter
    ends = time.monotonic() + 120
    while not list(tmp_path.rglob("*.kv")):
        assert killed.poll() is None
        assert time.monotonic() < ends, "it never stores"
    killed.kill()
    killed.wait()
    subprocess.run([*call, "0", "2"], check=True, timeout=120)  # noqa: S603 - this interpreter
    assert list(tmp_path.rglob("*.tmp")) == []
