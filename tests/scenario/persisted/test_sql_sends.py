"""Calls and workflows from SQL: in its own transaction, checked by a runner, dead if they do not fit (O2)."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie import Cluster, Entity, MessageDead, MessageExpired, Workflow, WorkflowNotFound, rpc
from coterie.entities.persisted.api import MessageInfo
from coterie.incoming import mover
from coterie.observe.health import Bounds, judge
from coterie.observe.incoming_call import IncomingCall, find_message
from tests.scenario.persisted.entity_program import PROMPTLY_S, Account, notes, program, shared, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_url: str) -> str:
    """On SQLite nobody but coterie writes the file."""
    return postgres_url


class Sql:
    """A session of a program that has no coterie."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self.connection = connection

    async def __call__(self, sql: str, *values: Any) -> Any:
        return await self.connection.fetchval(sql, *values)

    async def send(self, type: str, id: str, method: str, args: object = None, *, more: str = "") -> str:
        given = "{}" if args is None else json.dumps(args)
        return str(await self(f"select coterie.send($1, $2, $3, $4::jsonb {more})", type, id, method, given))

    async def charge(self, order: str, cents: int = 1, *, id: str = "alice") -> str:
        return await self.send("Account", id, "charge", {"order": order, "cents": cents})

    async def waiting(self) -> int:
        return int(await self("select count(*) from coterie.incoming where same_as is null"))

    async def until_moved(self) -> None:
        async with asyncio.timeout(PROMPTLY_S):
            while await self.waiting():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(url)
    try:
        yield Sql(connection)
    finally:
        connection.terminate()


@pytest.fixture
async def sql(url: str) -> AsyncIterator[Sql]:
    async with session(url) as found:
        yield found


@pytest.fixture
async def cluster(url: str) -> AsyncIterator[Cluster]:
    async with program(url, "a") as cluster:
        await shared(cluster)
        yield cluster


async def error_of(cluster: Cluster, id: str) -> str:
    with pytest.raises(MessageDead) as dead:
        await cluster.result(id)  # type: ignore[arg-type]
    (failed,) = (await cluster.messages.show(id)).errors
    assert failed.error in str(dead.value)
    return failed.error


# What fits


async def test_o2_a_call_from_sql_runs_and_python_finds_its_result_by_the_id_that_sql_got(
    cluster: Cluster, sql: Sql
) -> None:
    sent = await sql.charge("o-1", 5)
    assert await cluster.result(sent) == 5  # type: ignore[arg-type]
    assert await cluster.result(sent) == 5  # type: ignore[arg-type]
    message = await cluster.messages.show(sent)
    assert (message.entity, message.status, message.payload) == ("Account/alice", "done", {"order": "o-1", "cents": 5})


async def test_o2_it_commits_with_the_rows_of_its_transaction_or_not_at_all(cluster: Cluster, sql: Sql) -> None:
    await sql("create table orders (id text)")
    for number in range(10):
        transaction = sql.connection.transaction()
        await transaction.start()
        await sql("insert into orders values ($1)", f"o-{number}")
        await sql.charge(f"o-{number}")
        await (transaction.rollback() if number % 2 else transaction.commit())
    await sql.until_moved()
    assert [row["id"] for row in await sql.connection.fetch("select id from orders order by id")] == [
        f"o-{number}" for number in (0, 2, 4, 6, 8)
    ]
    await until(lambda: len(notes.ran) == 5)
    assert [order for _, order in notes.ran] == [f"o-{number}" for number in (0, 2, 4, 6, 8)]


async def test_calls_of_one_transaction_to_one_entity_run_in_order(cluster: Cluster, sql: Sql) -> None:
    count = 3 * mover._MOST
    await sql(
        "do $$ begin for n in 1.." + str(count) + " loop"
        " perform coterie.send('Account', 'alice', 'charge', jsonb_build_object('order', n::text)); end loop; end $$"
    )
    await until(lambda: len(notes.ran) == count)
    assert [order for _, order in notes.ran] == [str(n) for n in range(1, count + 1)]


async def test_a_call_may_wait_for_its_time(cluster: Cluster, sql: Sql) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    tomorrow = await sql.send("Account", "alice", "wait", {"number": 1}, more=f", at => '{at.isoformat()}'")
    later = await sql.send("Account", "alice", "wait", {"number": 2}, more=", delay => '1 hour'")
    soon = await sql.send("Account", "bob", "charge", {"order": "1"}, more=", delay => '100 ms'")
    assert await cluster.result(soon) == 1  # type: ignore[arg-type]
    first, second = await cluster.messages.show(tomorrow), await cluster.messages.show(later)
    assert (first.status, second.status) == ("pending", "pending")
    assert abs(first.due_at - at) < timedelta(milliseconds=1)
    assert timedelta(minutes=50) < second.due_at - datetime.now(UTC) < timedelta(minutes=70)


