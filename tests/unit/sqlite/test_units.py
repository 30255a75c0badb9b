"""Durable work in a file: what takes no lock, groups whose members share statements, plans, and what is left of it."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.units import StepWrite, UnitEnd, UnitStart
from coterie.storage.interface import Claim, KvPut, Registration, SeatDeclaration
from coterie.storage.sqlite import seats, unit_writes
from coterie.storage.sqlite import storage as engine
from coterie.storage.sqlite.store import Scope, repeated
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import apsw

    from coterie.storage.interface import Write
    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Opener

RUNNER, SEAT = "a" * 32, "shard:default:1"
CLAIM = Claim(RUNNER, SEAT, 1)
UNITS = [f"workflow:W/{number}" for number in range(4)]
UNIT = UNITS[0]
START = datetime(2024, 2, 29, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def clock() -> ManualClock:
    """It stands still until it is told to go on."""
    return ManualClock(START)


@pytest.fixture
async def storage(new: Opener, clock: ManualClock) -> AsyncIterator[SqliteStorage]:
    """One with a runner that holds a shard, and workflows on it."""
    async with new(settings={"audit": True}, clock=clock) as storage:
        await storage._main.transact(_hold, doing="take seats")
        for unit in UNITS:
            await storage.units.start(begun(unit))
        yield storage


def _hold(connection: apsw.Connection) -> None:
    scope = Scope("default", 0)
    me = Registration(id=RUNNER, name="a", address="", host_id="", groups=("default",))
    seats.register(connection, scope, me)
    seats.declare(connection, scope, [SeatDeclaration(SEAT, "default")])
    seats.acquire(connection, scope, RUNNER, [SEAT])


def begun(unit: str, **options: Any) -> UnitStart:
    return UnitStart(unit=unit, name="W", id=unit, seat=SEAT, payload=b"p", digest=b"d", **options)


def step(unit: str, position: int = 0, **options: Any) -> StepWrite:
    return StepWrite(CLAIM, unit, "", position, **{"kind": "step", "name": "s", "value": b"v", **options})


async def committed(storage: SqliteStorage, *group: Write) -> list[Any]:
    """What members of one group are told."""
    results = await asyncio.gather(*(storage.write(write) for write in group))
    return [getattr(result, "told", result) for result in results]


async def rows(storage: SqliteStorage, sql: str) -> list[Any]:
    return await storage._main.read(lambda c: c.execute(sql).fetchall(), doing="look")


def is_forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("it was not to be called")


async def test_looks_without_news_do_not_ask_for_the_lock(
    storage: SqliteStorage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: they come every few seconds, and others wait for the lock."""
    units = storage.units
    assert await units.suspend(CLAIM, UNIT, waits=["x"], wake_s=1.0) == "suspended"
    await units.open(CLAIM, unit="leader:l/1", kind="leader", name="l", id="1")
    monkeypatch.setattr(storage._main, "transact", is_forbidden)
    assert (await units.take([CLAIM], most=9))[SEAT].wake_at == START + SECOND
    assert await units.take([Claim(RUNNER, SEAT, 9)], most=9) == {}
    assert await units.load(CLAIM, UNIT) is not None
    assert await units.load(Claim(RUNNER, SEAT, 9), UNIT) is None
    for which in ("1", "2"):  # no look: who goes on with a unit says so, and the purge spares it
        with pytest.raises(AssertionError):
            await units.open(CLAIM, unit=f"leader:l/{which}", kind="leader", name="l", id=which)
    clock.advance(SECOND)
    with pytest.raises(AssertionError):
        await units.take([CLAIM], most=9)


