"""Tasks of queues with limits of each kind: `python job_load_program.py` is a runner, or a client that sends jobs.

A job of kind `ok` succeeds at once, the others fail, put themselves off, discard themselves or run out of attempts.
Each job has a number, in its key and its tag; one that succeeds has sent one receipt, with the same tag.

Variables:
    JOBS_JOURNAL: The folder of the journals.
    JOBS_SENDS: How many jobs a client has under way at once; without it this process is a runner.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie import Cluster, CoterieError, Discard, Discarded, MessageCancelled, MessageDead, Retry, Snooze, current

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from coterie.tasks.task import Job, Task

RATE, BURST = 20, 10
NARROW, SHARED, PER_TENANT = 6, 10, 2
TENANTS = 8
KINDS = ("ok", "ok", "ok", "fail", "snooze", "discard", "die")
NUMBER = "number"
"""The tag of jobs."""


class Journal:
    """Lines of JSON with their instants, each written at once: what was noted before a kill is there."""

    def __init__(self, folder: str, name: str) -> None:
        self._file = os.open(Path(folder) / f"{name}.{os.getpid()}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(self, what: str, **fields: object) -> None:
        os.write(self._file, json.dumps({"what": what, "at_ns": time.time_ns(), **fields}).encode() + b"\n")


_journal: list[Journal] = []


def note(what: str, **fields: object) -> None:
    """Note something in the journal of this process."""
    if not _journal:
        _journal.append(Journal(os.environ["JOBS_JOURNAL"], os.environ["COTERIE_RUNNER_NAME"]))
    _journal[0].note(what, **fields)


@contextmanager
def noted() -> Iterator[None]:
    """Note when a body begins and ends."""
    here = current()
    note("began", job=str(here.message_id), runner=here.runner_id)
    try:
        yield
    finally:
        note("over", job=str(here.message_id), runner=here.runner_id)


def end_as(kind: str) -> None:
    """End as a job of this kind does, when all of its work is done: nothing of it may stay unless it succeeds."""
    if kind == "fail" and random.random() < 0.4:
        raise RuntimeError("a defect")
    if kind == "snooze" and random.random() < 0.5:
        raise Snooze(random.uniform(0.1, 1.0))
    if kind == "discard":
        raise Discard("nobody wants it")
    if kind == "die" and random.random() < 0.7:
        raise ValueError("no attempts for this")


class Tasks(NamedTuple):
    """The tasks of the load."""

    narrow: Task[[int, str, float], int, Any]
    threaded: Task[[int, str, float], int, Any]
    processed: Task[[int, str, float], int, Any]
    shared: Task[[int, str, float, str], int, Any]
    rated: Task[[int, str], int, Any]

    def job(self, number: int, kind: str) -> Job[int]:
        """A job: which one it is follows from its number."""
        choice = number % 20
        busy_s = (number % 7) / 10
        if choice < 6:
            return self.narrow.job(number, kind, busy_s)
        if choice < 9:
            return self.threaded.job(number, kind, busy_s)
        if choice < 10:
            return self.processed.job(number, kind, busy_s)
        return self.shared.job(number, kind, busy_s, f"tenant-{number // 20 % TENANTS}")


def in_process(number: int, kind: str, busy_s: float) -> int:
    """Wait in a process."""
    return in_thread(number, kind, busy_s)


def in_thread(number: int, kind: str, busy_s: float) -> int:
    """Wait in a thread."""
    with noted():
        until_s = time.monotonic() + busy_s
        while time.monotonic() < until_s and not current().cancelled:
            time.sleep(0.01)
        end_as(kind)
        return number


def define(cluster: Cluster) -> Tasks:
    """Define the queues and tasks of the load."""
    retry = Retry(attempts=30, base="50ms", max="500ms", unless=[ValueError])
    narrow = cluster.queue("narrow", concurrency=NARROW)
    shared = cluster.queue("shared", concurrency=SHARED, partition="tenant", partition_concurrency=PER_TENANT)
    rated = cluster.queue("rated", rate=f"{RATE}/s", burst=BURST)

    @cluster.task(name="receipt")
    async def receipt(of: int) -> int:
        return of

    async def work(number: int, kind: str, busy_s: float) -> int:
        with noted():
            await cluster.send(receipt.job(number), tags={NUMBER: str(number)})
            await asyncio.sleep(busy_s)
            end_as(kind)
            return number

    async def narrowed(number: int, kind: str, busy_s: float) -> int:
        return await work(number, kind, busy_s)

    async def partitioned(number: int, kind: str, busy_s: float, tenant: str) -> int:
        return await work(number, kind, busy_s)

    async def metered(number: int, kind: str) -> int:
        return await work(number, kind, 0.0)

    return Tasks(
        cluster.task(name="narrow", queue=narrow, key="number", retry=retry)(narrowed),
        cluster.task(name="threaded", queue=narrow, key="number", retry=retry)(in_thread),
        cluster.task(name="processed", key="number", retry=retry, pool="process")(in_process),
        cluster.task(name="shared", queue=shared, key="number", retry=retry)(partitioned),
        cluster.task(name="rated", queue=rated, key="number", retry=retry)(metered),
    )


@asynccontextmanager
async def noted_start() -> AsyncIterator[None]:
    """Open the journal: this process works from now on."""
    note("up")
    yield


async def send_on(senders: int) -> None:
    """Send jobs in so many tasks until SIGTERM; what is under way then is brought to its end."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    numbers = itertools.count(os.getpid() << 24)
    cluster = Cluster()
    tasks = define(cluster)
    async with cluster.connect():
        note("up")

        async def go_on() -> None:
            while not over.is_set():
                number = next(numbers)
                await send_one(cluster, tasks, number, random.choice(KINDS))
                await asyncio.sleep(random.uniform(0, 0.2))

        await asyncio.gather(*(go_on() for _ in range(senders)))


