"""What long and many runs cost: a map beside a gather, a run of 10,000 steps that is called again, 100,000 that wait.

The suspended runs are copies of one that sleeps: its rows are inserted with other ids. Each sleeps for a day, but
some until the same instant soon, and the time is taken from there until they have ended.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import apsw
import asyncpg

from bench.measure import Row
from bench.ownership import Limit
from coterie import Cluster, Workflow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Execute = Callable[[str], Awaitable[Any]]

MAPPED = 1_000
GOAL_MAP = 0.7
REPLAYED = 10_000
REPLAY_S = 1.0
SUSPENDED = 100_000
START_S = 2.0
"""How much longer a runner may take to start beside so many."""
DUE = 2_000
DUE_S = 5.0
LEAD_S = 10.0
"""How long before they are due the runner is started."""
BRANCHES = 100


async def run(engine: str, url: str, *, quick: bool) -> AsyncIterator[Row]:
    """The rows of one engine, in an empty database. A quick look has fewer runs, and the same limits for them."""
    rounds = 2 if quick else 5
    suspended, due = (10_000, 500) if quick else (SUSPENDED, DUE)
    program = _Program(url)
    async with program.cluster:
        await program.cluster.ready()
        yield await _map(f"map / gather, {engine}", program, rounds)
        yield await _replay(f"replay, {engine}", program, REPLAYED)
    began = time.perf_counter()
    async with program.cluster:
        await program.cluster.ready()
        empty_s = time.perf_counter() - began
        run = await program.cluster.start_workflow(program.sleeper, 0, id="0")
        while await run.status() != "suspended":
            await asyncio.sleep(0.05)
    async with _sql(url) as execute:
        await _copied(execute, program, suspended)
        due_at = await _set_due(execute, program, due)
        began = time.perf_counter()
        async with program.cluster:
            await program.cluster.ready()
            more_s = time.perf_counter() - began - empty_s
            yield _limit(f"start beside suspended, {engine}", suspended, max(more_s, 0.001), START_S)
            yield _limit(f"due at once, {engine}", due, await _ended(execute, program, due, due_at), DUE_S)


class _Program:
    def __init__(self, url: str) -> None:
        self.is_sqlite = url.startswith("sqlite")
        self.cluster = Cluster(url)
        self.mapper = self.cluster.workflow(name="mapper")(self._mapper)
        self.gatherer = self.cluster.workflow(name="gatherer")(self._gatherer)
        self.long = self.cluster.workflow(name="long")(self._long)
        self.sleeper = self.cluster.workflow(name="sleeper")(self._sleeper)
        self.called_at: list[float] = []
        self.there_at: list[float] = []
        self.awake = 0

    async def _mapper(self, workflow: Workflow, items: int) -> None:
        await workflow.map(_step, range(items), limit=items)

    async def _gatherer(self, workflow: Workflow, items: int) -> None:
        await asyncio.gather(*(workflow.step(f"step {number}", _step, number) for number in range(items)))

    async def _long(self, workflow: Workflow, steps: int) -> None:
        """So many steps, in branches so that the first time does not take a minute, and then a message."""
        self.called_at.append(time.perf_counter())

        async def branch(first: int) -> None:
            for number in range(first, steps, BRANCHES):
                await workflow.step(f"step {number}", _step, number)

        await asyncio.gather(*(branch(first) for first in range(BRANCHES)))
        self.there_at.append(time.perf_counter())
        await workflow.receive("go", str)

    async def _sleeper(self, workflow: Workflow, payload: int) -> None:
        del payload
        await workflow.sleep("1d", name="a day")
        self.awake += 1


async def _step(number: int) -> int:
    return number


async def _map(scenario: str, program: _Program, rounds: int) -> Row:
    rates: dict[str, list[float]] = {"mapper": [], "gatherer": []}
    for number in range(rounds + 1):
        for body in (program.gatherer, program.mapper):
            began = time.perf_counter()
            run = await program.cluster.start_workflow(body, MAPPED, id=f"{number}")
            await run.result(timeout="5m")
            rates["mapper" if body is program.mapper else "gatherer"].append(MAPPED / (time.perf_counter() - began))
    pairs = list(zip(rates["mapper"][1:], rates["gatherer"][1:], strict=True))
    ratio = sorted(ours / base for ours, base in pairs)[len(pairs) // 2]
    return Row(scenario, MAPPED, max(rates["mapper"]), max(rates["gatherer"]), ratio, GOAL_MAP)


async def _replay(scenario: str, program: _Program, steps: int) -> Row:
    """From the message that wakes it until it is over: load, call the function, go past all steps, take the message."""
    run = await program.cluster.start_workflow(program.long, steps, id="long")
    while await run.status() != "suspended":
        await asyncio.sleep(0.1)
    began = time.perf_counter()
    await run.send("go", "on")
    await run.result(timeout="5m")
    return _limit(scenario, steps, time.perf_counter() - began, REPLAY_S)


async def _copied(execute: Execute, program: _Program, count: int) -> None:
    """Insert copies of the rows of run 0, each on the seat of its id."""
    kind = program.cluster._program.workflows.of(program.sleeper)
    shards = program.cluster.settings.shards
    schema = "" if program.is_sqlite else "coterie."
    await execute("create table wanted (unit text, id text, seat text)")
    for first in range(1, count + 1, 1_000):
        ids = [str(number) for number in range(first, min(first + 1_000, count + 1))]
        values = ", ".join(f"('{kind.unit(number)}', '{number}', '{kind.seat(number, shards)}')" for number in ids)
        await execute(f"insert into wanted values {values}")
    for table in ("units", "steps"):
        columns = await _columns(execute, table, is_sqlite=program.is_sqlite)
        chosen = ", ".join(
            f"w.{name}" if name in ("unit", "id", "seat") and (table, name) != ("steps", "id") else f"t.{name}"
            for name in columns
        )
        await execute(
            f"insert into {schema}{table} ({', '.join(columns)}) "
            f"select {chosen} from {schema}{table} as t cross join wanted as w where t.unit = '{kind.unit('0')}'"
        )
    await execute("analyze")


async def _columns(execute: Execute, table: str, *, is_sqlite: bool) -> list[str]:
    if is_sqlite:
        return [name for (name,) in await execute(f"select name from pragma_table_info('{table}')")]
    found = await execute(
        f"select column_name from information_schema.columns where table_schema = 'coterie' "
        f"and table_name = '{table}' and is_generated = 'NEVER'"
    )
    return [row[0] for row in found]


async def _set_due(execute: Execute, program: _Program, count: int) -> float:
    """Make so many of them due at one instant soon, and return it."""
    due_at = time.time() + LEAD_S
    schema, suffix, there = ("", "_ns", f"{int(due_at * 1e9)}")
    if not program.is_sqlite:
        schema, suffix, there = "coterie.", "", f"to_timestamp({due_at})"
    await execute(f"update {schema}steps set due_at{suffix} = {there} where {_some(count)}")
    await execute(f"update {schema}units set wake_at{suffix} = {there} where {_some(count)}")
    return due_at


async def _ended(execute: Execute, program: _Program, count: int, due_at: float) -> float:
    """How long it takes until they have ended, from when they are due, or from now if that is later."""
    began = max(due_at, time.time())
    table = "units" if program.is_sqlite else "coterie.units"
    query = f"select count(*) from {table} where status = 'done' and {_some(count)}"
    async with asyncio.timeout(300):
        while program.awake < count or (await execute(query))[0][0] < count:
            await asyncio.sleep(0.05)
    return time.time() - began


def _some(count: int) -> str:
    return f"unit in (select unit from wanted order by unit limit {count})"


def _limit(scenario: str, callers: int, took_s: float, most_s: float) -> Limit:
    return Limit(scenario, callers, 0, 0, most_s / took_s, 1, took_s, took_s, "s")


@asynccontextmanager
async def _sql(url: str) -> AsyncIterator[Execute]:
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.set_busy_timeout(60_000)

        async def execute(sql: str) -> Any:
            return await asyncio.to_thread(lambda: list(connection.execute(sql)))

        yield execute
        connection.close()
        return
    session = await asyncpg.connect(url)
    yield lambda sql: session.fetch(sql)
    await session.close()
