"""`cluster.schedules` and timers of entities: what a program sees of them (C9)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, ConfigurationError, Entity, ScheduleError, rpc
from coterie.kernel import chaos
from coterie.testing.simulation import Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Clock:
    """What entities have written down, and what of it holds them up."""

    told: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Armed:
    times: int = 0


def define(cluster: Cluster, clock: Clock) -> Any:
    @cluster.entity
    class Target(Entity[Armed]):
        @rpc(persisted=True)
        async def note(self, what: str) -> None:
            clock.told.append(what)

        @rpc(persisted=True)
        async def wait(self) -> None:
            await clock.gate.wait()

        @rpc(persisted=True, key="what")
        async def once(self, what: str) -> None: ...

        @rpc
        async def volatile(self) -> None: ...

        @rpc
        async def arm(self, name: str, what: str, after_s: float | None, every_s: float | None = None) -> None:
            self.state.times += 1
            self.timer(name, self.me.note(what), after=after_s, every=every_s)

        @rpc
        async def fail(self) -> None:
            self.timer("x", self.me.note("of a failed rpc"), after="1s")
            self.cancel_timer("y")
            raise ValueError("on purpose")

        @rpc
        async def disarm(self, name: str) -> None:
            self.cancel_timer(name)

        @rpc
        async def arm_wrongly(self, how: str) -> str:
            wrong: dict[str, Any] = {
                "neither": lambda: self.timer("x", self.me.note("")),
                "both": lambda: self.timer("x", self.me.note(""), after=1, every=1),
                "fraction": lambda: self.timer("x", self.me.note(""), every="1500ms"),
                "slash": lambda: self.timer("a/b", self.me.note(""), after=1),
                "key": lambda: self.timer("x", self.me.once(""), after=1),
                "volatile": lambda: self.timer("x", self.me.volatile(), after=1),
            }
            try:
                wrong[how]()
            except (TypeError, ValueError) as error:
                return str(error)
            return "nothing"

    return Target


@asynccontextmanager
async def simulated(*, runners: int = 2) -> AsyncIterator[tuple[Simulation, Cluster, Any, Clock]]:
    cluster, clock = Cluster("sqlite://", shards=3, drain="3s"), Clock()
    target = define(cluster, clock)
    chaos.install(None)
    async with simulate(cluster, runners=0, start_at=NOON) as sim:
        sim.database.weather.slow = 0.0
        await sim.start(runners)
        await sim.advance(1)
        yield sim, cluster, cluster.ref(target, "a"), clock


def noon(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


@pytest.mark.simulated(seeds=1)
async def test_a_schedule_sends_its_call_until_it_is_removed() -> None:
    async with simulated() as (sim, cluster, target, clock):
        info = await cluster.schedules.put("x", "*/10 * * * * *", target.note("x"))
        assert (info.name, info.schedule, info.calls) == ("x", "*/10 * * * * *", "Target/a.note")
        await sim.advance(30)
        assert clock.told == ["x"] * 3
        assert await cluster.schedules.remove("x")
        assert not await cluster.schedules.remove("x")
        await sim.advance(30)
        assert clock.told == ["x"] * 3
        with pytest.raises(ValueError, match="there is no schedule 'x' in this cluster: there are none"):
            await cluster.schedules.get("x")


@pytest.mark.simulated(seeds=1)
async def test_the_same_content_changes_nothing_and_other_content_counts_from_now() -> None:
    async with simulated() as (sim, cluster, target, clock):
        first = await cluster.schedules.put("x", "@every 10s", target.note("x"))
        await sim.advance(6)
        assert (await cluster.schedules.put("x", "@every  10s", target.note("x"))).since == first.since
        await sim.advance(5)
        assert clock.told == ["x"]
        changed = await cluster.schedules.put("x", "@every 10s", target.note("y"))
        assert changed.since > first.since
        await sim.advance(9)
        assert clock.told == ["x"]
        await sim.advance(2)
        assert clock.told == ["x", "y"]


@pytest.mark.simulated(seeds=1)
async def test_a_pause_holds_through_another_put_and_what_it_missed_is_one_span() -> None:
    async with simulated() as (sim, cluster, target, clock):
        await cluster.schedules.put("x", "@every 1s", target.note("x"))
        assert await cluster.schedules.pause("x")
        assert not await cluster.schedules.pause("x")
        await cluster.schedules.put("x", "* * * * * *", target.note("y"))
        assert (await cluster.schedules.get("x")).next_at is None
        await sim.advance(10)
        assert clock.told == []
        assert await cluster.schedules.resume("x")
        assert not await cluster.schedules.resume("x")
        await sim.advance(2)
        history = await cluster.schedules.history("x")
        assert [(each.count > 8, each.reason) for each in history][-1] == (True, "paused")
        assert all(each.message for each in history[:-1])
        assert clock.told == ["y"] * (len(history) - 1)


@pytest.mark.simulated(seeds=1)
async def test_an_instant_is_due_once_and_its_schedule_is_over() -> None:
    async with simulated() as (sim, cluster, target, clock):
        await cluster.schedules.put("x", sim.now() + timedelta(seconds=5), target.note("x"))
        past = await cluster.schedules.put("past", noon(-5), target.note("past"))
        assert past.is_over
        await sim.advance(7)
        assert clock.told == ["x"]
        assert (await cluster.schedules.get("x")).is_over
        assert await cluster.schedules.preview("x") == []


@pytest.mark.simulated(seeds=1)
async def test_with_queue_one_waits_until_the_last_message_is_over() -> None:
    async with simulated() as (sim, cluster, target, clock):
        await cluster.schedules.put("x", "@every 1s", target.wait(), overlap="queue")
        await sim.advance(6)
        assert [each.reason for each in await cluster.schedules.history("x") if each.message] == [""]
        clock.gate.set()
        await sim.advance(4)
        assert len([each for each in await cluster.schedules.history("x") if each.message]) > 2


@pytest.mark.simulated(seeds=1)
async def test_instants_are_sent_once_more_and_only_once_so() -> None:
    async with simulated() as (sim, cluster, target, clock):
        await cluster.schedules.put("x", "*/10 * * * * *", target.note("x"), end=noon(5))
        ids = await cluster.schedules.backfill("x", noon(-30), noon(0))
        assert ids == await cluster.schedules.backfill("x", noon(-30), noon(0))
        assert len(ids) == 3
        await sim.advance(2)
        assert clock.told == ["x"] * 3
        with pytest.raises(ValueError, match="has 1080 instants in that time: send 1000 at most at once"):
            await cluster.schedules.backfill("x", noon(-10_800), noon(0))


@pytest.mark.simulated(seeds=1)
async def test_a_preview_shows_what_comes_within_its_bounds() -> None:
    async with simulated() as (_, cluster, target, _):
        await cluster.schedules.put("x", "0 * * * * *", target.note("x"), start=noon(100), end=noon(200))
        assert [each.at for each in await cluster.schedules.preview("x")] == [noon(120), noon(180)]
        names = ["y/1", "y/2"]
        for name in names:
            await cluster.schedules.put(name, "@daily", target.note("x"))
        assert [each.name for each in await cluster.schedules.list("y/")] == names


@pytest.mark.simulated(seeds=1)
async def test_what_makes_no_schedule_is_refused_with_what_to_do() -> None:
    async with simulated() as (_, cluster, target, _):
        put = cluster.schedules.put
        with pytest.raises(ScheduleError):
            await put("x", "61 * * * *", target.note("x"))
        with pytest.raises(ScheduleError, match="Europe/Zürich"):
            await put("x", "@daily", target.note("x"), timezone="Europe/Zürich")
        with pytest.raises(ConfigurationError, match="overlap of schedule 'x' is 'never'"):
            await put("x", "@daily", target.note("x"), overlap="never")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="has a key, so that each schedule would run it once only"):
            await put("x", "@daily", target.once("x"))
        with pytest.raises(TypeError, match="is not persisted"):
            await put("x", "@daily", target.volatile())
        with pytest.raises(ValueError, match="which has no time zone"):
            await put("x", datetime(2026, 3, 1), target.note("x"))  # noqa: DTZ001
        assert await cluster.schedules.list() == []


# Timers


@pytest.mark.simulated(seeds=1)
async def test_a_timer_is_set_replaced_and_cancelled() -> None:
    async with simulated() as (sim, _, target, clock):
        await target.arm("x", "first", 5)
        await target.arm("x", "second", 8)
        await target.arm("y", "cancelled", 5)
        await target.disarm("y")
        await sim.advance(7)
        assert clock.told == []
        await sim.advance(2)
        assert clock.told == ["second"]
        await target.arm("beat", "beat", None, 2)
        await sim.advance(7)
        assert clock.told[1:] in (["beat"] * 3, ["beat"] * 4)
        await target.disarm("beat")
        count = len(clock.told)
        await sim.advance(5)
        assert len(clock.told) == count


@pytest.mark.simulated(seeds=1)
async def test_an_rpc_that_raises_leaves_timers_as_they_were() -> None:
    async with simulated() as (sim, _, target, clock):
        await target.arm("y", "y", 3)
        with pytest.raises(Exception, match="on purpose"):
            await target.fail()
        await sim.advance(5)
        assert clock.told == ["y"]


@pytest.mark.simulated(seeds=1)
async def test_a_timer_outlives_the_runner_that_set_it() -> None:
    async with simulated(runners=3) as (sim, _, target, clock):
        await target.arm("x", "x", 20)
        sim.owner(target).kill()
        await sim.advance(40)
        assert clock.told == ["x"]


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("neither", "timer 'x' has neither of after= and every="),
        ("both", "timer 'x' has both of after= and every="),
        ("fraction", "write whole seconds"),
        ("slash", 'has a "/"'),
        ("key", "has a key, so that each timer would run it once only"),
        ("volatile", "is not persisted"),
    ],
)
async def test_a_wrong_timer_is_refused_where_it_is_set(how: str, says: str) -> None:
    async with simulated(runners=1) as (_, _, target, _):
        assert says in await target.arm_wrongly(how)


@pytest.mark.parametrize("kind", ["file", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_a_schedule_sends_jobs_of_a_task(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path}/s.db" if kind == "file" else request.getfixturevalue("postgres_url")
    cluster, told, gate = Cluster(url, shards=3, listen="127.0.0.1:0"), list[str](), asyncio.Event()
    mails = cluster.queue("mails", partition="tenant")

    @cluster.task(queue=mails, priority=7)
    async def report(tenant: str, pages: int = 1) -> None:
        told.append(tenant)

    @cluster.task
    async def waiting() -> None:
        told.append("waiting")
        await gate.wait()

    @cluster.task(key="number")
    async def once(number: int) -> None: ...

    async with cluster, asyncio.timeout(120):
        await cluster.ready()
        schedules = cluster.schedules
        info = await schedules.put("acme", "* * * * * *", report.job("acme"))
        assert info.calls == "report"
        assert (await schedules.put("acme", "* * * * * *", report.job("acme", 1))).since == info.since
        await schedules.put("waiting", "* * * * * *", waiting.job(), overlap="skip")
        while told.count("acme") < 2:
            await asyncio.sleep(0.02)
        await schedules.pause("acme")
        jobs = await cluster.jobs.list(task="report", queue="mails")
        assert {(job.partition, job.priority) for job in jobs} == {("acme", 7)}
        assert {job.id for job in jobs} == {each.message for each in await schedules.history("acme")}
        while not any(each.reason == "overlapping" for each in await schedules.history("waiting")):
            await asyncio.sleep(0.02)
        assert told.count("waiting") == 1
        gate.set()
        assert await schedules.remove("acme", cancel=True)
        past = datetime.now(UTC) - timedelta(hours=1)
        await schedules.put("hourly", "0 * * * *", report.job("umbrella"))
        ids = await schedules.backfill("hourly", past - timedelta(hours=3), past)
        assert ids == await schedules.backfill("hourly", past - timedelta(hours=3), past)
        for each in ids:
            await cluster.result(each)
        assert told.count("umbrella") == len(ids) == 3
        with pytest.raises(TypeError, match=r"once has a key, .* use a task without key="):
            await schedules.put("x", "@daily", once.job(1))
        other = Cluster("sqlite://").task(name="report")(report.type.fn)
        with pytest.raises(TypeError, match="report was made by another cluster"):
            await schedules.put("x", "@daily", other.job("a"))


@pytest.mark.parametrize("kind", ["file", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_schedules_and_timers_on_a_real_database(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/s.db" if kind == "file" else request.getfixturevalue("postgres_url")
    cluster, clock = Cluster(url, shards=3, listen="127.0.0.1:0"), Clock()
    target = cluster.ref(define(cluster, clock), "a")
    async with cluster, asyncio.timeout(120):
        await cluster.ready()
        await cluster.schedules.put("x", "* * * * * *", target.note("x"))
        await target.arm("t", "t", 0.1)
        while not {"x", "t"} <= set(clock.told):
            await asyncio.sleep(0.02)
        await cluster.schedules.pause("x")
        await cluster.schedules.resume("x")
        assert await cluster.schedules.remove("x", cancel=True)
        assert await cluster.schedules.list() == []
