"""Durable work of leaders and of ticks (S11): whoever holds the seat next goes on in the middle."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coterie import Leader, Retry, StepDiverged
from tests.scenario.workflows.workflow_cluster import SWEEP_S, Diary, new_cluster, rows, seconds, simulated, steps

if TYPE_CHECKING:
    from coterie import Tick
    from coterie.durable.unit import Durable

NEVER = "0 0 29 2 *"


async def import_all(unit: Durable, diary: Diary) -> str:
    """A step, a sleep, a deferred, and a step whose gate is closed."""
    diary.body()
    total = await unit.step("first", diary.do, "first", 5)
    await unit.sleep("3s", name="nap")
    gate = unit.deferred("gate", str)
    diary.give("gate", gate)
    said = await gate.wait(timeout="60s")
    await unit.step("last", diary.gated, "last")
    return f"{total} {said}"


@pytest.mark.parametrize("kind", ["leader", "tick"])
@pytest.mark.simulated(seeds=2)
async def test_s11_steps_sleeps_and_deferreds_survive_a_kill_of_the_holder(kind: str) -> None:
    cluster, diary = new_cluster(), Diary()
    done: list[str] = []
    if kind == "leader":

        @cluster.singleton("x")
        async def lead(leader: Leader[None]) -> None:
            async with leader.unit("import 7") as unit:
                done.append(await import_all(unit, diary))
            await asyncio.Event().wait()

    else:

        @cluster.cron("x", NEVER)
        async def ring(tick: Tick) -> None:
            done.append(await import_all(tick, diary))

    async with simulated(cluster) as sim:

        def kill() -> None:
            label = diary.bodies[-1]
            next(each for each in sim.runners if each.alive and label.startswith(each.name)).kill()

        await sim.start(2)
        tick = None if kind == "leader" else await cluster.crons.trigger("x")
        await sim.wait_until(lambda: "first" in diary.ended)
        await sim.advance(0.5)
        kill()  # asleep
        await sim.wait_until(lambda: diary.tokens)
        assert seconds(sim) >= 3
        began = len(diary.bodies)
        await sim.advance(0.5)
        kill()  # waiting
        await sim.wait_until(lambda: len(diary.bodies) > began)
        await sim.advance(0.5)
        told_s = seconds(sim)
        await cluster.resolve(diary.tokens["gate"], "go")
        await sim.wait_until(lambda: "last" in diary.ran)
        assert seconds(sim) - told_s < SWEEP_S
        kill()  # in a step
        diary.gates["last"].set()
        await sim.wait_until(lambda: done)
        if tick is not None:
            assert (await cluster.crons.wait(tick, timeout="10s")).outcome == "ran"
        await sim.advance(0.5)
        assert done == ["5 go"]
        assert diary.ran == ["first", "last", "last"]
        assert [rows(sim, table) for table in ("units", "steps", "deferreds")] == [[], [], []], "it ended well"


@pytest.mark.simulated(seeds=1)
async def test_s11_a_tick_that_fails_goes_on_where_it_was_in_its_next_attempt() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["second"] = 1
    tries: list[int] = []

    async def second() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise OSError("not yet")

    @cluster.cron("x", NEVER, retry=Retry(attempts=5, base="10ms"), timeout="5s")
    async def ring(tick: Tick) -> None:
        await tick.step("first", diary.do, "first")
        await second()
        await tick.step("third", diary.do, "third")

    async with simulated(cluster) as sim:
        ended = await cluster.crons.wait(await cluster.crons.trigger("x"), timeout="20s")
        assert (ended.outcome, ended.attempt) == ("ran", 3)
        assert diary.ran == ["first", "third"]
        assert rows(sim, "units") == []


@pytest.mark.simulated(seeds=1)
async def test_a_unit_whose_block_raises_is_gone_on_with_and_one_that_ended_is_new() -> None:
    cluster, diary = new_cluster(), Diary()
    problems: list[str] = []

    @cluster.singleton("x")
    async def lead(leader: Leader[None]) -> None:
        for turn in range(4):
            with suppress(OSError):
                async with leader.unit("daily") as unit:
                    await unit.step("a", diary.do, "a")
                    if turn == 0:
                        raise OSError
                    await unit.step("b", diary.do, "b")
            if turn == 2:
                async with leader.unit("one") as unit, leader.unit("two") as other:
                    await asyncio.gather(unit.step("c", diary.do, "c"), other.step("d", diary.do, "d"))
                    try:
                        async with leader.unit("one"):
                            pass
                    except RuntimeError as error:
                        problems.append(str(error))
        for key in ("", "two\nlines", "nul\x00"):
            try:
                async with leader.unit(key):
                    pass
            except ValueError as error:
                problems.append(str(error))
        diary.ended.append("all")
        await asyncio.Event().wait()

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: "all" in diary.ended)
        assert diary.ran == ["a", "b", "a", "b", "c", "d", "a", "b"]
        assert problems[0] == "unit 'one' of singleton 'x' is open already: use another key"
        assert ["expected text on one line" in each for each in problems[1:]] == [True] * 3
        assert rows(sim, "units") == []


@pytest.mark.simulated(seeds=1)
async def test_w2_a_unit_that_diverged_is_kept_also_if_its_block_has_caught_that() -> None:
    cluster, diary = new_cluster(), Diary()
    turns = iter(range(100))

    @cluster.singleton("x")
    async def lead(leader: Leader[None]) -> None:
        turn = next(turns)
        async with leader.unit("u") as unit:
            if turn == 0:
                await unit.step("a", diary.do, "a")
                raise OSError
            with suppress(StepDiverged):
                await unit.step("b", diary.do, "b")
            with suppress(StepDiverged):
                await unit.step("c", diary.do, "c")
        diary.ended.append("caught")
        await asyncio.Event().wait()

    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: "caught" in diary.ended)
        assert diary.ran == ["a"]
        assert steps(sim) == [("", 0, "step", "a")]


@pytest.mark.parametrize("kind", ["leader", "tick"])
@pytest.mark.simulated(seeds=1)
async def test_s11_w5_an_abandoned_unit_is_cleared_away_with_a_warning(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where no workflow is defined."""
    cluster, diary = new_cluster(retention="100s", key_retention="100s", call_timeout="60s"), Diary()

    @cluster.singleton("x")
    async def lead(leader: Leader[None]) -> None:
        if kind == "leader" and not diary.ran:
            async with leader.unit("import 7") as unit:
                await unit.step("a", diary.do, "a")
                raise OSError
        await asyncio.Event().wait()

    if kind == "tick":

        @cluster.cron("x", NEVER)
        async def ring(tick: Tick) -> None:
            await tick.step("a", diary.do, "a")
            await tick.step("gate", diary.gated, "gate")

    async with simulated(cluster) as sim:
        if kind == "tick":
            await cluster.crons.trigger("x")
        await sim.wait_until(lambda: diary.ran)
        if kind == "tick":
            sim.database.main.execute("update units set changed_at_ns = changed_at_ns - 90000000000")
            sim.database.main.execute("update steps set at_ns = at_ns - 90000000000")
        await sim.advance(50 if kind == "leader" else 1)
        assert len(rows(sim, "units")) == 1
        await sim.wait_until(lambda: not rows(sim, "units"), within="140s")
        assert rows(sim, "steps") == []
        told = "was deleted with its steps: no runner has continued it for 100s"
        await sim.wait_until(lambda: told in caplog.text, within="5s")  # the answer of the database takes its time


@pytest.mark.simulated(seeds=1)
async def test_s11_units_of_a_leader_across_a_restart_of_everybody() -> None:
    cluster, diary = new_cluster(), Diary()
    done: list[str] = []

    @cluster.singleton("x")
    async def lead(leader: Leader[None]) -> None:
        async with leader.unit("import 7") as unit:
            done.append(await import_all(unit, diary))
        await asyncio.Event().wait()

    diary.gates["last"].set()
    async with simulated(cluster) as sim:
        await sim.wait_until(lambda: diary.tokens)
        for runner in sim.runners:
            runner.kill()
        await cluster.resolve(diary.tokens["gate"], "early")
        await sim.advance(1)
        await sim.start(2)
        await sim.wait_until(lambda: done)
        assert done == ["5 early"]
        assert diary.ran == ["first", "last"]