async def test_a_late_commit_with_an_early_id_is_found(cluster: Cluster, sql: Sql, url: str) -> None:
    """No cursor outlives a round."""
    async with session(url) as slow:
        transaction = slow.connection.transaction()
        await transaction.start()
        early = await slow.charge("early")
        late = await sql.charge("late")
        assert early < late
        assert await cluster.result(late) == 1  # type: ignore[arg-type]
        await transaction.commit()
        assert await cluster.result(early) == 2  # type: ignore[arg-type]


# Keys


async def test_m4_the_same_key_is_the_same_message_and_both_ids_lead_to_its_reply(cluster: Cluster, sql: Sql) -> None:
    async with sql.connection.transaction():
        together = [await sql.charge("o-1", 5) for _ in range(3)]
    assert [await cluster.result(each) for each in together] == [5, 5, 5]  # type: ignore[arg-type]
    again = await sql.charge("o-1", 5)
    assert await cluster.result(again) == 5  # type: ignore[arg-type]
    assert await cluster.send(cluster.ref(Account, "alice").charge("o-1", 5)) == together[0]
    assert len(notes.ran) == 1


async def test_m4_an_explicit_key_and_a_key_that_python_has_used_are_the_same(cluster: Cluster, sql: Sql) -> None:
    first = await cluster.send(cluster.ref(Account, "alice").fail("x"), key="k-1")
    other = await sql.send("Account", "alice", "fail", {"order": "x"}, more=", key => 'k-1'")
    await sql.until_moved()
    assert await sql("select same_as from coterie.incoming where id = $1", other) == first
    shown = await find_message(cluster._acting(), other)
    assert isinstance(shown, MessageInfo)
    assert shown.id == first, "what it is the same as"


async def test_m4_a_key_with_other_arguments_is_a_dead_letter_that_says_so(cluster: Cluster, sql: Sql) -> None:
    first, other = await sql.charge("o-1", 5), await sql.charge("o-1", 6)
    assert await cluster.result(first) == 5  # type: ignore[arg-type]
    problem = await error_of(cluster, other)
    assert problem.startswith(
        f'key "o-1" of Account/alice.charge was used before with another payload (message {first})'
    )


async def test_a_key_that_another_transaction_holds_makes_nobody_else_wait_for_long(
    cluster: Cluster, sql: Sql, url: str
) -> None:
    """The batch is refused, so its rows are moved one by one, and the one that waits is left alone for a while."""
    async with session(url) as holder:
        transaction = holder.connection.transaction()
        await transaction.start()
        await holder(
            "insert into coterie.messages (cluster, id, seat, entity_type, entity_id, method, payload, key, digest,"
            " sent_at, due_at) values ('default', 'theirs', 'shard:default:0', 'Account', 'alice', 'charge', '',"
            " 's:o-1', '', now(), now())"
        )
        async with sql.connection.transaction():
            stuck, free = await sql.charge("o-1"), await sql.charge("o-2")
        assert await cluster.result(free, timeout="60s") == 1  # type: ignore[arg-type]
        assert await sql.waiting() == 1
        await transaction.rollback()
        assert await cluster.result(stuck, timeout="60s") == 2  # type: ignore[arg-type]


# What does not fit


@pytest.mark.parametrize(
    ("method", "args", "says"),
    [
        ("charge", {"cents": 5}, "order is missing"),
        ("charge", {"order": 5}, "order is 5 (whole number), expected text"),
        ("charge", {"order": "o", "cents": 2**70}, "cents is"),
        ("charge", {"order": "o", "colour": 1}, 'no parameter "colour"'),
        ("charge", {"order": ""}, "order is empty text, which makes no key"),
        ("cents", {}, "it is not persisted: write persisted=True"),
        ("cancel", {}, "no runner knows Account/alice.cancel"),
        ("__init__", {}, "no runner knows Account/alice.__init__"),
    ],
)
async def test_o2_a_call_that_does_not_fit_is_a_dead_letter_with_its_reason_and_its_neighbour_runs(
    cluster: Cluster, sql: Sql, method: str, args: dict[str, object], says: str
) -> None:
    async with sql.connection.transaction():
        odd, well = await sql.send("Account", "alice", method, args), await sql.charge("o-1")
    assert await cluster.result(well) == 1  # type: ignore[arg-type]
    await sql.until_moved()
    dead = await cluster.messages.show(odd)
    assert (dead.status, dead.payload if method != "charge" else None) == ("dead", args if method != "charge" else None)
    assert says in dead.errors[0].error
    assert [each.id for each in await cluster.messages.list(status="dead", entity="Account/alice")] == [odd]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


