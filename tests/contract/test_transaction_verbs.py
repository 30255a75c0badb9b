"""In a transaction every public verb that writes is part of its commit, or refused at once, on each engine [C3]."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Crons, Entity, KeyValueStore, Messages, Singletons, WorkflowHandle, Workflows, rpc
from coterie.client import Runners

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from coterie import Leader, Tick, Transaction, Workflow

    Verb = Callable[["Program"], Awaitable[Any]]

REFUSED: dict[str, Verb] = {
    "KeyValueStore.set": lambda p: p.cluster.kv.set("k", 1),
    "KeyValueStore.remove": lambda p: p.cluster.kv.remove("k"),
    "KeyValueStore.clear": lambda p: p.cluster.kv.clear(),
    "KeyValueStore.modify": lambda p: p.cluster.kv.modify("k", lambda _: 1),
    "Messages.retry": lambda p: p.cluster.messages.retry("0" * 32),
    "Messages.edit": lambda p: p.cluster.messages.edit("0" * 32, {}),
    "Messages.purge": lambda p: p.cluster.messages.purge(status="done"),
    "Runners.drain": lambda p: p.cluster.runners.drain("nobody"),
    "Singletons.resign": lambda p: p.cluster.singletons.resign("first"),
    "Crons.trigger": lambda p: p.cluster.crons.trigger("yearly"),
    "Crons.pause": lambda p: p.cluster.crons.pause("yearly"),
    "Crons.resume": lambda p: p.cluster.crons.resume("yearly"),
    "WorkflowHandle.interrupt": lambda p: p.handle.interrupt(),
    "WorkflowHandle.resume": lambda p: p.handle.resume(),
    "WorkflowHandle.retry": lambda p: p.handle.retry(),
    "WorkflowHandle.fork": lambda p: p.handle.fork(before="a", id="another"),
    "WorkflowHandle.send": lambda p: p.handle.send("name", 1),
    "Cluster.call": lambda p: p.cluster.call(p.other.note()),
    "Cluster.cancel": lambda p: p.cluster.cancel("0" * 32),  # type: ignore[arg-type] # an id of somebody else's
    "Cluster.resolve": lambda p: p.cluster.resolve("token", 1),
    "Cluster.reject": lambda p: p.cluster.reject("token", "no"),
    "Cluster.reset": lambda p: p.cluster.reset(Asked, "a"),
    "Cluster.next_id": lambda p: p.cluster.next_id(),
}
"""Commits of their own."""
SENT = {"Cluster.send", "Cluster.send_many"}
"""Part of the commit of an rpc; refused where a transaction ends with its block."""
STARTED = "Cluster.start_workflow"
"""Part of the commit, see `test_transaction_starts`."""
OTHERS = {
    "KeyValueStore": {"get", "has", "is_empty", "size", "items"},
    "Messages": {"list", "show"},
    "Runners": {"list"},
    "Singletons": {"list", "get", "state", "history"},
    "Crons": {"list", "get", "preview", "explain", "wait", "history"},
    "Workflows": {"list"},
    "WorkflowHandle": {"result", "status", "published", "steps"},
    "Cluster": {"result", "broadcast", "poll_storage", "health", "shards", "ready", "start", "stop"},
}
"""Those that write nothing, or begin and end a runner."""
PROMPTLY_S = 120.0


class Asked(Entity):
    """Tries all of them inside of its transaction."""

    @rpc
    async def attempt(self) -> dict[str, str]:
        async with self.transaction() as sql:
            found = await program.attempted(sql)
            sent = await self.cluster.send(self.cluster.ref(Asked, "other").note())
            assert await self.cluster.cancel(sent), "what is part of the commit can be taken out of it"
            return found

    @rpc(persisted=True)
    async def note(self) -> None:
        """Nothing."""


class Program:
    """A cluster with one of everything, and what each transaction was told."""

    cluster: Cluster
    flow: Any
    other: Any
    table: Any

    def __init__(self, url: str) -> None:
        self.cluster = Cluster(url, shards=2, call_timeout="50s", transaction_limit="1m")
        cluster = self.cluster
        self.told: dict[str, asyncio.Future[dict[str, str]]] = {}
        cluster.entity(Asked)

        @cluster.entity
        class Table(Entity):
            @rpc
            async def create(self) -> None:
                async with self.transaction() as sql:
                    await sql.execute("create table if not exists rows (id integer)")

        @cluster.workflow
        async def flow(workflow: Workflow, number: int) -> int:
            return number

        @cluster.singleton("first")
        async def first(leader: Leader[None]) -> None:
            async with leader.transaction() as sql:
                self.tell("leader", await self.attempted(sql, send=True))
            await asyncio.Event().wait()

        @cluster.cron("yearly", "@yearly")
        async def yearly(tick: Tick) -> None:
            async with tick.transaction() as sql:
                found = await self.attempted(sql, send=True)
                found["Tick.step"] = await refusal(tick.step("inside", nothing))
                self.tell("tick", found)

        self.flow = flow
        self.other = cluster.ref(Asked, "other")
        self.table = cluster.ref(Table, "t")

    @property
    def handle(self) -> Any:
        return self.cluster.workflow_handle(self.flow, "before")

    def tell(self, who: str, found: dict[str, str]) -> None:
        if not self.told[who].done():
            self.told[who].set_result(found)

    async def attempted(self, sql: Transaction, *, send: bool = False) -> dict[str, str]:
        """What each verb is told while the transaction holds the locks of a write."""
        await sql.execute("insert into rows (id) values ((select count(*) from rows))")
        found = {name: await refusal(verb(self)) for name, verb in REFUSED.items()}
        await self.cluster.start_workflow(self.flow, 1, id="inside")
        if send:
            found["Cluster.send"] = await refusal(self.cluster.send(self.other.note()))
            found["Cluster.send_many"] = await refusal(self.cluster.send_many([self.other.note()]))
        return found


program: Program


async def nothing() -> None:
    """A step."""


async def refusal(verb: Awaitable[Any]) -> str:
    """How a verb was refused; what else came of it, if it was not."""
    try:
        async with asyncio.timeout(120):
            return f"it returned {await verb!r}"
    except RuntimeError as error:
        return str(error)
    except Exception as error:
        return f"it raised {error!r}"


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path}/work.db"


async def test_every_verb_that_writes_is_refused_at_once_while_a_transaction_is_open(place: str) -> None:
    """Of an entity, of a leader and of a tick."""
    global program
    program = Program(place)
    program.told = {who: asyncio.get_running_loop().create_future() for who in ("leader", "tick")}
    cluster = program.cluster
    async with asyncio.timeout(PROMPTLY_S), cluster:
        await program.table.create()
        await cluster.start_workflow(program.flow, 1, id="before")
        told = {"entity": await cluster.ref(Asked, "a").attempt()}
        await cluster.crons.trigger("yearly")
        told |= {who: await answer for who, answer in program.told.items()}
        assert await cluster.workflow_handle(program.flow, "inside").result() == 1, "all three have started the same"
    for who, found in told.items():
        expected = REFUSED.keys() | (SENT if who != "entity" else set()) | ({"Tick.step"} if who == "tick" else set())
        assert found.keys() == expected
        assert {name: text for name, text in found.items() if "has a transaction open" not in text} == {}, who


def test_the_table_knows_every_public_verb() -> None:
    """A new one must be put on either side."""
    known = {*REFUSED, *SENT, STARTED} | {f"{owner}.{name}" for owner, names in OTHERS.items() for name in names}
    classes = (Cluster, KeyValueStore, Messages, Runners, Singletons, Crons, Workflows, WorkflowHandle)
    public = {
        f"{cls.__name__}.{name}"
        for cls in classes
        for name, verb in vars(cls).items()
        if not name.startswith("_") and (inspect.iscoroutinefunction(verb) or inspect.isasyncgenfunction(verb))
    }
    assert public == known
