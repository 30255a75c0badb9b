"""The pruner on every engine: all that is due goes in one pass, and what should be gone is seen until it is."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from coterie.kernel.random import Random
from coterie.kernel.supervisor import Supervisor
from coterie.settings import Settings
from coterie.storage.interface import KvPut, StateSave
from coterie.storage.sqlite.storage import SqliteStorage
from coterie.work.pruner import Pruner
from tests.contract.jobs import end, opened_desk, setback, states
from tests.contract.messages import id_of, message
from tests.contract.test_states import A
from tests.contract.units import (
    CRON,
    LEADER,
    end_unit,
    grant,
    runner_a,
    start_unit,
    stored_unit,
    trigger_tick,
    unit_key,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Ownership, Storage
    from tests.contract.conftest import Passing

__all__ = ["runner_a"]  # fixtures

MANY = 2_100
"""Ten times as many as were cleared away in a minute before there was one pruner."""


def pruner(storage: Storage, **settings: Any) -> Pruner:
    given = Settings.load({"retention": "30s", "key_retention": "30s", **settings}, environ={})
    return Pruner(storage, given, chance=Random(1), supervisor=Supervisor(Random(1)))


async def execute(storage: Any, *, sqlite: str, postgres: str) -> None:
    if isinstance(storage, SqliteStorage):
        await storage._main.transact(lambda c: c.execute(sqlite).fetchall(), doing="prepare")
    else:
        await storage.pool.write(postgres)


async def test_ten_times_as_many_finished_runs_as_before_go_in_one_pass(storage: Storage, runner_a: Ownership) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage)
    await start_unit(storage, "young")
    for each in ("one", "young"):
        await end_unit(storage, claim, unit_key(each))
    columns = "cluster, unit, kind, name, id, seat, status"
    await execute(
        storage,
        sqlite=f"with n (n) as (select 1 union all select n + 1 from n where n < {MANY}) insert into units"
        f" ({columns}, started_at_ns, changed_at_ns, ended_at_ns) select cluster, unit || n, kind, name, id, seat,"
        f" status, started_at_ns, changed_at_ns, ended_at_ns - 60000000000 from units cross join n"
        f" where unit = '{unit_key()}'",
        postgres=f"insert into coterie.units ({columns}, started_at, changed_at, ended_at)"
        " select cluster, unit || n, kind, name, id, seat, status, started_at, changed_at, ended_at - interval '60 s'"
        f" from coterie.units cross join generate_series(1, {MANY}) as n where unit = '{unit_key()}'",
    )
    late = await storage.overdue(retention_s=30, key_retention_s=30)
    assert late.keys() == {"units"}
    assert 29 < late["units"] < 300
    assert (await pruner(storage).prune())["units"] == MANY
    assert await storage.overdue(retention_s=30, key_retention_s=30) == {}
    assert (
        (await stored_unit(storage, unit_key())).status
        == (await stored_unit(storage, unit_key("young"))).status
        == "done"
    ), "they are young"


async def test_every_table_says_for_how_long_its_oldest_row_should_be_gone(
    storage: Storage, runner_a: Ownership, passing: Passing
) -> None:
    claim, _ = await grant(runner_a), await start_unit(storage)
    assert await storage.overdue(retention_s=0, key_retention_s=0) == {}, "what goes on is not due"
    cron = await grant(runner_a, A, CRON)
    await trigger_tick(storage, cron)
    await end_unit(storage, claim, unit_key())
    await storage.kv.put(KvPut("k", b"v", 1, 0.01, None))
    await storage.kv.put(KvPut("kept", b"v", 2, None, None))
    await passing(0.5)
    found = await storage.overdue(retention_s=0, key_retention_s=0)
    assert found.keys() == {"units", "kv"}
    assert all(0 < late_s < 300 for late_s in found.values())
    assert (await storage.overdue(retention_s=3600, key_retention_s=3600)).keys() == {"kv"}
    assert (await pruner(storage).prune())["kv"] == 1
    assert await storage.kv.get("kept") is not None
    assert (await storage.overdue(retention_s=0, key_retention_s=0)).keys() == {"units"}, "it is kept for half a minute"


async def test_jobs_that_have_ended_go_and_dead_ones_stay(storage: Storage) -> None:
    """Of those with a key after `key_retention`."""
    async with opened_desk(storage) as desk:
        for number in range(1, 6):
            delivery = await desk.begin(number, key="k" if number == 2 else None)
            if number == 3:
                await storage.jobs.setback(setback(delivery, None))
            elif number != 4:
                await storage.jobs.end(end(delivery, discarded=number == 5))
    assert await storage.overdue(retention_s=3600, key_retention_s=3600) == {}
    ago_ns = int(((await storage.now()) - timedelta(seconds=100)).timestamp() * 1e9)
    await execute(
        storage,
        sqlite=f"update jobs set ended_at_ns = {ago_ns} where ended_at_ns is not null",
        postgres="update coterie.jobs set ended_at = now() - interval '100 s' where ended_at is not null",
    )
    late = await storage.overdue(retention_s=10, key_retention_s=3600)
    assert late.keys() == {"jobs"}
    assert 89 < late["jobs"] < 400
    assert (await pruner(storage, retention="40s", key_retention="1h").prune())["jobs"] == 2
    assert await states(storage, 1, 2, 3, 4, 5) == [None, "done", "dead", "claimed", None]
    assert await storage.overdue(retention_s=10, key_retention_s=3600) == {}
    assert (await storage.overdue(retention_s=10, key_retention_s=10)).keys() == {"jobs"}


async def test_messages_ticks_and_states_say_so_too_until_they_are_pruned(
    storage: Storage, runner_a: Ownership
) -> None:
    """Each by its own time: of messages with a key that is `key_retention`."""
    leader = await grant(runner_a, A, LEADER)
    await trigger_tick(storage, await grant(runner_a, A, CRON))
    await storage.messages.insert(message(1))
    await storage.messages.insert(message(2, key="k"))
    assert await storage.states.save(StateSave(leader, "importer", b"1", 0, 3600.0)) == "written"
    assert await storage.overdue(retention_s=0, key_retention_s=0) == {}, "what goes on is not due"
    ago_ns = int(((await storage.now()) - timedelta(seconds=100)).timestamp() * 1e9)
    for table, change, at in (
        ("messages", "status = 1", "completed_at"),
        ("ticks", "outcome = 'ran'", "ended_at"),
        ("states", "version = version", "expires_at"),
    ):
        await execute(
            storage,
            sqlite=f"update {table} set {change}, {at}_ns = {ago_ns}",
            postgres=f"update coterie.{table} set {change}, {at} = now() - interval '100 s'",
        )
    late = await storage.overdue(retention_s=10, key_retention_s=3600)
    assert late.keys() == {"messages", "ticks", "states"}
    assert 89 < late["messages"] < 400
    assert 89 < late["ticks"] < 400
    assert 99 < late["states"] < 400
    deleted = await pruner(storage, retention="40s", key_retention="1h").prune()
    assert (deleted["messages"], deleted["ticks"], deleted["states"]) == (1, 1, 1)
    assert await storage.overdue(retention_s=10, key_retention_s=3600) == {}
    (kept,) = await storage.messages.look([id_of(1), id_of(2)])
    assert kept.id == id_of(2)
    assert (await storage.overdue(retention_s=10, key_retention_s=10)).keys() == {"messages"}
