"""A program whose tasks write down when their bodies begin and end: in coroutines, threads and processes.

python job_program.py
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import Cluster, Retry, current

if TYPE_CHECKING:
    from coterie.tasks.task import Task

LOG = Path("jobs.log")
"""In the working directory, which all processes share."""


def note(what: str, name: str) -> None:
    """Write down what a body does."""
    line = f"{what} {name} {current().attempt} {os.getpid()} {time.time_ns()}\n".encode()
    log = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(log, line)  # one write, so that lines of several processes do not mix
    finally:
        os.close(log)


async def in_coroutine(name: str, for_s: float) -> int:
    """Wait, on the loop."""
    note("begin", name)
    try:
        await asyncio.sleep(for_s)
    finally:
        note("end", name)
    return current().attempt or 0


def in_thread(name: str, for_s: float) -> int:
    """Wait, in a thread, until it is cancelled."""
    return _wait(name, for_s)


def in_process(name: str, for_s: float) -> int:
    """Wait, in a process, until it is cancelled."""
    return _wait(name, for_s)


def until_told(name: str) -> int:
    """Wait, in a thread, until there is a file of this name."""
    note("begin", name)
    while not Path(name).exists() and not current().cancelled:
        time.sleep(0.02)
    note("end", name)
    return current().attempt or 0


def _wait(name: str, for_s: float) -> int:
    note("begin", name)
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s and not current().cancelled:
        time.sleep(0.005)
    note("end", name)
    return current().attempt or 0


def define(cluster: Cluster) -> dict[str, Task[Any, int, Any]]:
    """Its tasks, by name."""
    retry, slow = Retry(attempts=20, base="50ms", max="50ms"), cluster.queue("slow", concurrency=3)
    return {
        "in_coroutine": cluster.task(retry=retry)(in_coroutine),
        "in_thread": cluster.task(retry=retry, queue=slow)(in_thread),
        "until_told": cluster.task(retry=retry, queue=slow)(until_told),
        "in_process": cluster.task(retry=retry, pool="process")(in_process),
    }


if __name__ in ("__main__", "__mp_main__"):  # where it runs; a test defines them with a cluster of its own
    cluster = Cluster(drain="2s", processes=2)
    globals().update({f"task_{name}": task for name, task in define(cluster).items()})

if __name__ == "__main__":
    cluster.run()
