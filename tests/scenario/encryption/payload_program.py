"""A program that gives coterie a known text wherever a program can, and a look at everything that is stored."""

from __future__ import annotations

import asyncio
import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg
import pytest

from coterie import Cluster, Encrypted, Entity, Leader, Retry, Tick, Workflow, rpc
from coterie.kernel.ids import Seat
from coterie.runner import Runner
from coterie.singletons.definition import PREFIX
from coterie.storage.contracts.activity import Act
from coterie.storage.contracts.payloads import TABLES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

MARK = "what-only-the-user-knows"
KEYS = {"k1": bytes(range(32)), "k2": bytes(range(100, 132))}
FAST: dict[str, Any] = {"shards": 4, "http_listen": "off", "lease_renew": "200ms"}


def encrypted(current: str | None, *ids: str, plain: bool = False, compress: bool = False) -> Encrypted:
    """The keys of these ids, the current one included."""
    wanted = {*ids, *([current] if current else [])}
    return Encrypted(
        keys={name: KEYS[name] for name in sorted(wanted)}, current=current, plain=plain, compress=compress
    )


@dataclass
class Note:
    text: str = ""


class PayloadProgram:
    """A cluster whose program stores `MARK`, and the tokens of its deferreds."""

    def __init__(self, url: str, payloads: Encrypted | None, **settings: Any) -> None:
        self.cluster = cluster = Cluster(url, payloads=payloads, **{**FAST, **settings})
        self.tokens: dict[str, str] = {}

        @cluster.entity(retry=Retry(attempts=2, base="1ms"))
        class Account(Entity[Note]):
            @rpc(persisted=True, key="order")
            async def put(self, order: str, text: str) -> str:
                self.state.text = text
                return text + order

            @rpc(persisted=True)
            async def send_on(self, text: str) -> None:
                async with self.transaction():
                    await cluster.send(cluster.ref(Account, "later").put("sent-on", text), delay="1h")
                    await cluster.start_workflow(ship, text, id="from-transaction")

            @rpc(persisted=True)
            async def fail(self, text: str) -> None:
                raise ValueError(text)

        @cluster.singleton("importer", state=Note, every="1h")
        async def importer(leader: Leader[Note]) -> None:
            for number in range(3):
                async with leader.update() as state:
                    state.text = f"{MARK} {number}"
            leader.heartbeat(MARK)

        @cluster.singleton("failing", retry=Retry(base="1h", max="1h"))
        async def failing(leader: Leader[None]) -> None:
            raise ValueError(MARK)

        @cluster.cron("nightly", "0 3 1 1 *")
        async def nightly(tick: Tick) -> None:
            tick.heartbeat(MARK)
            await asyncio.sleep(0.05)
            raise ValueError(MARK)

        async def charge(text: str) -> str:
            return text

        async def refuse(text: str) -> str:
            raise ValueError(text)

        @cluster.workflow(retry=Retry.never)
        async def ship(workflow: Workflow, text: str) -> str:
            await workflow.step("charge", charge, text)
            with pytest.raises(Exception, match=MARK):
                await workflow.step("refuse", refuse, text)
            for name in ("paid", "lost"):
                self.tokens[f"{workflow.id} {name}"] = workflow.deferred(name, str).token
            await workflow.child(reverse, text, id=f"child of {workflow.id}")
            await workflow.publish("status", text)
            await workflow.sleep("1h", name="long")
            return text

        @cluster.workflow
        async def reverse(workflow: Workflow, text: str) -> str:
            return text

        @cluster.workflow(retry=Retry.never)
        async def refused(workflow: Workflow, text: str) -> str:
            raise ValueError(text)

        @cluster.workflow
        async def wrong(workflow: Workflow, text: str) -> str:
            raise NameError(text)

        @cluster.task(retry=Retry.never)
        async def label(text: str) -> str:
            return text

        @cluster.task(retry=Retry.never)
        async def tear(text: str) -> None:
            raise ValueError(text)

        self.label, self.tear, self.wrong = label, tear, wrong
        self.account, self.ship, self.reverse, self.refused = Account, ship, reverse, refused

    async def use_everything(self) -> None:
        """Store the text in every way. The cluster is started."""
        cluster = self.cluster
        await cluster.ready()
        account = cluster.ref(self.account, "a")
        assert await account.put("o1", MARK) == MARK + "o1"
        await account.send_on(MARK)
        await cluster.send_many(account.put(f"many-{number}", MARK) for number in range(3))
        dead = await cluster.send(account.fail(MARK))
        await until(lambda: self._is_dead(dead))
        await cluster.schedules.put("yearly", "0 3 1 1 *", account.fail(MARK))
        await cluster.kv.set("greeting", MARK)
        await cluster.kv.modify("counted", lambda _: MARK)
        failed = await cluster.start_workflow(self.refused, MARK, id="1")
        await until(lambda: self._has_ended(failed))
        await until(self._has_tokens)
        assert await self.label.job(MARK) == MARK
        torn = await cluster.send(self.tear.job(MARK))
        await until(lambda: self._is_dead_job(torn))
        shipped = cluster.workflow_handle(self.ship, "from-transaction")
        await shipped.send("never received", MARK)
        await cluster.start_workflow(self.ship, MARK, id="from-transaction", debounce="1h")  # kept as its next life
        await cluster.resolve(self.tokens["from-transaction paid"], MARK)
        await cluster.reject(self.tokens["from-transaction lost"], MARK)
        stuck = await cluster.start_workflow(self.wrong, MARK, id="1")
        await until(lambda: self._is_suspended(stuck))
        await cluster.crons.trigger("nightly")
        await until(self._has_failed_tick)
        await until(self._has_led)
        await self._set_aside()
        await cluster._acting().record(Act(who="w", origin="o", act="a", what="b", result=MARK))

    async def read_everything(self) -> None:
        """Read what was stored, by the public API."""
        cluster = self.cluster
        account = cluster.ref(self.account, "a")
        assert await account.put("o1", MARK) == MARK + "o1"
        (dead,) = await cluster.messages.list(status="dead")
        assert MARK in dead.errors[-1].error
        assert (await cluster.kv.get("greeting"), await cluster.kv.get("counted")) == (MARK, MARK)
        assert (await cluster.singletons.state("importer", Note)) == Note(f"{MARK} 2")
        assert len(await cluster.singletons.history("importer")) >= 3
        assert {each.last_error and MARK in each.last_error for each in await cluster.singletons.list()} == {None, True}
        (job,) = await cluster.jobs.list(state="dead")
        assert MARK in job.errors[-1].error
        shipped = cluster.workflow_handle(self.ship, "from-transaction")
        assert await shipped.published("status", str) == MARK
        (tick,) = await cluster.crons.history("nightly")
        assert MARK in str(tick)
        assert (await cluster.workflow_handle(self.reverse, "child of from-transaction").result()) == MARK
        steps = await cluster._acting().storage.units.records("workflow:ship/from-transaction")
        assert sum(MARK.encode() in ((each.value or b"") + (each.error or b"")) for each in steps) >= 3

    async def _is_dead(self, id: Any) -> bool:
        return [each.id for each in await self.cluster.messages.list(status="dead")] == [id]

    async def _is_dead_job(self, id: Any) -> bool:
        return [each.id for each in await self.cluster.jobs.list(state="dead")] == [id]

    async def _has_ended(self, handle: Any) -> bool:
        return bool(await handle.status() == "failed")

    async def _is_suspended(self, handle: Any) -> bool:
        return bool(await handle.status() == "suspended")

    async def _has_tokens(self) -> bool:
        return len(self.tokens) == 2

    async def _has_failed_tick(self) -> bool:
        return any(each.failures for each in await self.cluster.crons.list())

    async def _has_led(self) -> bool:
        infos = {each.name: each for each in await self.cluster.singletons.list()}
        return bool(infos["importer"].note and infos["failing"].last_error)

    async def _set_aside(self) -> None:
        here = self.cluster._acting()
        assert isinstance(here, Runner)
        tenure = here.tenure(Seat.singleton("importer"))
        assert tenure is not None
        assert await here.storage.states.set_aside(tenure.claim, PREFIX + "importer", MARK)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(120):
        while not await condition():
            await asyncio.sleep(0.02)


