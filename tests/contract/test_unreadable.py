"""Every column of every table made unreadable, one at a time: the row is left out alone, and its neighbours are read.

What the schema refuses cannot be stored, and is not tried. Whatever else is in a column, reading raises nothing and
the rows beside it are there.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

import apsw
import asyncpg
import pytest

import coterie
from coterie.kernel import metrics
from coterie.kernel.ids import Seat
from coterie.storage import unreadable_rows
from coterie.storage.contracts.activity import Act
from coterie.storage.contracts.executions import Stamp
from coterie.storage.contracts.jobs import JobClaim, JobFilter, JobInsert, JobProgress
from coterie.storage.contracts.messages import MessageFilter, Setback
from coterie.storage.contracts.schedules import SCHEDULE as PREFIX
from coterie.storage.contracts.schedules import schedule_key
from coterie.storage.contracts.ticks import CronTakeover, TickClaim, Verdict
from coterie.storage.interface import Claim, KvPut, Registration, SeatDeclaration, StateSave
from tests.contract.jobs import job
from tests.contract.messages import S1, S2, A, B, id_of, message
from tests.contract.schedules import row as schedule
from tests.contract.ticks import CRON_A, CRON_B, FINGERPRINT, SCHEDULE, at
from tests.contract.units import new_start, step_write, unit_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from coterie.storage.interface import Ownership, Storage

TABLES = {
    "runners": ("id", B),
    "leases": ("id", B),
    "seats": ("name", S2),
    "fingerprints": ("seat", Seat.cron(CRON_A)),
    "messages": ("id", id_of(1)),
    "message_tags": ("message", id_of(1)),
    "jobs": ("id", id_of(1)),
    "job_tags": ("job", id_of(1)),
    "job_progress": ("job", id_of(1)),
    "queues": ("seat", S2),
    "crons": ("name", CRON_A),
    "cron_pauses": ("name", CRON_A),
    "ticks": ("name", CRON_A),
    "pauses": ("name", "one"),
    "units": ("unit", unit_key("one")),
    "unit_tags": ("unit", unit_key("one")),
    "steps": ("unit", unit_key("one")),
    "deferreds": ("unit", unit_key("one")),
    "executions": ("seat", "singleton:one"),
    "states": ("key", "one"),
    "state_history": ("key", "one"),
    "kv": ("key", "one"),
    "machines": ("holder", B),
    "activity": ("what", "one"),
    "incoming": ("id", "w1"),
    "schedules": ("key", schedule_key("one")),
}
"""Of each table the column and the value by which the row is found that is made unreadable; another is beside it."""
INCOMING = (
    "insert into incoming (cluster, id, kind, type, entity, method, args, sent_at, due_at)"
    " values ('default', 'w{}', 'call', 'Account', 'alice', 'note', '{{}}', now(), now())"
)
SEVERAL = {
    "cron_pauses",
    "crons",
    "deferreds",
    "fingerprints",
    "job_progress",
    "job_tags",
    "message_tags",
    "state_history",
    "steps",
    "ticks",
    "unit_tags",
}
"""Where there may be several such rows, or another one comes in its place; nobody refers to them."""
NOT_IN_A_FILE = {"generations", "incoming", "run_inboxes"}
"""It has no failovers, and nobody but coterie writes it."""
LEFT_OUT = {"agreements", "audit", "generations", "migrations", "published", "run_inboxes", "run_messages", "secrets"}
"""Read as a whole at the start, where what is wrong refuses the start; the audit by `coterie check` alone; what was
sent to a run, and what it publishes, for this run alone."""

POSTGRES: dict[str, list[str]] = {
    "text": ["''", "'odd'", "'shard:default:odd'", "'[1'"],
    "timestamp with time zone": ["'0044-03-15 00:00 BC'", "'-infinity'", "'infinity'", "'20000-01-01'"],
    "bigint": ["-1", "9223372036854775807"],
    "integer": ["-1", "2147483647"],
    "smallint": ["-1", "7"],
    "double precision": ["'NaN'", "'Infinity'", "-1"],
    "boolean": ["true"],
    "bytea": ["''", "'\\xc1'"],
    "jsonb": ["'1'", "'null'", "'[1]'", "'{\"a\": 1}'"],
    "ARRAY": ["'{null}'", "'{}'", "'{{a},{b}}'"],
}
SQLITE: dict[str, list[str]] = {
    "TEXT": ["''", "'odd'", "'shard:default:odd'", "'[1'", "'1'", "'[1]'", "'{\"a\": 1}'"],
    "INTEGER": ["-1", "7", "9223372036854775807", "-9223372036854775808"],
    "REAL": ["9e999", "-1"],
    "BLOB": ["x''", "x'c1'"],
}


class TableWriter(Protocol):
    """Writes to tables as nobody of ours does."""

    async def tables(self) -> set[str]: ...
    async def columns(self, table: str) -> list[tuple[str, str]]: ...
    async def run(self, sql: str) -> Sequence[Any] | None:
        """Its rows; None: the schema refuses it."""
        ...


class PostgresTableWriter:
    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection

    async def tables(self) -> set[str]:
        sql = "select table_name from information_schema.tables where table_schema = 'coterie'"
        return {row[0] for row in await self._connection.fetch(sql)}

    async def columns(self, table: str) -> list[tuple[str, str]]:
        sql = "select column_name, data_type from information_schema.columns where table_name = $1"
        return [(row[0], row[1]) for row in await self._connection.fetch(sql, table)]

    async def run(self, sql: str) -> Sequence[Any] | None:
        try:
            return await self._connection.fetch(sql)
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.GeneratedAlwaysError):
            return None


class SqliteTableWriter:
    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    async def tables(self) -> set[str]:
        every = "select name, type from sqlite_schema union all select name, type from beside.sqlite_schema"
        sql = f"select name from ({every}) where type = 'table' and name not like 'sqlite_%'"
        return {row[0] for row in self._connection.execute(sql)}

    async def columns(self, table: str) -> list[tuple[str, str]]:
        return [(row[1], row[2]) for row in self._connection.execute(f"pragma table_info({table})")]

    async def run(self, sql: str) -> Sequence[Any] | None:
        try:
            return self._connection.execute(sql).fetchall()
        except (apsw.ConstraintError, apsw.MismatchError):
            return None
        except apsw.SQLError as error:
            if "malformed JSON" not in str(error):
                raise
            return None  # a trigger stores the tags in it


@asynccontextmanager
async def hand_on(url: str) -> AsyncIterator[TableWriter]:
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        file.set_busy_timeout(10_000)
        file.execute("attach database ? as beside", (f"{url.removeprefix('sqlite:///')}-leases",))
        try:
            yield SqliteTableWriter(file)
        finally:
            file.close()
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("set search_path to coterie")
        yield PostgresTableWriter(connection)
    finally:
        await connection.close()


@pytest.fixture
async def hand(url: str, request: pytest.FixtureRequest) -> AsyncIterator[TableWriter]:
    if url == "sqlite://":
        pytest.skip("memory has one hand only")
    # Past the pooler: it needs one session, for its search path and its temporary table.
    direct: str = url if url.startswith("sqlite") else request.getfixturevalue("migrated_url")
    async with hand_on(direct) as found:
        yield found


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    unreadable_rows._known.clear()
    yield
    unreadable_rows._known.clear()


class Cluster:
    """Two of everything."""

    def __init__(self, storage: Storage, session: Ownership, claims: dict[str, Claim]) -> None:
        self.storage, self.session, self.claims = storage, session, claims

    async def seen(self) -> set[str]:
        """All that is read, by those who hold seats and by those who look."""
        storage, claims = self.storage, self.claims
        view = await storage.view()
        found = {f"runner {row.id}" for row in view.runners} | {f"seat {row.name}" for row in view.seats}
        assert await self.session.renew(ttl_s=60) is not None
        await self.session.presences([A, B])
        due = await storage.messages.due({S1: None}, ahead_s=1.0, most=10)
        found |= {f"due {row.id}" for row in due.rows}
        found |= {f"fetched {row.id}" for row in await storage.messages.fetch([id_of(1), id_of(2)])}
        found |= {f"message {row.id}" for row in await storage.messages.look([id_of(1), id_of(2)])}
        found |= {f"listed {row.id}" for row in await storage.messages.list(MessageFilter())}
        await storage.messages.backlog(most=10, dead_most=10)
        found |= await self._jobs()
        takes = [CronTakeover(claims[Seat.cron(name)], name, FINGERPRINT) for name in (CRON_A, CRON_B)]
        books = await storage.ticks.take(takes)
        found |= {f"book {name} {len(book.open)}" for name, book in books.items()}
        found |= {f"cron {row.name}" for row in await storage.ticks.list()}
        found |= {f"tick {row.name}" for name in (CRON_A, CRON_B) for row in await storage.ticks.history(name, most=10)}
        taken = await storage.units.take([claims[S1]], most=10)
        found |= {f"taken {row.unit}" for each in taken.values() for row in each.rows}
        found |= {f"unit {row.unit}" for row in await storage.units.list(status=None, name=None, older_s=None, most=10)}
        tagged = await storage.units.list(status=None, name=None, older_s=None, most=10, tag=("a", "1"))
        found |= {f"tagged unit {row.unit}" for row in tagged}
        found |= {f"pause of {row.kind} {row.name}" for row in await storage.pauses.list()}
        found |= {f"paused type {name}" for name in due.paused_types}
        for name in ("one", "two"):
            loaded = await storage.units.load(claims[S1], unit_key(name))
            found |= set() if loaded is None else {f"loaded {loaded.row.unit} {len(loaded.steps)}"}
            found |= {f"state {name}"} if await storage.states.peek(name) is not None else set()
            found |= {f"history {name}" for _ in await storage.states.history(name)}
            found |= {f"kv {name}"} if await storage.kv.get(name) is not None else set()
        found |= {f"execution {row.seat}" for row in await storage.executions.list("singleton:")}
        found |= {f"act {row.what}" for row in await storage.activity.list()}
        found |= {f"page {row.key}" for row in await storage.kv.page("", after=None, most=10)}
        incoming = await storage.incoming.take({("call", "Account"): ""}, most=10, most_bytes=1_000)
        found |= {f"incoming {row.id}" for row in incoming}
        await storage.incoming.backlog(most=10)
        due_schedules = await storage.schedules.due([S1], most=10)
        found |= {f"schedule {row.key}" for row in due_schedules.rows}
        found |= {f"scheduled {row.key}" for row in await storage.schedules.list(PREFIX, most=10)}
        await storage.inspection.states(after="", most=10)
        await storage.inspection.endings(after="", most=10)
        await storage.machines.lease(A, ttl_s=60, until_ms=1)
        return found

    async def _jobs(self) -> set[str]:
        jobs, ids = self.storage.jobs, [id_of(number) for number in range(1, 5)]
        parts = [*await jobs.sweep(S1, after=None, parts=10, each=10)]
        parts += await jobs.refill(S1, ["one", "two"], each=10)
        found = {f"job head {head.id}" for part in parts for head in part.heads}
        found |= {f"job {row.id}" for row in await jobs.look(ids)}
        found |= {f"listed job {row.id}" for row in await jobs.list(JobFilter())}
        found |= {f"tagged job {row.id}" for row in await jobs.list(JobFilter(tag=("a", "1")))}
        found |= {f"running job {row.id}" for row in await jobs.running(S1)}
        found |= {f"claimed job {row.id}" for row in await jobs.claimed(A)}
        found |= {f"fetched job {row.id}" for row in await jobs.fetch(dict.fromkeys(ids, 1))}
        receipts = [await jobs.find("resize", key) for key in ("k1", "k2")]
        found |= {f"keyed job {receipt.id}" for receipt in receipts if receipt is not None}
        queues = await jobs.queues()
        found |= {f"queue {row.seat}" for row in queues}
        found |= {f"paused task {name}" for row in queues for name in row.paused_tasks}
        found |= {f"queue of {row.seat}" for seat in (S1, S2) if (row := await jobs.queue(seat)) is not None}
        found |= {f"backlog {row.seat}" for row in await jobs.backlog([S1, S2], most=10)}
        await jobs.parked(S1)
        return found


async def with_jobs(storage: Storage, claims: dict[str, Claim]) -> None:
    """Two that wait and two that run, with all that belongs to them."""
    for seat in (S1, S2):
        assert await storage.jobs.define_queue(claims[seat], None)
    names = {1: "one", 2: "two", 3: "one", 4: "two"}
    for number, name in names.items():
        given = job(number, seat=S1, part=name, key=f"k{number}", tags=(("a", "1"),))
        await storage.jobs.insert(JobInsert((given,)))
    queue = await storage.jobs.queue(S1)
    assert queue is not None
    told = await storage.jobs.claim(JobClaim(claims[S1], queue.stamp, ((id_of(1), A), (id_of(2), A))))
    assert len(told.jobs) == 2
    for number in (1, 2):
        assert await storage.jobs.progress(A, id_of(number), 1, JobProgress(1.0, 2.0, "half"))


@pytest.fixture
async def cluster(storage: Storage, hand: TableWriter) -> AsyncIterator[Cluster]:
    seats = {S1: "", S2: "", Seat.cron(CRON_A): FINGERPRINT, Seat.cron(CRON_B): FINGERPRINT}
    seats |= {Seat.singleton(name): "f" for name in ("one", "two")}
    knows = {name: each for name, each in seats.items() if each}
    async with storage.ownership(A) as session, storage.ownership(B) as other:
        for runner, opened in ((A, session), (B, other)):
            me = Registration(id=runner, name=runner, address="h:1", host_id="", groups=("default",), knows=knows)
            await opened.register(
                me, [SeatDeclaration(name, "default", each) for name, each in seats.items()], ttl_s=600
            )
        grants = await session.acquire(list(seats))
        claims = {grant.name: Claim(A, grant.name, grant.epoch) for grant in grants}
        for number in (1, 2):
            await storage.messages.insert(message(number, tags=(("a", "1"),)))
            await storage.messages.setback(Setback(claims[S1], id_of(number), 1, "boom", 0.0))
        await with_jobs(storage, claims)
        for name in (CRON_A, CRON_B):
            await storage.ticks.take([CronTakeover(claims[Seat.cron(name)], name, FINGERPRINT)])
            verdicts = (Verdict(at(0), at(0)), Verdict(at(1), at(1)))
            claim = TickClaim(claims[Seat.cron(name)], name, SCHEDULE, None, verdicts, 0.0)
            assert (await storage.ticks.claim(claim)).told == "written"
            await storage.ticks.pause(name)
            await storage.ticks.resume(name)
        for name in ("one", "two"):
            await storage.units.start(new_start(name, tags='{"a": "1"}'))
            await storage.units.step(step_write(claims[S1], unit_key(name)))
            await storage.units.resolve(unit_key(name), "paid", value=b"1", error=None)
            singleton = claims[Seat.singleton(name)]
            await storage.executions.begin(singleton, leader="a", expected_s=1.0)
            await storage.executions.stamp(Stamp(singleton, 1))
            await storage.states.save(StateSave(singleton, name, b"1", 0, None, 3))
            await storage.kv.put(KvPut(name, b"1", 1))
            await storage.pauses.pause("task", name)
            await storage.schedules.swap(schedule(name), None)
            await storage.activity.add(Act(who="token", origin="cli", act="retry", what=name, result="done"))
        await storage.pauses.pause("entity", "two")
        await storage.machines.lease(A, ttl_s=60, until_ms=1)
        await storage.machines.lease(B, ttl_s=60, until_ms=1)
        if isinstance(hand, PostgresTableWriter):
            for number in (1, 2):
                assert await hand.run(INCOMING.format(number)) is not None
        yield Cluster(storage, session, claims)


def belongs_to(found: str, row: str) -> bool:
    """Whether something that is read is of the row, or what hangs on it."""
    return row in found or (row == S2 and found.startswith("runner"))


@pytest.mark.parametrize(
    "is_whole", [pytest.param(False, id="sample"), pytest.param(True, id="all", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize("table", TABLES)
async def test_whatever_is_in_a_column_the_neighbours_are_read(
    cluster: Cluster, hand: TableWriter, table: str, *, is_whole: bool
) -> None:
    """Every column; at night with every value, else with one each, another one from column to column."""
    if isinstance(hand, SqliteTableWriter) and table in NOT_IN_A_FILE:
        pytest.skip("a file does not have it")
    column, row = TABLES[table]
    values = SQLITE if isinstance(hand, SqliteTableWriter) else POSTGRES
    columns = await hand.columns(table)
    expected = {found for found in await cluster.seen() if not belongs_to(found, row)}
    assert await hand.run(f"create temp table kept as select * from {table} where \"{column}\" = '{row}'") is not None
    tried = 0
    for place, (name, kind) in enumerate(columns):
        if name == "cluster":
            continue
        known, done = [*values[kind], "null"], tried
        start = place % len(known)
        for value in known[start:] + known[:start]:
            if tried > done and not is_whole:
                break
            if await hand.run(f'update {table} set "{name}" = {value} where "{column}" = \'{row}\'') is None:
                continue  # the schema refuses it
            tried += 1
            try:
                seen = await cluster.seen()
            except Exception as error:
                error.add_note(f"{table}.{name} = {value}")
                raise
            missing = {found for found in expected - seen if not belongs_to(found, value.strip("'"))}
            assert not missing, f"{table}.{name} = {value}"
            was = f"\"{column}\" = '{row}'"
            await _restore(hand, table, name, where=f'"{column}" = {value} or {was}' if name == column else was)
    assert tried > 2


async def _restore(hand: TableWriter, table: str, name: str, *, where: str) -> None:
    """Bring the row back: where it may be several, all of them; where others refer to it, in its place."""
    if table in SEVERAL:
        assert await hand.run(f"delete from {table} where {where}") is not None
        assert await hand.run(f"insert into {table} select * from kept") is not None
    else:
        assert await hand.run(f'update {table} set "{name}" = (select "{name}" from kept) where {where}') is not None


async def test_every_table_is_made_unreadable_or_left_out_with_a_reason(cluster: Cluster, hand: TableWriter) -> None:
    """A new table belongs on either list."""
    elsewhere = set() if isinstance(hand, PostgresTableWriter) else NOT_IN_A_FILE
    assert await hand.tables() == (TABLES.keys() | LEFT_OUT) - elsewhere


async def test_a_row_that_cannot_be_read_is_logged_once_counted_and_forgotten_when_it_is_mended(
    cluster: Cluster, hand: TableWriter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="coterie")
    counted = metrics.UNREADABLE_ROWS.of("messages").value
    await hand.run(f"update messages set errors = '1' where id = '{id_of(1)}'")
    for _ in range(3):
        assert [row.id for row in await cluster.storage.messages.look([id_of(1), id_of(2)])] == [id_of(2)]
    assert metrics.UNREADABLE_ROWS.of("messages").value == counted + 3
    (row,) = unreadable_rows.found()
    assert str(row).startswith(f"row '{id_of(1)}' of table messages cannot be read: ValidationError: ")
    assert [str(row) in record.getMessage() for record in caplog.records] == [True]
    await hand.run(f"update messages set errors = '[]' where id = '{id_of(1)}'")
    assert len(await cluster.storage.messages.look([id_of(1), id_of(2)])) == 2
    assert unreadable_rows.found() == ()


@pytest.mark.parametrize("table", ["runners", "seats"])
async def test_a_row_that_could_not_be_read_is_forgotten_when_it_is_deleted(
    cluster: Cluster, hand: TableWriter, table: str
) -> None:
    column, row = TABLES[table]
    broken = {"runners": "knows = '[]'", "seats": "name = 'shard:default:odd'"}
    assert await hand.run(f"update {table} set {broken[table]} where {column} = '{row}'") is not None
    await cluster.storage.view()
    (known,) = unreadable_rows.found()
    assert known.table == table
    if table == "runners":  # the seats that it holds become free
        assert await hand.run(f"update seats set holder = null where holder = '{row}'") is not None
    assert await hand.run(f"delete from {table} where {column} = '{known.key}'") is not None
    await cluster.storage.view()
    assert unreadable_rows.found() == ()


async def test_a_cluster_works_beside_rows_that_nobody_can_read(url: str, hand: TableWriter) -> None:
    """An odd seat, five kinds of odd runners and a message dated BC; settling, delayed messages and probes go on."""
    app = coterie.Cluster(url, shards=2, listen="127.0.0.1:0")
    told: list[str] = []

    @app.entity
    class Account(coterie.Entity):
        @coterie.rpc(persisted=True)
        async def note(self, what: str) -> None:
            told.append(what)

    async with app.connect():  # which makes the tables
        pass
    await _plant(hand)
    async with asyncio.timeout(120), app:
        await app.ready()
        runner: Any = app._acting()
        shards = [seat for seat in sorted(runner.seats) if not seat.startswith("incoming:")]
        assert shards == ["shard:default:0", "shard:default:1"]
        for number in range(4):
            await app.send(app.ref(Account, f"{number}").note(f"{number}"), delay="1s")
        if not isinstance(hand, SqliteTableWriter):
            await hand.run("update messages set due_at = '0044-03-15 00:00 BC' where entity_id = '0'")
        while sorted(told) != ["0", "1", "2", "3"]:
            await asyncio.sleep(0.01)
        while await runner.collector.readiness():  # the oldest message counts as not done until its commit has returned
            await asyncio.sleep(0.01)
        health = await app.health()
        named = [reason.problem for reason in health.reasons if "cannot be read" in reason.problem]
        assert any("'shard:default:odd' of table seats" in each for each in named)
        assert sum("of table runners" in each for each in named) >= 4


async def _plant(hand: TableWriter) -> None:
    seat = "insert into seats (cluster, name, \"group\") values ('default', 'shard:default:odd', 'default')"
    if isinstance(hand, SqliteTableWriter):
        seat = seat.replace(") values", ", effective_from_ns) values").replace("'default')", "'default', 1)")
        odd = {"groups": "'[1'", "knows": "'[]'", "weight": "9e999", "address": "'nowhere'"}
        plain = {"groups": "'[]'", "knows": "'{}'", "weight": "1.0", "address": "'h:1'"}
    else:
        odd = {
            "groups": "'{null}'",
            "knows": "'[]'",
            "weight": "'NaN'",
            "address": "'nowhere'",
            "started_at": "'0044-03-15 00:00 BC'",
        }
        plain = {"groups": "'{}'", "knows": "'{}'", "weight": "1.0", "address": "'h:1'", "started_at": "now()"}
    began, at_first = ("started_at_ns, ", "1, ") if isinstance(hand, SqliteTableWriter) else ("", "")
    assert await hand.run(seat) is not None
    for number, (column, value) in enumerate(odd.items()):
        row = {**plain, column: value}
        names, values = ", ".join(row), ", ".join(row.values())
        assert (
            await hand.run(
                f"insert into runners (id, cluster, name, host_id, version, {began}{names}) "
                f"values ('{number:032x}', 'default', 'odd {column}', '', '', {at_first}{values})"
            )
            is not None
        )
        if not isinstance(hand, SqliteTableWriter):
            lease = "insert into leases (id, cluster, expires_at, counter) values"
            await hand.run(f"{lease} ('{number:032x}', 'default', now() + interval '1h', 1)")