@dataclass
class Touchy:
    number: int

    def __post_init__(self) -> None:
        raise Unspeakable


async def test_p24_what_the_programs_own_types_raise_is_a_reason_too(url: str, sql: Sql) -> None:
    class Picky(Entity):
        @rpc(persisted=True)
        async def take(self, it: Touchy) -> int:
            return it.number

    async with program(url, "a", Account, Picky) as cluster:
        await shared(cluster)
        odd = await sql.send("Picky", "p", "take", {"it": {"number": 1}})
        assert await cluster.result(await sql.charge("o-1")) == 1  # type: ignore[arg-type]
        await sql.until_moved()
        dead = await cluster.messages.show(odd)
        assert (dead.status, dead.payload) == ("dead", {"it": {"number": 1}})
        assert dead.errors[0].error


async def test_a_dead_letter_runs_again_when_its_program_takes_its_arguments(url: str, sql: Sql) -> None:
    class Laxer(Account):
        called = "Account"

        @rpc(persisted=True)
        async def wait(self, number: int | str = 0) -> int:
            return int(number)

    async with program(url, "a") as cluster:
        await shared(cluster)
        sent = await sql.send("Account", "alice", "wait", {"number": "7"})
        assert "expected a whole number" in await error_of(cluster, sent)
    async with program(url, "b", Laxer) as cluster:
        await shared(cluster)
        assert await cluster.messages.retry(sent)
        assert await cluster.result(sent) == 7  # type: ignore[arg-type]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
    max_leaves=12,
)
ODD = [
    *("[" * 5_000 + "]" * 5_000, '{"order":' * 300 + "1" + "}" * 300, "1e131071", '{"order": 1e-400}', "NaN"),
    *('"\\u0000"', '{"order": "\\ud800"}', '{"order": "x", "order": "y"}', "{}", "null"),
    '{"order": "' + "x" * 2**20 + '"}',
]
HOSTILE = st.one_of(
    JSON.map(json.dumps),
    st.fixed_dictionaries({"order": JSON}, optional={"cents": JSON}).map(json.dumps),
    st.text(),
    st.sampled_from(ODD),
)
NAMES = st.text(max_size=300) | st.sampled_from(["Account", "alice", "charge", "wait", "a/b", "x" * 999, "é" * 501])


async def test_o2_hostile_calls_are_refused_or_dead_and_never_in_the_way(cluster: Cluster, sql: Sql) -> None:
    loop = asyncio.get_running_loop()
    sent: list[str] = []

    async def send(calls: list[tuple[str, str, str, str, str | None]]) -> None:
        for each in calls:
            try:
                sent.append(await sql("select coterie.send($1, $2, $3, $4::text::jsonb, $5)", *each))
            except (asyncpg.PostgresError, UnicodeEncodeError):
                continue  # refused at once

    method = st.sampled_from(["charge", "wait", "lie"])
    objects = st.dictionaries(st.sampled_from(["order", "cents", "number", "x"]), JSON, max_size=3).map(json.dumps)
    near = st.tuples(st.just("Account"), st.sampled_from(["alice", "bob"]), method, objects)
    call = near | near | st.tuples(st.just("Account") | NAMES, NAMES, method | NAMES, HOSTILE)
    keyed = st.tuples(call, st.none() | st.text(max_size=1_100)).map(lambda both: (*both[0], both[1]))

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(keyed, min_size=2, max_size=8))
    def fuzz(calls: list[tuple[str, str, str, str, str | None]]) -> None:
        asyncio.run_coroutine_threadsafe(send(calls), loop).result(PROMPTLY_S)

    await asyncio.to_thread(fuzz)
    canary = await sql.charge("canary", id="canary")
    assert await cluster.result(canary, timeout="60s") == 1  # type: ignore[arg-type]
    async with asyncio.timeout(PROMPTLY_S):
        while await sql("select count(*) from coterie.incoming where type = 'Account' and same_as is null"):
            await asyncio.sleep(0.05)
    assert len(sent) > 20, "hardly anything was stored: the test shows nothing"
    lost = await sql(
        "select count(*) from unnest($1::text[]) as id where not exists (select from coterie.messages as m"
        " where m.id = any(array[id])) and not exists (select from coterie.incoming as i where i.id = any(array[id]))",
        sent,
    )
    assert lost == 0
    seat = cluster._acting().tenure("incoming:default")  # type: ignore[attr-defined]
    assert seat is not None
    assert seat.held, "nothing of it has cost the seat"


# Types that nobody knows, other programs, other groups


