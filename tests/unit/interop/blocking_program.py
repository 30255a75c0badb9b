"""A program with something of each kind, and a runner of it in a thread: the caller's own threads have no loop."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coterie import Cluster, Deferred, Entity, Task, Workflow, rpc

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

SHARDS = 3
FAR = "60s"  # a machine that is busy


class Refused(Exception):
    """Declared by an rpc."""


class Account(Entity[None]):
    """What is called."""

    @rpc
    async def echo(self, number: int) -> int:
        """Return it."""
        return number

    @rpc(errors=[Refused])
    async def refuse(self) -> int:
        """Raise what is declared."""
        raise Refused("no")

    @rpc(timeout="1h")
    async def wait(self, name: str) -> None:
        """Wait for ever, and note how that ended."""
        waits[name] = "waits"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            waits[name] = "cancelled"
            raise

    @rpc(persisted=True, key="order")
    async def deposit(self, order: str, cents: int) -> str:
        """Stored before it runs."""
        return f"{order}: {cents}"

    @rpc
    async def where(self) -> str:
        """Name the thread of the runner."""
        return threading.current_thread().name


waits: dict[str, str] = {}
"""How the calls of `wait` are doing."""


async def double(workflow: Workflow, number: int) -> int:
    """A run of one step."""
    return await workflow.step("double", _doubled, number)


async def _doubled(number: int) -> int:
    return number * 2


async def approve(workflow: Workflow, prefix: str) -> str:
    """A run that waits for a value from outside."""
    deferred: Deferred[str] = workflow.deferred("approval", str)
    await workflow.step("publish", _publish, prefix, deferred.token)
    return f"{prefix} {await deferred.wait()}"


async def _publish(name: str, token: str) -> None:
    tokens[name] = token


async def greet(workflow: Workflow, greeting: str) -> str:
    """A run that is sent names until one is empty, and publishes what it makes of them."""
    while name := await workflow.receive("name", str):
        await workflow.publish("said", f"{greeting} {name}")
    return "bye"


async def label(text: str, times: int) -> str:
    """The body of a task."""
    return text * times


labels: list[Task[[str, int], str, Coroutine[Any, Any, str]]] = []
"""The tasks of the programs that were made, the newest last."""
tokens: dict[str, str] = {}
"""The tokens of the runs of `approve`."""


def program(url: str) -> Cluster:
    """The cluster, with its definitions."""
    cluster = Cluster(url, shards=SHARDS)
    cluster.entity(Account)
    cluster.workflow(double)
    cluster.workflow(approve)
    cluster.workflow(greet)
    labels.append(cluster.task(label))
    return cluster


@contextmanager
def runner(url: str) -> Iterator[Cluster]:
    """A runner on a loop in another thread."""
    cluster, started, over = program(url), threading.Event(), threading.Event()
    errors: list[BaseException] = []

    async def live() -> None:
        async with cluster:
            await cluster.ready(timeout=FAR)
            started.set()
            await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:
            errors.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name="runner")
    thread.start()
    try:
        assert started.wait(60), "it has not started"
        assert not errors, errors
        yield cluster
    finally:
        over.set()
        thread.join(60)
    assert not errors, errors