async def columns_with(url: str, text: str) -> set[str]:
    """The columns of all tables in which a text stands, as it is: `messages.payload`."""
    if url.startswith("sqlite"):
        return _columns_of_file(url.removeprefix("sqlite:///"), text.encode())
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch("select tablename from pg_tables where schemaname = 'coterie'")
        found: set[str] = set()
        for (table,) in tables:
            for row in await connection.fetch(f"select * from coterie.{table}"):
                found |= {f"{table}.{name}" for name, value in row.items() if text.encode() in as_bytes(value)}
        return found
    finally:
        await connection.close()


def _columns_of_file(path: str, text: bytes) -> set[str]:
    file = apsw.Connection(path)
    try:
        tables = [name for (name,) in file.execute("select name from sqlite_schema where type = 'table'")]
        return {
            f"{table}.{column[0]}"
            for table in tables
            for cursor in [file.execute(f"select * from {table}")]
            for row in cursor
            for column, value in zip(cursor.get_description(), row, strict=True)
            if text in as_bytes(value)
        }
    finally:
        file.close()


def as_bytes(value: object) -> bytes:
    """Of a value of a database."""
    return (
        value
        if isinstance(value, bytes)
        else value.encode()
        if isinstance(value, str)
        else json.dumps(str(value)).encode()
    )


def files_with(folder: Path, text: str) -> list[str]:
    """The files below a folder in which a text stands. Another process looks: ours may have them open."""
    found = subprocess.run(["grep", "-rlaF", text, str(folder)], capture_output=True, text=True, check=False)
    assert found.returncode < 2, found.stderr
    return found.stdout.splitlines()


def columns_of_users() -> set[str]:
    """The columns that this program fills; those of hashes apart, where its text does not stand as it is.

    How far a job is stands there only while it runs: `tests/contract/test_jobs_ends.py` does that with keys.
    """
    hashed = {"messages.digest", "jobs.digest", "run_messages.digest", "steps.digest"}
    columns = {f"{table.name}.{column}" for table in TABLES for column in table.values}
    return columns - hashed - {"job_progress.note"}
