"""Starts engines quickly: has imported vLLM once, and forks for each: ``nursery.py SOCKET``.

A connection sends the arguments and the environment of one run of ``scenario.py``, and is answered
``ended`` when it has ended well; one that ends otherwise is answered nothing.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path


def preload() -> None:
    import torch  # noqa: F401, PLC0415
    import transformers.models.gemma3  # noqa: PLC0415
    import transformers.models.llama  # noqa: F401, PLC0415
    import vllm.v1.engine.core  # noqa: PLC0415
    import vllm.v1.worker.cpu_worker  # noqa: F401, PLC0415
    from vllm import LLM, SamplingParams  # noqa: F401, PLC0415

    import kvconn.integrations.vllm  # noqa: F401, PLC0415


def bear(connection: socket.socket) -> None:
    """In the child: become one engine."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile() as asked:
        order = json.loads(asked.readline())
    os.environ.update(order["environment"])
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    import scenario  # noqa: PLC0415 - reads the environment

    try:
        scenario.main(*order["arguments"])
    except BaseException:
        traceback.print_exc()  # before whoever waits reads the log
        raise
    connection.sendall(b"ended")


def main(path: str) -> None:
    preload()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()
        Path(f"{path}.ready").touch()
        while True:
            connection, _ = door.accept()
            with connection:
                if os.fork() == 0:
                    door.close()
                    bear(connection)
                    return


if __name__ == "__main__":
    main(sys.argv[1])
