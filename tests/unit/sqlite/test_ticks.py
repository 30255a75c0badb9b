"""Crons in a file: which look takes no lock, groups whose members share statements, plans, and clocks that go back."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.ticks import CronTakeover, PauseRow, TickClaim, TickNote, Verdict
from coterie.storage.interface import Claim, KvPut, Registration, SeatDeclaration
from coterie.storage.sqlite import seats, tick_writes
from coterie.storage.sqlite import storage as engine
from coterie.storage.sqlite.store import Scope
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import apsw

    from coterie.storage.interface import Write
    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Opener

RUNNER = "a" * 32
NAMES = [f"cron {number}" for number in range(4)]
CLAIMS = {name: Claim(RUNNER, f"cron:{name}", 1) for name in NAMES}
NAME, CLAIM = NAMES[0], CLAIMS[NAMES[0]]
START = datetime(2024, 2, 29, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def clock() -> ManualClock:
    """It stands still until it is told to go on."""
    return ManualClock(START)


@pytest.fixture
async def storage(new: Opener, clock: ManualClock) -> AsyncIterator[SqliteStorage]:
    """One with a runner that holds crons."""
    async with new(settings={"audit": True}, clock=clock) as storage:
        await storage._main.transact(_hold, doing="take seats")
        yield storage


def _hold(connection: apsw.Connection) -> None:
    scope = Scope("default", 0)
    me = Registration(id=RUNNER, name="a", address="", host_id="", groups=("default",))
    seats.register(connection, scope, me)
    seats.declare(connection, scope, [SeatDeclaration(claim.seat, "default", "s:o") for claim in CLAIMS.values()])
    seats.acquire(connection, scope, RUNNER, [claim.seat for claim in CLAIMS.values()])


def ask(name: str, *, last: datetime | None = None, at: datetime = START, **options: Any) -> TickClaim:
    return TickClaim(CLAIMS[name], name, "s", last, (Verdict(at, at),), **options)


def note(name: str, *, at: datetime = START, **options: Any) -> TickNote:
    return TickNote(CLAIMS[name], name, "scheduled", at, 0, 1, **options)


async def committed(storage: SqliteStorage, *group: Write) -> list[Any]:
    """What members of one group are told."""
    results = await asyncio.gather(*(storage.write(write) for write in group))
    return [getattr(result, "told", result) for result in results]


def is_forbidden(*_: object, **__: object) -> Any:
    raise AssertionError("it was not to be called")


async def test_a_take_without_news_does_not_ask_for_the_lock(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C3: it comes every few seconds, and others wait for the lock."""
    takes = [CronTakeover(claim, name, "{}") for name, claim in CLAIMS.items()]
    await storage.ticks.take(takes)
    assert await committed(storage, ask(NAME)) == ["written"]
    monkeypatch.setattr(storage._main, "transact", is_forbidden)
    books = await storage.ticks.take([*takes[:2], *(CronTakeover(take.claim, take.name) for take in takes[2:])])
    assert [len(books[name].open) for name in NAMES] == [1, 0, 0, 0]
    gone = Claim(RUNNER, CLAIM.seat, 9)
    assert await storage.ticks.take([CronTakeover(gone, NAME, "other")]) == {}
    with pytest.raises(AssertionError):
        await storage.ticks.take([CronTakeover(CLAIM, NAME, "other")])
    monkeypatch.undo()
    await storage.ticks.trigger(NAME)
    monkeypatch.setattr(storage._main, "transact", is_forbidden)
    with pytest.raises(AssertionError):
        await storage.ticks.take(takes)


