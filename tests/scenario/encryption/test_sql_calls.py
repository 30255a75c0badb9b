"""O6: calls from SQL are encrypted when they are moved, and are the same as others by what they say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Entity, Retry, Workflow, rpc
from coterie.storage import unreadable_rows
from coterie.storage.contracts.incoming_calls import START
from tests.scenario.encryption.payload_program import FAST, MARK, columns_with, encrypted, until
from tests.scenario.persisted.test_sql_sends import Sql, session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from coterie import Encrypted

pytestmark = pytest.mark.postgres


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    unreadable_rows._known.clear()
    yield
    unreadable_rows._known.clear()


@pytest.fixture
async def sql(postgres_url: str) -> AsyncIterator[Sql]:
    async with session(postgres_url) as found:
        yield found


class SqlProgram:
    """A cluster that SQL may call."""

    def __init__(self, url: str, payloads: Encrypted | None) -> None:
        self.cluster = cluster = Cluster(url, payloads=payloads, **FAST)

        @cluster.entity(retry=Retry.never)
        class Notes(Entity[None]):
            @rpc(persisted=True, key="order")
            async def put(self, order: str, text: str) -> str:
                return order + text

        @cluster.workflow
        async def keep(workflow: Workflow, text: str) -> str:
            return text

        self.notes, self.keep = Notes, keep

    async def until_dead(self, count: int) -> list[Any]:
        async def are_dead() -> bool:
            return len(await self.cluster.messages.list(status="dead")) == count

        await until(are_dead)
        return list(await self.cluster.messages.list(status="dead"))


async def put(sql: Sql, order: str, text: object = MARK) -> str:
    return await sql.send("Notes", "a", "put", {"order": order, "text": text})


async def start(sql: Sql, run: str, text: str = MARK) -> None:
    await sql("select coterie.start_workflow('keep', $1::jsonb, $2)", json.dumps(text), run)


async def test_what_sql_sends_stands_nowhere_once_it_is_moved(postgres_url: str, sql: Sql) -> None:
    program = SqlProgram(postgres_url, encrypted("k1"))
    async with program.cluster:
        await program.cluster.ready()
        sent, _ = await put(sql, "o1"), await put(sql, "o2", [MARK])
        await start(sql, "r1")
        await sql.until_moved()
        assert await _result(program.cluster, sent) == "o1" + MARK
        assert await program.cluster.workflow_handle(program.keep, "r1").result() == MARK
        (dead,) = await program.until_dead(1)
        assert "text" in dead.errors[0].error
        stored = await sql("select errors -> 0 ->> 'error' from coterie.messages where id = $1", dead.id)
        assert stored.startswith("encrypted:k1:"), "it may cite an argument"
        assert await columns_with(postgres_url, MARK) == set()


async def test_m4_the_same_is_the_same_and_a_conflict_is_one_under_either_key(postgres_url: str, sql: Sql) -> None:
    """Digests are compared as they are, though a message of SQL and an earlier one are encrypted apart."""
    async with SqlProgram(postgres_url, encrypted("k1")).cluster as before:
        await before.ready()
        first = await put(sql, "o1")
        await start(sql, "r1")
        await sql.until_moved()
    program = SqlProgram(postgres_url, encrypted("k2", "k1"))
    async with program.cluster:
        await program.cluster.ready()
        same, other = await put(sql, "o1"), await put(sql, "o1", "other")
        await start(sql, "r1")
        await start(sql, "r1", "other")
        await sql.until_moved()
        dead = await program.until_dead(2)
        assert {(each.id == other, each.method) for each in dead} == {(True, "put"), (False, START)}
        assert all("r1" in each.errors[0].error or "o1" in each.errors[0].error for each in dead)
        assert await _result(program.cluster, same) == "o1" + MARK
        assert await sql("select same_as from coterie.incoming where id = $1", same) == first
        assert await sql("select count(*) from coterie.incoming") == 1, "the same start is gone"
        assert await columns_with(postgres_url, MARK) == set()


async def test_a_call_whose_rival_cannot_be_read_waits_is_reported_and_its_neighbours_go_on(
    postgres_url: str, sql: Sql
) -> None:
    async with SqlProgram(postgres_url, encrypted("k2")).cluster as other:
        await other.ready()
        await put(sql, "o1")
        await sql.until_moved()
    await sql("delete from coterie.agreements where name = 'payload key k2'")
    program = SqlProgram(postgres_url, encrypted("k1"))
    async with program.cluster:
        await program.cluster.ready()
        waiting, next_one = await put(sql, "o1"), await put(sql, "o2")
        assert await _result(program.cluster, next_one) == "o2" + MARK

        async def is_reported() -> bool:
            return [(row.table, row.key) for row in unreadable_rows.found()] == [("incoming", waiting)]

        await until(is_reported)
        assert await sql("select id from coterie.incoming where same_as is null") == waiting


async def _result(cluster: Any, id: str) -> object:
    return await cluster.result(id)
