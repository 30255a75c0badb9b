"""What a leader says of its work: taken over, said soon, and never the reason that it stops (S3, H1) [m14]."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import LeadershipLost, PersistenceError
from coterie.ownership.seats import Tenure, Trust
from coterie.singletons import heartbeat
from coterie.singletons.heartbeat import Heartbeats
from coterie.storage.contracts.executions import ExecutionRecord
from coterie.storage.interface import Claim
from tests.support.manual_clock import ManualClock
from tests.support.services import services
from tests.unit.singletons.fake_storage import NOW, refused, unreachable, until

if TYPE_CHECKING:
    from coterie.storage.contracts.executions import Stamp, Stamped


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class FakeExecutions:
    """`storage.Executions` of one seat, as its holder sees it. The database's clock is a day ahead of ours."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.held = True
        self.failing: list[Exception] = []
        self.said: list[Stamp] = []

    async def begin(self, claim: Claim, *, leader: str, expected_s: float | None) -> ExecutionRecord | None:
        await self._passing()
        nothing: dict[str, Any] = dict.fromkeys(("ran_at", "progress_at", "error", "error_at", "done", "total"))
        known = {"known_at": NOW, "since_at": NOW, "alive_at": NOW, "runs": 0, "note": "", "now": NOW}
        given = {"seat": claim.seat, "epoch": claim.epoch, "leader": leader, "expected_s": expected_s}
        return ExecutionRecord(**nothing | known | given | self.found) if self.held else None

    async def stamp(self, write: Stamp) -> Stamped:
        await self._passing()
        if not self.held:
            return "fenced"
        self.said.append(write)
        return "written"

    async def _passing(self) -> None:
        await asyncio.sleep(0)
        if self.failing:
            raise self.failing.pop(0)


class BeatingLeader:
    def __init__(self, *, heartbeat_s: float = 30.0, expected_s: float | None = None) -> None:
        self.clock = ManualClock(datetime(2029, 12, 31, tzinfo=UTC))
        self.trust = Trust(self.clock)
        self.trust.extend(10**15)
        self.tenure = Tenure(Claim("a" * 32, "singleton:importer", 7), clean=True, trust=self.trust)
        self.executions = FakeExecutions()
        storage = SimpleNamespace(executions=self.executions)
        given = services(storage=storage, clock=self.clock, settings={"heartbeat": heartbeat_s})
        self.stamps = Heartbeats(self.tenure, given, expected_s=expected_s)

    async def said(self) -> Stamp:
        assert await self.stamps.write()
        return self.executions.said[-1]

    def passes(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))


async def test_what_former_leaders_said_is_taken_over_by_its_age() -> None:
    """S3: the clocks of two machines are never compared."""
    stage = BeatingLeader()
    ages = {"ran_at": 100, "progress_at": 50, "error_at": 10}
    stage.executions.found = {name: NOW - timedelta(seconds=age) for name, age in ages.items()}
    stage.executions.found |= {"runs": 41, "error": "ValueError: no"}
    await stage.stamps.begin()
    stage.passes(5)
    meta, now = stage.stamps.meta, stage.clock.wall_ns() / 1e9
    assert (meta.run_count, meta.last_error, meta.leader, meta.epoch) == (41, "ValueError: no", "r1", 7)
    assert meta.last_run_at is not None
    assert meta.last_heartbeat_at is not None
    assert now - meta.last_run_at.timestamp() == pytest.approx(105)
    assert now - meta.last_heartbeat_at.timestamp() == pytest.approx(55)
    said = await stage.said()
    assert (said.runs, said.error) == (41, "ValueError: no")
    assert (said.ran_s, said.progress_s, said.error_s) == (105, 55, 15)


async def test_of_what_never_ran_nothing_is_known() -> None:
    stage = BeatingLeader()
    await stage.stamps.begin()
    meta = stage.stamps.meta
    assert (meta.last_run_at, meta.run_count, meta.last_error, meta.last_heartbeat_at) == (None, 0, None, None)
    said = await stage.said()
    assert (said.ran_s, said.progress_s, said.error, said.error_s) == (None, None, None, None)


async def test_runs_progress_errors_and_heartbeats_are_said_with_their_ages() -> None:
    stage = BeatingLeader()
    await stage.stamps.begin()
    stage.stamps.ran()
    stage.passes(1)
    stage.stamps.beat("pages", 3, 10)
    stage.passes(1)
    stage.stamps.error(ValueError("no"))
    stage.passes(1)
    said = await stage.said()
    assert (said.runs, said.ran_s, said.progress_s) == (1, 3, 2)
    assert (said.error, said.error_s) == ("ValueError: no", 1)
    assert (said.note, said.done, said.total) == ("pages", 3, 10)
    stage.stamps.beat("", None, None)
    assert (await stage.said()).note == ""