@pytest.fixture
def losing(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the lock has lost the seat when it has it."""
    transact = storage._main.transact

    async def first_release(*arguments: Any, **options: Any) -> Any:
        scope = Scope("default", 0)
        await transact(lambda c: seats.release(c, scope, RUNNER, name=SEAT, epoch=1), doing="release")
        return await transact(*arguments, **options)

    monkeypatch.setattr(storage._main, "transact", first_release)


async def test_a_seat_lost_between_look_and_lock_wakes_nobody(storage: SqliteStorage, request: Any) -> None:
    """C1: what decides is what is so under the lock."""
    await storage.units.suspend(CLAIM, UNIT, waits=[], wake_s=0.0)
    request.getfixturevalue("losing")
    assert await storage.units.take([CLAIM], most=9) == {}
    row = await storage.units.get(UNIT)
    assert row is not None
    assert row.status == "suspended"


@pytest.mark.usefixtures("losing")
async def test_a_seat_lost_between_look_and_lock_opens_nothing(storage: SqliteStorage) -> None:
    assert await storage.units.open(CLAIM, unit="leader:l/1", kind="leader", name="l", id="1") is None
    assert await storage.units.get("leader:l/1") is None


async def test_it_is_due_to_the_microsecond(storage: SqliteStorage, clock: ManualClock) -> None:
    tick = timedelta(microseconds=1)
    assert await storage.units.suspend(CLAIM, UNIT, waits=[], wake_s=1.0) == "suspended"
    for unit in UNITS[1:]:
        await committed(storage, UnitEnd(CLAIM, unit, "done"))
    clock.advance(SECOND - tick)
    found = (await storage.units.take([CLAIM], most=9))[SEAT]
    assert (found.rows, found.wake_at) == ((), START + SECOND)
    clock.advance(tick)
    found = (await storage.units.take([CLAIM], most=9))[SEAT]
    assert ([row.unit for row in found.rows], found.wake_at) == ([UNIT], None)


async def test_what_is_due_in_ages_is_due_at_the_end_of_time(storage: SqliteStorage) -> None:
    assert await storage.units.suspend(CLAIM, UNIT, waits=[], wake_s=1e300) == "suspended"
    (told,) = await asyncio.gather(storage.units.step(step(UNITS[1], kind="sleep", done=False, due_s=1e300)))
    row = await storage.units.get(UNIT)
    assert row is not None
    assert row.wake_at is not None
    assert told.row is not None
    assert told.row.due_at == row.wake_at > START + timedelta(days=365 * 200)
    assert (await storage.units.purge(older_s=1e300, most=9)).most == 0


async def test_members_of_one_group_share_their_statements(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    for kind, name, function in ((StepWrite, "step", unit_writes.step), (UnitEnd, "end", unit_writes.end)):

        def counted(c: Any, scope: Any, writes: Any, name: Any = name, function: Any = function) -> Any:
            calls.append((name, len(writes)))
            return function(c, scope, writes)

        monkeypatch.setitem(engine._HANDLERS, kind, counted)
    both = [step(unit, position) for unit in UNITS for position in range(2)]
    assert await committed(storage, *both, KvPut("k", b"", 1)) == [*["written"] * 8, None]
    ends = [UnitEnd(CLAIM, unit, "done") for unit in UNITS[:2]]
    assert await committed(storage, *ends, step(UNITS[2], 2), step(UNITS[3], 2)) == ["written"] * 4
    assert calls == [("step", 8), ("step", 2), ("end", 2)]
    calls.clear()
    last = [UnitEnd(CLAIM, unit, "done") for unit in UNITS[2:]]
    assert await committed(storage, step(UNITS[2], 3), *last) == ["written"] * 3
    assert calls == [("step", 1), ("end", 2)]
    calls.clear()
    assert await committed(storage, UnitEnd(CLAIM, UNIT, "done"), step(UNIT, 9), UnitEnd(CLAIM, UNIT, "done")) == [
        "over",
        "over",
        "over",
    ]
    assert calls == [("end", 1), ("step", 1), ("end", 1)], "order counts: one after another"


async def test_a_member_that_cannot_be_stored_fails_alone(storage: SqliteStorage) -> None:
    """M3: the others are written, though they share its statement."""
    writes = [step(unit, name="\ud800" if unit == UNIT else "s") for unit in UNITS]
    results: list[Any] = await asyncio.gather(*map(storage.units.step, writes), return_exceptions=True)
    assert isinstance(results[0], PersistenceError)
    assert [result.told for result in results[1:]] == ["written"] * 3
    found = [await storage.units.get(unit) for unit in UNITS]
    assert [row.steps for row in found if row is not None] == [0, 1, 1, 1]


async def test_what_the_fence_refuses_is_noted(storage: SqliteStorage) -> None:
    gone = Claim(RUNNER, SEAT, 7)
    late = StepWrite(gone, UNIT, "", 0, "step", "s")
    assert [await committed(storage, write) for write in (late, UnitEnd(gone, UNIT, "done"))] == [["fenced"]] * 2
    assert await committed(storage, late, step(UNITS[1])) == ["fenced", "written"]
    assert await storage.units.suspend(gone, UNIT, waits=[], wake_s=None) == "fenced"
    found = await rows(storage, "select runner, seat, epoch, note from audit where kind = 'refused'")
    assert found == [(RUNNER, SEAT, 7, UNIT)] * 4


async def test_nothing_is_left_of_what_is_purged(storage: SqliteStorage, clock: ManualClock) -> None:
    """W5: no row is without its unit."""
    await storage.units.start(begun("workflow:W/child", parent=UNIT, waited_as="c"))
    await committed(storage, *map(step, UNITS))
    for unit in (*UNITS, "workflow:W/never"):
        await storage.units.resolve(unit, "x", value=b"v", error=None)
    await storage.units.open(CLAIM, unit="leader:l/1", kind="leader", name="l", id="1")
    await committed(storage, step("leader:l/1"))
    await committed(storage, *(UnitEnd(CLAIM, unit, "done") for unit in (*UNITS, "workflow:W/child")))
    kept = ["leader:l/1", *sorted(UNITS)]
    assert await rows(storage, "select unit from steps order by 1") == [(unit,) for unit in kept]
    clock.advance(SECOND)
    assert (await storage.units.purge(older_s=0.5, most=9)).abandoned == ("leader:l/1",)
    assert (
        await rows(storage, "select unit from units union select unit from steps union select unit from deferreds")
        == []
    )


SCANNED = {"asked", "said", "json_each"}
WHOLE = {"after_jobs": ["SEARCH s USING INDEX steps_maps (cluster=?)"]}
"""Walks along partial indexes which have only what is asked for: the open maps."""


@pytest.mark.parametrize("analysed", [False, True])
@pytest.mark.parametrize("name", sorted(unit_writes.SQL))
async def test_statements_find_their_rows_by_keys(storage: SqliteStorage, name: str, analysed: bool) -> None:
    """STACK 1b: nothing is walked along but the list of what is asked, however many units and steps there are."""
    if analysed:
        await storage._main.transact(_grow, doing="grow")
    many = "-- each" in unit_writes.SQL[name]
    asked = f"explain query plan {repeated(unit_writes.SQL[name], 64) if many else unit_writes.SQL[name]}"
    names: dict[str, Any] = {"cluster": "default", "rows": "[]", "units": "[]", "seats": "[]", "names": "[]"}
    given: Any = dict.fromkeys(re.findall(r":([a-z_]+)", asked), 0) | names
    if many:
        given = ("default", 0, *[0] * (asked.count("?") - len(re.findall(r"\?\d", asked))))
    steps = await storage._main.transact(lambda c: [str(row[3]) for row in c.execute(asked, given)], doing="explain")
    walks = [each for each in steps if each.startswith("SCAN") and not each.startswith(("SCAN (sub", "SCAN CONST"))]
    assert all(each.split()[1] in SCANNED or "VALUES" in each for each in walks), steps
    if name != "list":
        assert [each for each in steps if each.endswith("(cluster=?)")] == WHOLE.get(name, []), steps
    assert not any("TEMP B-TREE FOR ORDER BY" in each for each in steps) or name in ("taken", "list_tagged"), steps


async def test_lists_walk_along_an_index_in_order(storage: SqliteStorage) -> None:
    """Whatever is chosen, the rows of others are not looked at."""
    asked, names = f"explain query plan {unit_writes.SQL['list']}", {"cluster": "x", "status": None, "name": None}
    given: Any = {**names, "before_ns": None, "most": 1}
    steps = await storage._main.read(lambda c: [str(row[3]) for row in c.execute(asked, given)], doing="explain")
    assert steps[0] == "SEARCH u USING INDEX units_changed (cluster=?)"
    assert [each for each in steps[1:] if not each.startswith("CORRELATED")] == [
        "SEARCH t USING INDEX sqlite_autoindex_steps_1 (cluster=? AND unit=?)"  # counted for those that are listed
    ]


def _grow(connection: apsw.Connection) -> None:
    """Many units, and what SQLite learns of them."""
    connection.execute(
        """
        insert into units (cluster, unit, kind, name, id, seat, status, started_at_ns, changed_at_ns, ended_at_ns)
        with recursive n (i) as (select 1 union all select i + 1 from n where i < 5000)
        select 'default', 'u' || i, 'workflow', 'W', i, 'shard:' || (i % 50),
            iif(i % 10, 'done', 'running'), i, i, iif(i % 10, i, null) from n
        """
    )
    connection.execute(
        """
        insert into steps (cluster, at_ns, unit, branch, position, kind, name, digest, done)
        select 'default', 0, unit, '', p.value, 'step', 's', x'', 1
        from units, json_each('[0, 1, 2]') as p where ended_at_ns is null
        """
    )
    connection.execute(
        """
        insert into deferreds (cluster, unit, name, resolved_at_ns, early)
        select 'default', unit, 'd', started_at_ns, started_at_ns % 20 = 0 from units where ended_at_ns is null
        """
    )
    connection.execute("analyze").fetchall()
