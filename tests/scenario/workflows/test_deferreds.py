"""Deferreds: resolved once, from anywhere, before or after anybody waits for them (S11, W4, M11)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from coterie import (
    AlreadyResolved,
    Cluster,
    DeferredMismatch,
    DeferredRejected,
    DeferredTimeout,
    MalformedMessage,
    Workflow,
    WorkflowError,
)
from coterie.kernel.serialization.codec import PLAIN
from tests.scenario.workflows.workflow_cluster import (
    SWEEP_S,
    Diary,
    holder,
    kill_here,
    new_cluster,
    over,
    restart,
    rows,
    seconds,
    simulated,
    suspended,
    token_of,
)
from tests.support.chaos_points import At


@dataclass
class Approval:
    """What a person says."""

    who: str
    cents: int


def define_wait(cluster: Cluster, diary: Diary, *, timeout: str | None = None) -> Any:
    """It gives its token away, and waits when its gate is open."""

    @cluster.workflow
    async def wait(workflow: Workflow, _: None) -> str:
        deferred = workflow.deferred("approval", Approval)
        diary.give(workflow.id, deferred)
        await workflow.step("gate", diary.gated, f"gate {workflow.id}")
        try:
            found = await deferred.wait(timeout=timeout)
        except (DeferredTimeout, DeferredRejected) as error:
            await workflow.step("sorry", diary.do, "sorry")
            return str(error)
        return f"{found.who} {found.cents}"

    return wait


@pytest.mark.simulated(seeds=2)
async def test_s11_before_after_and_while_it_is_waited_for_and_once() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    async with simulated(cluster) as sim:
        for who in ("before", "after", "suspended"):
            run = await cluster.start_workflow(wait, None, id=who)
            await sim.wait_until(lambda: who in diary.tokens)  # noqa: B023 it is waited for
            if who != "before":
                diary.gates[f"gate {who}"].set()
                await sim.advance(0.05)
            if who == "suspended":
                await suspended(sim, run)
            began_s = seconds(sim)
            await cluster.resolve(diary.tokens[who], Approval(who, 5))
            with pytest.raises(AlreadyResolved, match="has a value already"):
                await cluster.resolve(diary.tokens[who], Approval("bob", 6))
            with pytest.raises(AlreadyResolved):
                await cluster.reject(diary.tokens[who], "no")
            diary.gates[f"gate {who}"].set()
            assert await over(run) == f"{who} 5"
            assert seconds(sim) - began_s < SWEEP_S
            with pytest.raises(AlreadyResolved):
                await cluster.resolve(diary.tokens[who], Approval("late", 7))


@pytest.mark.simulated(seeds=2)
async def test_w15_a_token_of_a_run_that_is_over_answers_no_later_run_of_its_id() -> None:
    """Neither while that one runs, nor before it starts, when retention has cleared the first one away."""
    cluster, diary = new_cluster(retention="40s"), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        old = diary.tokens["1"]
        await cluster.resolve(old, Approval("first", 1))
        assert await over(run) == "first 1"
        await sim.wait_until(lambda: not rows(sim, "units"), within="5m")
        with pytest.raises(AlreadyResolved, match="the work it belonged to is over"):
            await cluster.resolve(old, Approval("old", 2))
        assert rows(sim, "deferreds") == []
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        assert diary.tokens["1"] != old
        for give in (cluster.resolve(old, Approval("old", 3)), cluster.reject(old, "old")):
            with pytest.raises(AlreadyResolved, match="the work it belonged to is over"):
                await give
        assert await run.status() == "suspended"
        await cluster.resolve(diary.tokens["1"], Approval("second", 4))
        assert await over(run) == "second 4"


@pytest.mark.simulated(seeds=1)
async def test_w15_a_token_of_version_01_belongs_to_runs_that_it_began() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        former = cluster._acting().tokens.make("workflow:wait/1", "approval")
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        with pytest.raises(AlreadyResolved):
            await cluster.resolve(former, Approval("former", 1))
        sim.database.main.execute("update units set life = 0; update deferreds set life = 0")
        await cluster.resolve(former, Approval("former", 1))
        assert await over(run) == "former 1"


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("when", ["before it waits", "while it waits"])
async def test_a_value_of_another_type_is_refused_and_the_run_goes_on(when: str) -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await sim.wait_until(lambda: "1" in diary.tokens)
        if when == "while it waits":
            diary.gates["gate 1"].set()
            await suspended(sim, run)
        wrongs: list[Any] = ["yes please", 7, None, [], {"who": "bob"}, {"who": "bob", "cents": "5"}]
        for wrong in wrongs:
            with pytest.raises(DeferredMismatch, match='deferred "approval" of workflow:wait/1 takes Approval'):
                await cluster.resolve(diary.tokens["1"], wrong)
        assert rows(sim, "deferreds", where="value is not null") == []
        diary.gates["gate 1"].set()
        await cluster.resolve(diary.tokens["1"], {"who": "bob", "cents": 5})
        assert await over(run) == "bob 5"


@pytest.mark.simulated(seeds=1)
async def test_a_value_that_no_longer_fits_suspends_the_run_and_does_not_fail_it() -> None:
    """What was stored fitted the type of its token: the code has changed since, or its token told no type."""
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        await cluster.resolve(await token_of(cluster, "workflow:wait/1", "approval"), "yes please")
        await sim.advance(30)
        assert await run.status() in ("suspended", "running")
        sim.database.main.execute("update deferreds set value = ?", (PLAIN.encode(Approval("mended", 1)),))
        assert await over(run) == "mended 1"


@pytest.mark.simulated(seeds=1)
async def test_a_token_that_is_not_ours_is_refused_and_nothing_is_stored() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    async with simulated(cluster) as sim:
        await cluster.start_workflow(wait, None, id="1")
        await sim.wait_until(lambda: diary.tokens)
        good = diary.tokens["1"]
        other = "B" if good[0] != "B" else "C"
        forged = [
            other + good[1:],
            good[:-1],
            good[1:],
            good[:22],
            good[22:],
            good + "AAAA",
            good * 2,
            "",
            "?",
            "é",
            "=",
        ]
        for token in [*forged, None, 7, b"x"]:
            with pytest.raises(WorkflowError, match="no token of a deferred of this cluster"):
                await cluster.resolve(token, 1)  # type: ignore[arg-type] # that is the point
        assert rows(sim, "deferreds") == []


@pytest.mark.simulated(seeds=1)
async def test_what_is_no_data_is_refused() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await sim.wait_until(lambda: diary.tokens)
        with pytest.raises(MalformedMessage, match="approval"):
            await cluster.resolve(diary.tokens["1"], object())
        await cluster.resolve(diary.tokens["1"], Approval("bob", 5))
        assert await over(run) == "bob 5"


@pytest.mark.simulated(seeds=2)
async def test_a_rejection_is_raised_again_by_whoever_runs_it_next() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        at = At("workflows.before_step", lambda: kill_here(sim))
        await cluster.reject(diary.tokens["1"], "too dear")
        assert await over(run) == 'deferred "approval" of workflow:wait/1 was rejected: too dear'
        assert at.happened
        assert diary.ran == ["gate 1", "sorry", "sorry"]


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.simulated(seeds=2)
async def test_a_timeout_is_over_by_the_databases_clock_and_stays_so(down: bool) -> None:
    """Also if everybody was down when it was; what comes later changes nothing."""
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary, timeout="10s")
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        (told,) = await cluster.workflows.list()
        assert told.wake_at is not None
        if down:
            await restart(sim, down_s=15)
        at = At("workflows.before_step", lambda: kill_here(sim))
        await sim.wait_until(lambda: at.happened)
        with suppress(AlreadyResolved):  # somebody else has ended it by now, perhaps
            await cluster.resolve(diary.tokens["1"], Approval("late", 1))
        assert await over(run) == 'deferred "approval" of workflow:wait/1 got no value within 10s'
        sorry = [line.at_s for line in diary.lines if line.what == "sorry"]
        assert len(sorry) == 2
        assert sorry[0] >= 10
        if not down:
            assert sorry[0] < 10.5


@pytest.mark.simulated(seeds=2)
async def test_a_value_in_time_stays_the_value_when_the_time_is_over_before_the_next_run() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary, timeout="10s")
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        for runner in sim.runners:
            runner.kill()
        await cluster.resolve(diary.tokens["1"], Approval("bob", 1))
        await sim.advance(20)
        await sim.start(2)
        assert await over(run) == "bob 1"


@pytest.mark.simulated(seeds=3)
async def test_w4_two_branches_that_look_at_the_same_time_miss_no_value() -> None:
    """One of them finds what the other one waits for."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def many(workflow: Workflow, n: int) -> list[int]:
        deferreds = [workflow.deferred(f"d{number}", int) for number in range(n)]
        for number, deferred in enumerate(deferreds):
            diary.give(f"{workflow.id}/{number}", deferred)
        await workflow.step("ready", diary.do, f"ready {workflow.id}")
        return list(await asyncio.gather(*(deferred.wait() for deferred in deferreds)))

    async with simulated(cluster) as sim:
        for who in map(str, range(8)):
            run = await cluster.start_workflow(many, 6, id=who)
            await sim.wait_until(lambda: f"ready {who}" in diary.ended)  # noqa: B023 it is waited for
            began_s = seconds(sim)
            for number in (3, 0, 5, 1, 4, 2):
                await sim.advance(0.0001 + 0.0007 * int(who))
                await cluster.resolve(diary.tokens[f"{who}/{number}"], number)
            assert await over(run) == list(range(6))
            assert seconds(sim) - began_s < SWEEP_S


