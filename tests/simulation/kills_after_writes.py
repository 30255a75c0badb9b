"""A program that writes in every way there is, and a kill just after any one of its commits: before the next one.

`PROCEDURES` names what makes two or more commits in a row. What must hold wherever it is cut in two is judged while it
runs: a step that was ever stored runs never again, also after its unit is over; and at the end, when all work is done.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie import (
    AlreadyResolved,
    Cluster,
    CoterieError,
    Entity,
    Leader,
    PersistenceError,
    Snooze,
    Tick,
    Workflow,
    WorkflowFailed,
    WorkflowInterrupted,
    rpc,
)
from coterie.kernel.ids import Seat
from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.sqlite import database, ownership
from coterie.storage.sqlite.storage import SqliteStorage
from coterie.testing.database import SimulatedDatabase
from coterie.testing.simulation import Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCEDURES = {
    "a runner appears: its lease, then its row": ("agree on settings", "register runner lease", "register runner"),
    "a runner is deleted: its row, then its lease": ("delete runner", "delete runner lease"),
    "a runner leaves: its seats, then itself": ("release seat", "delete runner", "delete runner lease"),
    "a runner takes seats": ("acquire seats", "look after crons", "look after workflows", "begin to lead"),
    "a runner draws ids: its machine id, then its mark": ("lease a machine id", "extend machine id"),
    "a tick is claimed, stepped, ends, and then its steps go": (
        "TickClaim",
        "open",
        "StepWrite of a cron",
        "TickNote",
        "UnitEnd of a cron",
    ),
    "a leader introduces itself, loads its state, saves it": ("begin to lead", "load", "StateSave", "Stamp"),
    "a unit of a leader begins, is stepped and ends": ("open", "StepWrite of a singleton", "UnitEnd of a singleton"),
    "a message fails or is put off, then is done, and what it sends": ("Setback", "Commit"),
    "a timer is set, fires, and its message runs": ("Commit", "fire schedules"),
    "a workflow fails, then its children end": ("UnitEnd of a shard", "look after children"),
    "a workflow is stepped, starts a child, is suspended, ends": (
        "StepWrite of a shard",
        "start",
        "suspend",
        "UnitEnd of a shard",
    ),
    "a workflow receives, races, gives back what the loser has received, publishes": (
        "receive a message",
        "give back messages",
        "publish a value",
    ),
}
"""What one procedure commits in a row, by labels (`label`): the kinds of writes that share a group, or what is done.