async def test_a_seat_lost_between_look_and_lock_is_looked_at_again(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C1: what decides is what is so under the lock."""
    transact = storage._main.transact

    async def first_release(*arguments: Any, **options: Any) -> Any:
        scope = Scope("default", 0)
        await transact(lambda c: seats.release(c, scope, RUNNER, name=CLAIM.seat, epoch=1), doing="release")
        return await transact(*arguments, **options)

    await storage.ticks.trigger(NAME)
    monkeypatch.setattr(storage._main, "transact", first_release)
    assert await storage.ticks.take([CronTakeover(CLAIM, NAME, "{}")]) == {}
    monkeypatch.undo()
    (row,) = await storage.ticks.history(NAME, most=9)
    assert (row.epoch, row.attempt) == (0, 0)


async def test_crons_of_one_group_share_their_statements(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    for kind, name, function in ((TickClaim, "claim", tick_writes.claim), (TickNote, "note", tick_writes.note)):

        def counted(c: Any, scope: Any, writes: Any, name: Any = name, function: Any = function) -> Any:
            calls.append((name, len(writes)))
            return function(c, scope, writes)

        monkeypatch.setitem(engine._HANDLERS, kind, counted)
    assert await committed(storage, *map(ask, NAMES), KvPut("k", b"", 1)) == [*["written"] * 4, None]
    ends = [note(name, outcome="ran") for name in NAMES]
    second = ask(NAMES[3], last=START, at=START - MINUTE)
    assert await committed(storage, *ends, second) == [*["written"] * 4, "moved"]
    assert calls == [("claim", 4), ("note", 4), ("claim", 1)]


async def test_a_member_that_cannot_be_stored_fails_alone(storage: SqliteStorage) -> None:
    """M3: the others are written, though they share its statement."""
    assert await committed(storage, *map(ask, NAMES)) == ["written"] * 4
    writes = [note(name, done=2**63 if name == NAME else 1, outcome="ran") for name in NAMES]
    results = await asyncio.gather(*map(storage.ticks.note, writes), return_exceptions=True)
    assert isinstance(results[0], PersistenceError)
    assert results[1:] == ["written"] * 3
    rows = [await storage.ticks.get(name, "scheduled", START, 0) for name in NAMES]
    assert [row.outcome for row in rows if row is not None] == [None, "ran", "ran", "ran"]


async def test_what_the_fence_refuses_is_noted(storage: SqliteStorage) -> None:
    gone = Claim(RUNNER, CLAIM.seat, 7)
    writes: list[Write] = [
        TickClaim(gone, NAME, "s", None, (Verdict(START, START),)),
        TickNote(gone, NAME, "manual", START, 1, 1),
    ]
    assert [await committed(storage, write) for write in writes] == [["fenced"], ["fenced"]]
    assert await committed(storage, writes[0], ask(NAMES[1])) == ["fenced", "written"]
    sql = "select runner, seat, epoch, note from audit where kind = 'refused'"
    rows = await storage._main.read(lambda c: c.execute(sql).fetchall(), doing="look")
    assert rows == [(RUNNER, CLAIM.seat, 7, CLAIM.seat)] * 3


async def test_pauses_stay_in_order_when_the_clock_stands_still_or_goes_back(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    """What decides about ticks relies on pauses that do not overlap."""

    async def pauses() -> list[PauseRow]:
        return list((await storage.ticks.take([CronTakeover(CLAIM, NAME)]))[NAME].pauses)

    for _ in range(2):
        assert await storage.ticks.pause(NAME)
        assert await storage.ticks.resume(NAME)
    assert await pauses() == [PauseRow(START, START)]
    assert await storage.ticks.pause(NAME)
    clock.step_wall(-MINUTE)
    assert await storage.ticks.resume(NAME)
    assert await pauses() == [PauseRow(START, START)]
    assert await storage.ticks.pause(NAME)
    clock.step_wall(2 * MINUTE)
    assert await storage.ticks.resume(NAME)
    assert await pauses() == [PauseRow(START, START + MINUTE)]
    clock.step_wall(-2 * MINUTE)
    assert await storage.ticks.pause(NAME)
    assert await pauses() == [PauseRow(START, START + MINUTE), PauseRow(START + MINUTE, None)]


async def test_what_is_triggered_while_the_clock_stands_still_is_told_apart(storage: SqliteStorage) -> None:
    rows = [await storage.ticks.trigger(NAME) for _ in range(3)]
    assert [(row.at, row.seq) for row in rows if row is not None] == [(START, 1), (START, 2), (START, 3)]


async def test_pauses_whose_ticks_have_no_verdict_yet_outlive_the_purge(
    storage: SqliteStorage, clock: ManualClock
) -> None:
    """C3: else ticks of a pause would run late if nobody held the cron for so long."""
    assert await storage.ticks.pause(NAME)
    clock.advance(MINUTE)
    assert await storage.ticks.resume(NAME)
    clock.advance(100 * MINUTE)

    async def left(older_s: float = 60) -> int:
        await storage.ticks.purge(older_s=older_s, most=10)
        found = await storage._main.read(lambda c: c.execute("select count(*) from cron_pauses").get, doing="look")
        return int(found)

    assert await left() == 1
    assert await committed(storage, ask(NAME)) == ["written"]
    assert await left() == 1
    assert await committed(storage, ask(NAME, last=START, at=START + 2 * MINUTE)) == ["written"]
    assert await left(100 * 60 + 1) == 1, "it ended not so long ago"
    assert await left() == 0


async def test_a_tick_is_due_to_the_microsecond(storage: SqliteStorage, clock: ManualClock) -> None:
    """C2: by the clock of the machine, which is the database's."""
    soon = START + timedelta(microseconds=2)
    write = TickClaim(CLAIM, NAME, "s", None, (Verdict(soon, soon),), 1.5)
    for step, told in ((timedelta(seconds=1.5), "early"), (timedelta(microseconds=1), "early")):
        clock.advance(step)
        assert await committed(storage, write) == [told]
    clock.advance(timedelta(microseconds=1))
    assert await committed(storage, write) == ["written"]
    row = await storage.ticks.get(NAME, "scheduled", soon, 0)
    assert row is not None
    assert row.late_s == 0.0


@pytest.mark.parametrize("name", sorted(tick_writes.SQL))
@pytest.mark.parametrize("analysed", [False, True])
async def test_statements_find_their_rows_by_keys(storage: SqliteStorage, name: str, analysed: bool) -> None:
    """STACK 1b: nothing is walked along but the list of what is asked; neither are all ticks of a cluster or a cron."""
    assert await committed(storage, *map(ask, NAMES)) == ["written"] * 4
    if analysed:
        await storage._main.transact(_grow, doing="grow")
    asked = f"explain query plan {tick_writes.SQL[name]}"
    names: dict[str, Any] = {"cluster": "default", "asked": "[]", "rows": "[]", "kind": "manual", "name": "x"}
    given = dict.fromkeys(re.findall(r":([a-z_]+)", asked), 0) | names
    steps = await storage._main.transact(lambda c: [str(row[3]) for row in c.execute(asked, given)], doing="explain")
    walks = [step for step in steps if step.startswith("SCAN") and not step.startswith("SCAN (subquery")]
    assert all(step.split()[1] in ("asked", "json_each") for step in walks), steps
    if name != "purge_pauses":  # they are few, and it comes only now and then
        assert [step for step in steps if step.endswith("(cluster=?)")] == [], steps
    ticks = [step for step in steps if step.startswith(("SEARCH t ", "SEARCH ticks "))]
    assert all("INDEX ticks_" in step or "at_ns" in step for step in ticks), steps


def _grow(connection: apsw.Connection) -> None:
    """A year of ticks, and what SQLite learns of them."""
    connection.execute(
        """
        insert into ticks (
            cluster, name, kind, at_ns, seq, until_at_ns, epoch, attempt, outcome, claimed_at_ns, ended_at_ns
        )
        with recursive n (i) as (select 1 union all select i + 1 from n where i < 5000)
        select 'default', 'cron ' || (i % 4), 'scheduled', i, 0, i, 1, 1, 'ran', i, i from n
        """
    )
    connection.execute("analyze").fetchall()