async def send_one(cluster: Cluster, tasks: Tasks, number: int, kind: str) -> None:
    """Send a job under its key until that is acknowledged; then wait for it, cancel it or leave it alone."""
    note("tried", number=number)
    later = random.uniform(0.05, 1.0) if number % 5 == 0 else None

    async def send() -> Any:
        job = tasks.job(number, kind)
        return await cluster.send(job, priority=number % 3, delay=later, tags={NUMBER: str(number)})

    id_ = await until_answered(send)
    note("sent", number=number, job=str(id_))
    act = random.random()
    if act < 0.15:
        await asyncio.sleep(random.uniform(0, 0.6))
        if await until_answered(lambda: cluster.cancel(id_)):
            note("cancelled", job=str(id_))
    elif act < 0.7:
        await wait_for(cluster, id_, number)


async def wait_for(cluster: Cluster, id_: Any, number: int) -> None:
    """Wait for the result, and note what was told."""

    async def result() -> str:
        try:
            value = await cluster.result(id_, timeout=random.choice((0.3, 3.0, 30.0)))
        except MessageCancelled:
            return "cancelled"
        except MessageDead:
            return "dead"
        except Discarded:
            return "discarded"
        return "done" if value == number else f"{value!r} for {number}"

    note("told", job=str(id_), how=await until_answered(result))


async def until_answered(act: Any) -> Any:
    """Do it again while the cluster is not at hand."""
    while True:
        try:
            return await act()
        except CoterieError as error:
            note("failed", code=error.code)
            await asyncio.sleep(0.1)


def main() -> None:
    if "JOBS_SENDS" in os.environ:
        asyncio.run(send_on(int(os.environ["JOBS_SENDS"])))
    else:
        cluster.setup(noted_start)
        cluster.run()


if __name__ in ("__main__", "__mp_main__"):  # processes of bodies import it too; a test defines its own
    cluster = Cluster(processes=2)
    globals().update(define(cluster)._asdict())  # a process finds its task by name

if __name__ == "__main__":
    main()