A commit by a client (a message stored, a workflow started, a deferred resolved) is one by itself; what follows is a
hint, which may be lost. A renewal is one, too.
"""
ALONE = {"renew the lease"}
_OPERATED = "one commit, asked for by people or by a client; what follows is a hint"
_PRUNED = "one commit of a pruner, which goes on with the next pass"
_AFTER_LOSS = "only after a kill: the workloads of the simulator kill there again and again"
_DEPLOYED = "only with another program, and one commit: the interleavings play it against all others"
_KEYS = "one commit, and its outcome is asked for by its stamp: tests/simulation/workloads/kv.py"
_OTHERWISE = "the same as another statement, for many rows at once"
_NO_JOBS = "no runner runs jobs yet"
NOT_RUN = {
    "activity": {"add": _OPERATED, "purge": _PRUNED},
    "jobs": dict.fromkeys(("insert", "tag", "end", "set_back", "mature", "claim"), _NO_JOBS)
    | dict.fromkeys(("give_back", "end_cancelled", "note_progress", "park", "unpark"), _NO_JOBS)
    | dict.fromkeys(("date_losses", "lose", "count_lost"), _AFTER_LOSS)
    | {"cancelling": _OPERATED, "revive": _OPERATED, "remove": _OPERATED, "purge": _PRUNED},
    "kv": dict.fromkeys(("put", "insert_absent", "replace", "remove_expected", "remove", "clear"), _KEYS)
    | {"purge": _PRUNED},
    "leading": {"forget": _PRUNED, "remove": _PRUNED, "set_aside": "one commit, when a state cannot be read"},
    "later": {
        "keep_start": _OPERATED,
        "push_start": _OPERATED,
        "begin_kept": "one commit of a holder, which looks again",
    },
    "lives": dict.fromkeys(("start_again", "retry", "forget_step", "forget_value", "copy"), _OPERATED)
    | {"renew": "one commit of a holder: tests/scenario/workflows/test_lives.py kills there"},
    "messages": dict.fromkeys(("cancel", "cancel_free", "revive", "revive_entity", "hasten", "remove"), _OPERATED)
    | dict.fromkeys(("suspect", "mark", "lose"), _AFTER_LOSS)
    | {"complete_all": _OTHERWISE, "discard": _OPERATED, "purge": _PRUNED},
    "ownership": {"learn": _DEPLOYED, "redefine": _DEPLOYED, "note": "part of the commit that it is a note of"},
    "pauses": dict.fromkeys(("store", "remove", "renew_stamps"), _OPERATED),
    "payloads": {
        "add_key": "one commit, at the first start with a key",
        "rewrite": "one commit of a command, which goes on with the next page, and may begin anew",
        "remove_key": "one commit of that command",
    },
    "queues": {"store": _NO_JOBS, "spend": _NO_JOBS},
    "run_messages": {"purge_received": _PRUNED, "purge_early": _PRUNED},
    "schedules": dict.fromkeys(("pause", "swap"), _OPERATED) | {"purge": _PRUNED},
    "schema": {"record": "a migration, in one transaction"},
    "secrets": {"draw": "one commit, at the first start"},
    "states": {"delete": "by forget(), in the commit of its message", "update_all": _OTHERWISE},
    "ticks": dict.fromkeys(("pause", "resume", "trigger"), _OPERATED)
    | {"adopt": _AFTER_LOSS, "begin": "part of the claim of a tick", "purge": _PRUNED, "purge_pauses": _PRUNED},
    "units": {"interrupt": _OPERATED, "resume": _OPERATED, "purge_early": _PRUNED, "reopen": _AFTER_LOSS}
    | dict.fromkeys(("forget_run_messages", "forget_published"), _PRUNED),
}
"""Statements that write and are not run here, by their file: why no kill after them is needed here."""
DEPOSITS = 4
FAILING = "2"
"""The deposit whose first attempt fails."""
SNOOZING = "3"
"""The deposit that is put off once."""


@dataclass
class Ledger:
    """What happened in one run.

    Attributes:
        labels: What was committed, in order, by runners.
        stored: Steps that were ever stored, by name.
        again: Steps that ran after that.
        texts: The statements that were run.
    """

    labels: list[str] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    again: list[str] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    ids: list[int] = field(default_factory=list)

    async def do(self, name: str) -> str:
        """A step."""
        self.ran.append(name)
        if name in self.stored:
            self.again.append(name)
        return name


@dataclass
class Account:
    """What an entity keeps."""

    total: int = 0
    told: list[str] = field(default_factory=list)
    """The deposits of which a timer has told."""


@dataclass
class Progress:
    """What a leader keeps."""

    n: int = 0


def new_program(ledger: Ledger) -> tuple[Cluster, Any, Any]:
    """A cron, a singleton, an entity and workflows; all steps have names of their own."""
    cluster = Cluster("sqlite://", shards=2, drain="3s")

    @cluster.cron("bell", "@every 5s", catch_up="all")
    async def ring(tick: Tick) -> None:
        for part in ("first", "second"):
            name = f"bell {tick.scheduled_at:%H:%M:%S} {part}"
            await tick.step(name, ledger.do, name)

    @cluster.singleton("clerk", state=Progress)
    async def lead(leader: Leader[Progress]) -> None:
        if ledger.saved and leader.state.n < ledger.saved[-1]:
            ledger.lost.append(f"saved {ledger.saved[-1]}, loaded {leader.state.n}")
        while True:
            async with leader.update() as state:
                state.n += 1
            ledger.saved.append(leader.state.n)
            ledger.ids.append(await cluster.next_id())
            async with leader.unit(f"page {leader.state.n}") as unit:
                name = f"clerk {leader.state.n}"
                await unit.step(name, ledger.do, name)
            await asyncio.sleep(3)

    @cluster.entity
    class Teller(Entity[Account]):
        @rpc(persisted=True, key="number")
        async def deposit(self, number: str, to: str) -> int:
            if number == FAILING and to and number not in ledger.failed:
                ledger.failed.add(number)
                raise ConnectionError("it works the next time")
            if number == SNOOZING and to and number not in ledger.failed:
                ledger.failed.add(number)
                raise Snooze("1s")
            self.state.total += 1
            if to:
                await cluster.send(cluster.ref(Teller, to).deposit(number, ""))
                self.timer(f"tell {number}", self.me.tell(number), after="1s")
            return self.state.total

        @rpc(persisted=True)
        async def tell(self, number: str) -> None:
            self.state.told.append(number)

        @rpc
        async def total(self) -> int:
            return self.state.total

        @rpc
        async def told(self) -> list[str]:
            return self.state.told

    @cluster.workflow
    async def leaf(workflow: Workflow, run: str) -> str:
        return await workflow.step(f"leaf {run}", ledger.do, f"leaf {run}")

    @cluster.workflow
    async def trunk(workflow: Workflow, run: str) -> str:
        await workflow.step(f"trunk {run}", ledger.do, f"trunk {run}")
        await workflow.child(leaf, run, id=run)
        go = workflow.deferred("go", str)
        ledger.tokens[run] = go.token

        async def keep_note() -> None:
            await workflow.receive("note", str)
            await workflow.sleep("1h", name="with the note")

        await workflow.first(keep_note(), go.wait(), name="race")
        await workflow.publish("note", await workflow.receive("note", str))
        return await workflow.step(f"end {run}", ledger.do, f"end {run}")

    @cluster.workflow
    async def twig(workflow: Workflow, run: str) -> None:
        await workflow.sleep("1h", name="until it is interrupted")

    @cluster.workflow
    async def broken(workflow: Workflow, run: str) -> None:
        workflow.compensate("undo", ledger.do, f"undo {run}")
        await asyncio.gather(workflow.child(twig, run, id=run), _fail(workflow))

    return cluster, Teller, (trunk, broken, twig)


async def _fail(workflow: Workflow) -> None:
    await workflow.sleep("2s", name="until there is a child")
    raise ValueError("on purpose")


class Killer:
    """Kills the runner that has just made a commit of one label, the n-th of them, before it is told."""

    def __init__(self, ledger: Ledger, sim: Simulation, at: tuple[str, int] | None) -> None:
        self._ledger = ledger
        self._sim = sim
        self._kind, self._left = at or ("", 0)
        self._host = ""
        self._kinds = ""
        self.killed = ""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While it is, every commit of a runner is seen."""
        execute, closed = SimulatedDatabase._execute, SqliteStorage._run_closed
        run, in_transaction = SqliteStorage._run, SqliteStorage._run_in_transaction

        def executed(database: SimulatedDatabase, request: Any) -> Any:
            self._host, self._kinds = request.executor.host, ""
            return execute(database, request)

        def seen(group: Any, results: Any) -> Any:
            self._kinds = "+".join(sorted({kind_of(write) for write in group}))
            return results

        def at_once(storage: SqliteStorage, connection: Any, group: Any) -> Any:
            return seen(group, closed(storage, connection, group))

        def one_by_one(storage: SqliteStorage, connection: Any, group: Any, batches: Any) -> Any:
            return seen(group, run(storage, connection, group, batches))

        def with_sql(storage: SqliteStorage, connection: Any, write: Any, starts: Any) -> Any:
            return seen([write], in_transaction(storage, connection, write, starts))

        def traced(_: Any, text: str, __: Any) -> bool:
            self._ledger.texts.add(text)
            return True

        for connection in (self._sim.database.main, self._sim.database.leases):
            connection.exec_trace = traced
        with (
            patch.object(SimulatedDatabase, "_execute", executed),
            patch.object(SqliteStorage, "_run_closed", at_once),
            patch.object(SqliteStorage, "_run", one_by_one),
            patch.object(SqliteStorage, "_run_in_transaction", with_sql),
            patch.object(database, "commit", self._commit),
            patch.object(ownership, "commit", self._commit),
        ):
            yield

    def _commit(self, connection: Any, *, doing: str, right: Any = database.commit) -> None:
        database = self._sim.database
        right(connection, doing=doing)
        self._ledger.stored |= {name for (name,) in database.main.execute("select name from steps where done")}
        runner = next((each for each in self._sim.runners if each.alive and each.name == self._host), None)
        if runner is None:
            return
        said = self._kinds or label(doing)
        if connection is database.leases and said != "renew the lease":
            said += " lease"
        self._ledger.labels.append(said)
        if self._kind in said.split("+"):
            self._left -= 1
            if self._left == 0:
                self.killed = runner.name
                runner.kill()
                raise PersistenceError(doing=doing, problem="its process was killed", outcome="unknown")