@pytest.mark.parametrize("delay_ms", [195, 198, 199, 200, 201, 202, 204, 208, 215])
@pytest.mark.simulated(seeds=3)
async def test_w4_gap_30_a_value_that_comes_while_it_is_suspended_is_not_lost(delay_ms: int) -> None:
    """M11: it leaves memory 200 ms after it has nothing to do but to wait."""
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await sim.wait_until(lambda: diary.ended)
        await sim.advance(delay_ms / 1000)
        began_s = seconds(sim)
        await cluster.resolve(diary.tokens["1"], Approval("bob", delay_ms))
        assert await over(run) == f"bob {delay_ms}"
        assert seconds(sim) - began_s < 1, "nobody waited for a poll"


@pytest.mark.simulated(seeds=2)
async def test_w4_a_hint_that_gets_lost_is_found_out_about() -> None:
    cluster, diary = new_cluster(), Diary()
    wait = define_wait(cluster, diary)
    diary.gates["gate 1"].set()
    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(wait, None, id="1")
        await suspended(sim, run)
        value = PLAIN.checked(Approval("x", 1))
        units = cluster._acting().storage.units
        row = await units.get("workflow:wait/1")
        assert row is not None
        told = await units.resolve(row.unit, "approval", life=row.life, value=value, error=None)
        assert told.told == "resolved"
        assert await over(run, within="15s") == "x 1"
        assert holder(sim, wait).alive