async def test_a_wall_clock_that_steps_changes_no_age() -> None:
    stage = BeatingLeader()
    await stage.stamps.begin()
    stage.stamps.ran()
    stage.clock.step_wall(timedelta(days=-400))
    stage.passes(2)
    assert (await stage.said()).ran_s == 2


@pytest.mark.parametrize("text", ["zero \x00", "half \ud800", "x" * 100_000], ids=["zero", "surrogate", "long"])
async def test_whatever_it_says_can_be_stored(text: str) -> None:
    """A stamp that is refused would be no sign of life, and keep an execution from its beginning."""
    stage = BeatingLeader()
    await stage.stamps.begin()
    stage.stamps.beat(text, 1, 2)
    stage.stamps.error(ValueError(text))
    said = await stage.said()
    for stored in (said.note, said.error):
        assert stored
        assert "\x00" not in stored
        assert len(stored) <= 2000
        stored.encode()


async def test_an_error_that_cannot_be_printed_is_told_all_the_same() -> None:
    stage = BeatingLeader()
    stage.stamps.error(Unprintable())
    assert stage.stamps.meta.last_error == "Unprintable, which raises when it is asked what it says"


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 0.5, "3"])
async def test_a_number_that_cannot_be_stored_is_refused_at_once(number: Any) -> None:
    stage = BeatingLeader()
    with pytest.raises(ValueError, match=r"done of a heartbeat is .*, expected a whole number of 64 bits"):
        stage.stamps.beat("", number, None)
    with pytest.raises(ValueError, match="total of a heartbeat"):
        stage.stamps.beat("", None, number)


async def test_an_error_before_it_could_begin_is_not_forgotten() -> None:
    """What failed here is newer than what a former leader said."""
    stage = BeatingLeader()
    stage.executions.found = {"error": "old", "error_at": NOW - timedelta(days=1)}
    stage.executions.failing = [unreachable]
    with pytest.raises(PersistenceError):
        await stage.stamps.begin()
    stage.stamps.error(ValueError("new"))
    await stage.stamps.begin()
    said = await stage.said()
    assert (said.error, said.error_s) == ("ValueError: new", 0)


async def test_without_the_seat_nobody_begins() -> None:
    stage = BeatingLeader()
    stage.executions.held = False
    with pytest.raises(LeadershipLost):
        await stage.stamps.begin()


async def test_while_it_lives_it_says_so_and_what_is_new_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """H1: *alive* because this task runs on the loop of the body; it ends with the seat."""
    monkeypatch.setattr(heartbeat, "_SOON_S", 0.001)
    stage = BeatingLeader(heartbeat_s=0.1)
    await stage.stamps.begin()
    living = asyncio.create_task(stage.stamps.live())
    await until(lambda: len(stage.executions.said) >= 3)
    stage.stamps.beat("now", 1, 2)
    await until(lambda: stage.executions.said[-1].note == "now")
    stage.executions.held = False
    await living


async def test_many_heartbeats_are_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body may beat as often as it likes."""
    stage = BeatingLeader(heartbeat_s=3600)
    await stage.stamps.begin()
    living = asyncio.create_task(stage.stamps.live())
    for _ in range(2):
        for number in range(500):
            stage.stamps.beat("", number, None)
            await asyncio.sleep(0)
        await until(lambda: stage.executions.said)
    assert len(stage.executions.said) == 1
    living.cancel()


async def test_a_database_that_is_away_is_told_once_and_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(heartbeat, "_SOON_S", 0.001)
    stage = BeatingLeader(heartbeat_s=3600)
    await stage.stamps.begin()
    stage.executions.failing = [unreachable, refused, unreachable]
    stage.stamps.ran()
    living = asyncio.create_task(stage.stamps.live())
    await until(lambda: stage.executions.said)
    assert stage.executions.said[-1].runs == 1, "what is new is said as soon as it can be"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "the database is away" in caplog.text
    living.cancel()


async def test_a_run_that_must_be_known_is_insisted_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "AWAY_S", 0.001)
    stage = BeatingLeader()
    await stage.stamps.begin()
    stage.executions.failing = [unreachable, unreachable]
    stage.stamps.ran()
    await stage.stamps.write_until_stored()
    assert [said.runs for said in stage.executions.said] == [1]
    stage.executions.held = False
    with pytest.raises(LeadershipLost):
        await stage.stamps.write_until_stored()
    stage.executions.held = True
    stage.tenure.ended = True
    with pytest.raises(LeadershipLost):
        await stage.stamps.write_until_stored()
    assert len(stage.executions.said) == 1
