"""`workflow.map` and `workflow.first`: places of their own, whoever is first, across kills (W13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coterie import Workflow, WorkflowFailed
from tests.scenario.workflows.workflow_cluster import (
    Diary,
    holder,
    new_cluster,
    over,
    restart,
    rows,
    simulated,
    steps,
    suspended,
)


@pytest.mark.simulated(seeds=3)
async def test_w13_a_map_gives_results_in_order_with_so_many_at_a_time() -> None:
    cluster = new_cluster()
    running, most, ran = 0, 0, []

    async def square(number: int) -> int:
        nonlocal running, most
        ran.append(number)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01 * ((number * 7) % 5))
        running -= 1
        return number * number

    @cluster.workflow
    async def squares(workflow: Workflow, count: int) -> list[int]:
        return await workflow.map(square, range(count), limit=4)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(squares, 30, id="1")
        assert await over(run) == [number * number for number in range(30)]
        assert most == 4
        assert sorted(ran) == list(range(30))
        empty = await cluster.start_workflow(squares, 0, id="2")
        assert await over(empty) == []
        del sim


@pytest.mark.simulated(seeds=3)
async def test_w13_after_a_kill_only_what_is_not_stored_runs_again() -> None:
    cluster, diary = new_cluster(), Diary()

    async def work(number: int) -> str:
        await diary.do(f"item {number}")
        if number == 7:
            await diary.gated("seven")
        return f"did {number}"

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> list[str]:
        found = await workflow.map(work, list(range(10)), limit=3, name="work")
        await workflow.step("gate", diary.gated, "gate")
        return found

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(many, None, id="1")
        await sim.wait_until(lambda: "item 9" in diary.ran and len(rows(sim)) >= 9)
        await sim.advance(0.5)
        holder(sim, many).kill()
        await sim.wait_until(lambda: diary.ran.count("seven") == 2)
        diary.gates["seven"].set()
        await sim.wait_until(lambda: "gate" in diary.ran)
        holder(sim, many).kill()
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        assert {branch for branch, *_ in steps(sim)} == {"", *(f"@0.{number}" for number in range(10))}
        diary.gates["gate"].set()
        assert await over(run) == [f"did {number}" for number in range(10)]
        assert [diary.ran.count(f"item {number}") for number in range(10)] == [1] * 7 + [2] + [1] * 2


@pytest.mark.simulated(seeds=4)
async def test_w13_the_error_of_a_map_is_the_same_one_for_the_next_runner() -> None:
    cluster, diary = new_cluster(), Diary()

    async def work(number: int) -> int:
        await diary.do(f"item {number}")
        await asyncio.sleep(0.002 * ((number * 3) % 4))
        if number in (2, 3, 4):
            raise ValueError(f"no {number}")
        return number

    @cluster.workflow
    async def many(workflow: Workflow, _: None) -> str:
        diary.body()
        try:
            await workflow.map(work, range(50), limit=5)
        except ValueError as error:
            said = str(error)
        await workflow.publish("said", said)
        await workflow.step("gate", diary.gated, "gate")
        return said

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(many, None, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        said = await run.published("said", str)
        holder(sim, many).kill()
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        diary.gates["gate"].set()
        assert await over(run) == said
        assert said in ("no 2", "no 3", "no 4")
        assert "item 20" not in diary.ran, "none begins after one has failed"


@pytest.mark.simulated(seeds=4)
async def test_w13_the_winner_of_a_race_is_stored_and_the_loser_begins_nothing_new() -> None:
    cluster, diary = new_cluster(), Diary()

    async def pay(workflow: Workflow, how: str) -> str:
        await workflow.step(f"book {how}", diary.do, f"book {how}")
        workflow.compensate(f"cancel {how}", diary.do, f"cancel {how}")
        await workflow.step(f"pay {how}", diary.gated, f"pay {how}")
        await workflow.step(f"more {how}", diary.do, f"more {how}")
        return how

    @cluster.workflow
    async def race(workflow: Workflow, _: None) -> str:
        number, how = await workflow.first(pay(workflow, "card"), pay(workflow, "bank"))
        await workflow.step("gate", diary.gated, "gate")
        raise ValueError(f"{number} {how}")

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(race, None, id="1")
        await sim.wait_until(lambda: {"pay card", "pay bank"} <= set(diary.ran))
        diary.gates["pay bank"].set()
        await sim.wait_until(lambda: "gate" in diary.ran)
        assert diary.cancelled == ["pay card"]
        diary.gates["pay card"].set()  # in the next run it would be the first
        holder(sim, race).kill()
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        diary.gates["gate"].set()
        error = await over(run)
        assert isinstance(error, WorkflowFailed)
        assert error.problem == "ValueError: 1 bank"
        assert "more card" not in diary.ran
        assert diary.ran.count("pay card") == 1
        assert sorted(diary.ran[-2:]) == ["cancel bank", "cancel card"], "the loser's compensation is known still"


@pytest.mark.simulated(seeds=3)
async def test_w13_a_message_against_a_sleep() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def wait(workflow: Workflow, _: None) -> str:
        found = await workflow.first(workflow.receive("go", int), workflow.sleep("1h", name="patience"))
        said = f"got {found[1]}" if found[0] == 0 else "gave up"
        return f"{said}, then {await workflow.receive('go', int)}"

    async with simulated(cluster) as sim:
        runs = [await cluster.start_workflow(wait, None, id=str(number)) for number in range(2)]
        for run in runs:
            await suspended(sim, run)
        await runs[0].send("go", 1)
        await sim.advance(10.0)
        await restart(sim, down_s=1.0)
        await sim.advance(3_700.0)
        for run in runs:
            await suspended(sim, run)
            await run.send("go", 2)
        assert [await over(run) for run in runs] == ["got 1, then 2", "gave up, then 2"]


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.simulated(seeds=4)
async def test_w13_what_the_loser_has_received_is_given_back_in_order(kill: bool) -> None:
    cluster, diary = new_cluster(), Diary()

    async def collect(workflow: Workflow) -> list[str]:
        return [await workflow.receive("name", str) for _ in range(5)]

    async def stop(workflow: Workflow) -> str:
        return await workflow.receive("stop", str)

    @cluster.workflow
    async def race(workflow: Workflow, _: None) -> list[Any]:
        number, value = await workflow.first(collect(workflow), stop(workflow))
        await workflow.step("gate", diary.gated, "gate")
        return [number, value, *[await workflow.receive("name", str) for _ in range(4)]]

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(race, None, id="1")
        for name in ("a", "b", "c"):
            await run.send("name", name)
            await suspended(sim, run)
        await run.send("stop", "now")
        await sim.wait_until(lambda: "gate" in diary.ran)
        if kill:
            holder(sim, race).kill()
            await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        diary.gates["gate"].set()
        await run.send("name", "d")
        assert await over(run) == [1, "now", "a", "b", "c", "d"]


@pytest.mark.simulated(seeds=2)
async def test_w13_the_error_of_the_winner_is_raised_and_races_nest() -> None:
    cluster, diary = new_cluster(), Diary()

    async def fail(workflow: Workflow) -> int:
        await workflow.sleep("1s", name="nap")
        return await workflow.step("fail", diary.do, "fail")

    @cluster.workflow
    async def race(workflow: Workflow, _: None) -> str:
        diary.fails["fail"] = 1
        try:
            await workflow.first(
                workflow.first(workflow.receive("never", int), workflow.sleep("2h", name="long"), name="inner"),
                fail(workflow),
                name="outer",
            )
        except ValueError as error:
            await workflow.step("gate", diary.gated, "gate")
            return str(error)
        return "nobody failed"

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(race, None, id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        holder(sim, race).kill()
        diary.gates["gate"].set()
        assert await over(run) == "fail did not work"


@pytest.mark.simulated(seeds=2)
async def test_a_run_that_is_interrupted_in_a_map_or_a_race_undoes_what_it_did() -> None:
    cluster, diary = new_cluster(), Diary()

    async def work(number: int) -> None:
        await diary.gated(f"item {number}")

    async def side(workflow: Workflow) -> None:
        await workflow.map(work, range(5), limit=2)

    @cluster.workflow
    async def both(workflow: Workflow, _: None) -> None:
        workflow.compensate("undo", diary.do, "undo")
        await workflow.first(side(workflow), workflow.receive("never", int))

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(both, None, id="1")
        await sim.wait_until(lambda: {"item 0", "item 1"} <= set(diary.ran))
        await run.interrupt()
        assert "was interrupted" in str(await over(run))
        assert diary.ran == ["item 0", "item 1", "undo"]


@pytest.mark.simulated(seeds=4)
async def test_w13_a_loser_that_comes_late_to_what_it_has_received_loses_nothing() -> None:
    """Its runner is killed before the winner is stored, and in the next run the winner is there first."""
    cluster, diary = new_cluster(), Diary()
    slow_s = 0.0

    async def collect(workflow: Workflow) -> int:
        workflow.compensate("early", diary.do, "undo early")
        await asyncio.sleep(slow_s)
        word = await workflow.receive("word", int)
        workflow.compensate("late", diary.do, "undo late")
        return word + await workflow.receive("word", int)

    @cluster.workflow
    async def race(workflow: Workflow, _: None) -> int:
        await workflow.first(collect(workflow), workflow.sleep("10s", name="nap"))
        word = await workflow.receive("word", int)
        raise ValueError(word)

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(race, None, id="1")
        await run.send("word", 5)
        await sim.wait_until(lambda: rows(sim, where="kind = 'receive' and done"))
        slow_s = 0.5
        await restart(sim, down_s=12.0)
        error = await over(run)
        assert isinstance(error, WorkflowFailed)
        assert error.problem == "ValueError: 5"
        assert diary.ran == ["undo late", "undo early"]


@pytest.mark.simulated(seeds=2)
async def test_w13_w9_a_map_that_has_failed_goes_on_from_the_items_that_have_not_succeeded() -> None:
    cluster, diary = new_cluster(), Diary()
    diary.fails["item 3"] = 1

    async def work(number: int) -> int:
        return await diary.do(f"item {number}", number)

    @cluster.workflow(on_failure="hold")
    async def many(workflow: Workflow, _: None) -> list[int]:
        found = await workflow.map(work, range(8), limit=2)
        await workflow.step("gate", diary.gated, "gate")
        return found

    async with simulated(cluster, runners=3) as sim:
        run = await cluster.start_workflow(many, None, id="1")
        assert isinstance(await over(run), WorkflowFailed)
        await run.retry()
        await sim.wait_until(lambda: "gate" in diary.ran)
        holder(sim, many).kill()
        await sim.wait_until(lambda: diary.ran.count("gate") == 2)
        diary.gates["gate"].set()
        assert await over(run) == list(range(8))
        assert diary.ran.count("item 3") == 2
        assert diary.ran.count("item 0") == 1