async def test_o2_a_type_that_nobody_knows_waits_is_reported_and_holds_up_nobody(
    cluster: Cluster, sql: Sql, url: str
) -> None:
    class Report(Entity):
        @rpc(persisted=True)
        async def build(self) -> str:
            return "built"

    ids = [await sql.send("Report", str(number), "build") for number in range(2 * mover._MOST)]
    assert await cluster.result(await sql.charge("o-1")) == 1  # type: ignore[arg-type]
    assert await sql.waiting() == len(ids)
    facts = await cluster._acting().collector.collect()
    (reason,) = (each for each in judge(facts, Bounds(late_s=0.0)).reasons if "SQL" in each.what)
    assert (reason.status, reason.what) == ("degraded", "calls from SQL to entity Report")
    assert "no runner moves it" in reason.problem
    (waiting,) = facts.incoming
    assert (waiting.what, waiting.rows) == ("entity Report", len(ids))
    shown = await find_message(cluster._acting(), ids[0])
    assert isinstance(shown, IncomingCall)
    assert (shown.id, shown.what, shown.key) == (ids[0], "Report/0.build", None)
    assert await cluster.cancel(ids[0])  # type: ignore[arg-type]
    with pytest.raises(MessageExpired):
        await cluster.result(ids[0])  # type: ignore[arg-type]
    async with program(url, "b", Account, Report) as newer:  # a deploy: the newest definition has the seat [M8]
        await sql.until_moved()
        assert len(await newer.messages.list(entity="Report", limit=1_000)) == len(ids) - 1


async def test_clusters_of_one_database_are_strangers_and_an_unknown_one_is_refused(
    cluster: Cluster, sql: Sql, url: str
) -> None:
    with pytest.raises(asyncpg.UndefinedObjectError, match="no runner of a cluster 'other' has ever used"):
        await sql.send("Account", "alice", "charge", {"order": "1"}, more=", cluster => 'other'")
    other = Cluster(url, name="other", shards=2)
    other.entity(Account)
    async with other:
        await shared(other)
        sent = await sql.send("Account", "alice", "charge", {"order": "1"}, more=", cluster => 'other'")
        assert await other.result(sent) == 1  # type: ignore[arg-type]
        with pytest.raises(MessageExpired):
            await cluster.result(sent)  # type: ignore[arg-type]


async def test_each_group_has_a_seat_of_its_own_held_by_its_runners(url: str, sql: Sql) -> None:
    apart = program(url, "a", groups=("gpu",))

    @apart.entity(group="gpu")
    class Model(Entity):
        @rpc(persisted=True)
        async def train(self) -> str:
            return "trained"

    async with apart:
        await apart.ready(timeout=PROMPTLY_S)
        assert "incoming:gpu" in apart._acting().seats  # type: ignore[attr-defined]
        assert await apart.result(await sql.send("Model", "m", "train")) == "trained"  # type: ignore[arg-type]


async def test_c2_there_is_no_such_seat_where_the_file_is_coteries_alone(tmp_path: Any) -> None:
    async with program(f"sqlite:///{tmp_path}/own.db", "a") as cluster:
        await shared(cluster)
        assert all(seat.startswith("shard:") for seat in cluster._acting().seats)  # type: ignore[attr-defined]
        assert not await cluster.cancel("0" * 32)  # type: ignore[arg-type]
        with pytest.raises(MessageExpired):
            await cluster.result("0" * 32)  # type: ignore[arg-type]


# Workflows


async def test_o2_sql_starts_a_workflow_once_for_each_id(url: str, sql: Sql) -> None:
    cluster = program(url, "a")
    began: list[int] = []

    @cluster.workflow
    async def double(workflow: Workflow, number: int) -> int:
        began.append(number)
        return 2 * number

    async with cluster:
        await shared(cluster)
        async with sql.connection.transaction():
            ids = [await sql("select coterie.start_workflow('double', '21', 'd-1')") for _ in range(3)]
            await sql("select coterie.start_workflow('double', '22', 'd-1')")  # another payload
            await sql("select coterie.start_workflow('double', '\"x\"', 'd-2')")
        await sql.until_moved()
        assert ids == ["d-1"] * 3
        assert await cluster.workflow_handle(double, "d-1").result(timeout="60s") == 42
        assert began == [21]
        refused = await cluster.messages.list(status="dead")
        assert sorted(each.errors[0].error[:68] for each in refused) == [
            "key \"d-1\" of workflow 'double' was used before with another payload ",
            "payload of workflow 'double': it is \"x\" (text), expected a whole num",
        ]
        assert {(each.entity, each.method) for each in refused} == {
            ("double/d-1", "(start)"),
            ("double/d-2", "(start)"),
        }
        assert [await cluster.messages.retry(each.id) for each in refused] == [False, False], "it is no call"
        with pytest.raises(WorkflowNotFound):
            await cluster.workflow_handle(double, "d-2").result(timeout="60s")
        await cluster.start_workflow(double, 21, id="d-1")  # the same start, in Python