def kind_of(write: Any) -> str:
    """The kind of a write; of durable work, whose it is."""
    name = type(write).__name__
    return f"{name} of a {Seat.split(write.claim.seat)[0]}" if isinstance(write, StepWrite | UnitEnd) else name


def label(doing: str) -> str:
    """What a commit is about, without the names in it."""
    plain = re.sub(r"['\"].*", "", doing).strip()
    return re.sub(
        r"^(register runner|delete runner|release seat|extend machine id|give back machine id) .*", r"\1", plain
    )


async def play(at: tuple[str, int] | None, *, at_most: bool = False) -> Ledger:
    """Run the program to the end of all its work, with one kill; at most, if there are not so many such commits."""
    ledger = Ledger()
    cluster, teller, (trunk, broken, twig) = new_program(ledger)

    async def deposit(number: str) -> None:
        await cluster.send(cluster.ref(teller, "a").deposit(number, "b"))

    async with simulate(cluster, runners=0) as sim:
        killer = Killer(ledger, sim, at)
        with killer.installed():
            await sim.start(3)
            await sim.advance(1)
            sim.runners[2].kill()
            put = partial(cluster.schedules.put, "bell", "@every 5s")
            await _insist(lambda: put(cluster.ref(teller, "c").tell("bell")))
            handles = [await cluster.start_workflow(trunk, run, id=run) for run in ("1", "2")]
            failing = await cluster.start_workflow(broken, "3", id="3")
            for number in range(DEPOSITS):
                await _insist(partial(deposit, str(number)))
            for run in ("1", "2"):
                await sim.wait_until(partial(ledger.tokens.__contains__, run), within="60s")
                await _insist(partial(handles[int(run) - 1].send, "note", run, key="note"))
                await sim.advance(3)  # it is suspended meanwhile
                await _insist(partial(cluster.resolve, ledger.tokens[run], "go"))
            await sim.advance(8)
            await sim.start(1)
            await next(runner for runner in sim.runners if runner.alive).stop()
            results = [await handle.result(timeout="60s") for handle in handles]
            notes = [await _insist(partial(handle.published, "note", str)) for handle in handles]
            ends = [await _end(failing), await _end(cluster.workflow_handle(twig, "3"))]
            await sim.advance(10)
            totals = [await _insist(cluster.ref(teller, who).total) for who in ("a", "b")]  # it may load the state
            told, rung = [await _insist(cluster.ref(teller, who).told) for who in ("a", "c")]
            ticks = await cluster.crons.history("bell")
    assert at is None or at_most or killer.killed, f"nothing was killed at {at}: {sorted(set(ledger.labels))}"
    assert ledger.again == [], "a step that was stored ran again"
    assert ledger.lost == []
    assert results == ["end 1", "end 2"]
    assert notes == ["1", "2"], "a loser of a race gives back what it has received"
    assert ends == ["failed", "interrupted"]
    assert "undo 3" in ledger.ran
    assert len(ledger.ids) == len(set(ledger.ids))
    assert totals == [DEPOSITS, DEPOSITS]
    assert sorted(told) == [str(number) for number in range(DEPOSITS)]
    assert len(rung) > 3
    assert {tick.outcome for tick in ticks if tick.outcome} == {"ran"}
    return ledger


async def _end(handle: Any) -> str:
    try:
        return f"done: {await handle.result(timeout='60s')}"
    except (WorkflowFailed, WorkflowInterrupted) as error:
        return "failed" if isinstance(error, WorkflowFailed) else "interrupted"


async def _insist(ask: Any) -> Any:
    while True:
        try:
            return await ask()
        except AlreadyResolved:
            return None
        except CoterieError:
            await asyncio.sleep(0.1)
