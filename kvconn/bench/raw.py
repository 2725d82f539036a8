"""What a disk can do: whole objects in and out of one large file, past the page cache.

The better of a plain loop over a few depths and of ``fio``, where it is installed, since neither
always wins.
"""

from __future__ import annotations

import json
import mmap
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

__all__ = ["DEPTHS", "RawFile", "fio_gbps"]

DEPTHS = (2, 4, 8, 16)


class RawFile:
    """A file of ``count`` objects of ``size`` bytes, all of it written once.  Closes to nothing."""

    def __init__(self, directory: str, size: int, count: int) -> None:
        """Raises ``OSError`` where the page cache cannot be passed by."""
        self._path = f"{directory}/.raw-{os.getpid()}"
        self._size, self._count = size, count
        self._buffers = [mmap.mmap(-1, size) for _ in range(max(DEPTHS))]
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_DIRECT
        self._file = os.open(self._path, flags, 0o600)
        os.posix_fallocate(self._file, 0, size * count)
        self.seconds(os.pwrite, DEPTHS[1], range(count))

    def write(self, depth: int, order: Sequence[int]) -> float:
        """Seconds to write every object, ``depth`` at a time."""
        return self.seconds(os.pwrite, depth, order)

    def read(self, depth: int, order: Sequence[int]) -> float:
        """Seconds to read every object, ``depth`` at a time."""

        def read(file: int, buffer: mmap.mmap, offset: int) -> None:
            os.preadv(file, [buffer], offset)

        return self.seconds(read, depth, order)

    def seconds(
        self, move: Callable[[int, mmap.mmap, int], object], depth: int, order: Sequence[int]
    ) -> float:
        """How long ``depth`` threads take to call ``move`` for each object."""
        jobs: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in order:
            jobs.put(number)

        def work(buffer: mmap.mmap) -> None:
            with suppress(queue.Empty):
                while True:
                    move(self._file, buffer, jobs.get_nowait() * self._size)

        threads = [
            threading.Thread(target=partial(work, buffer)) for buffer in self._buffers[:depth]
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._file)
        os.unlink(self._path)  # noqa: PTH108 - as it was made


def fio_gbps(directory: str, size: int, total: int) -> dict[str, float]:
    """``read`` and ``write`` in 1e9 bytes a second, depth 8; empty where there is no ``fio``."""
    fio = shutil.which("fio")
    found: dict[str, float] = {}
    if fio is None:
        return found
    path = f"{directory}/.fio-{os.getpid()}"
    for way, mode in (("write", "randwrite"), ("read", "randread")):
        command = [
            fio, "--name=limit", f"--filename={path}", f"--rw={mode}", f"--bs={size}",
            f"--size={total // size * size}", "--direct=1", "--ioengine=io_uring",
            "--iodepth=8", "--output-format=json",
        ]  # fmt: skip
        with suppress(subprocess.SubprocessError, ValueError, KeyError):
            done = subprocess.run(command, capture_output=True, check=True, timeout=120)  # noqa: S603 - own arguments
            found[way] = json.loads(done.stdout)["jobs"][0][way]["bw_bytes"] / 1e9
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108 - as it was made
    return found
