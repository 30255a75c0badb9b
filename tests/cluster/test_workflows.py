"""Workflows in real processes: whoever dies, each step is recorded once, and each run comes to its end.

Each test ends with the judgement of all steps: what every later run of a body was told is what the step gave whose
result was stored, no step ran after that, and only the dead have left one undone [S11, B5, W1, W3].
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from coterie import AlreadyResolved, WorkflowInterrupted
from tests.cluster.workflow_cluster import flowing, killing
from tests.cluster.workflow_program import ASKED, ASKS, LATE, OPEN, Plan, resolve

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence
    from pathlib import Path

    from tests.cluster.workflow_cluster import WorkflowCluster


OFTEN = {"COTERIE_LEASE_RENEW": "250ms"}
"""Leases as by default: one that dies before others have seen it is replaced when its lease is over."""


async def flow_on(url: str, folder: Path, *, runs: int, takes_s: float) -> Counter[str]:
    """Runs of ten steps, while somebody is killed each second until all are done; what there was.

    Half of them wait when their steps are made: there are rows to be read then, which are gone when a run is over.
    """
    plans = {str(number): Plan(10, gate="1h" if number % 2 else "") for number in range(runs)}
    waiting = [run for run, plan in plans.items() if plan.gate]
    async with flowing(url, folder, takes_s=takes_s, times=OFTEN) as there:
        await there.begin(plans)
        async with killing(there) as killed:
            assert await there.suspended(waiting)
            await there.read(waiting)
            for run in waiting:
                await resolve(there.client, run)
            await there.finish()
        await there.require_kept(plans)
        assert {len(stamps) for stamps in there.stored.values()} == {10}
        assert {there.results[run][-1] for run in waiting} == {OPEN}
        counts = there.judge()
    counts["killed"] = len(killed)
    assert counts["steps"] == 10 * runs
    assert counts["killed"] > 1, f"hardly anybody was killed: the test shows nothing: {counts}"
    assert counts["cut"] > 10, f"hardly a step was cut: the test shows nothing: {counts}"
    print(counts)  # seen with -s: what it was worth
    return counts


async def test_s11_runners_are_killed_each_second_and_each_step_is_recorded_once(url: str, tmp_path: Path) -> None:
    """A sample of what follows."""
    await flow_on(url, tmp_path, runs=60, takes_s=0.8)


@pytest.mark.nightly
async def test_s11_200_runs_of_10_steps_and_a_kill_each_second(url: str, tmp_path: Path) -> None:
    await flow_on(url, tmp_path, runs=200, takes_s=2.0)


EARLY_S = 0.05
"""By how much a nap may seem too short: two clocks are read, one of them by the database."""


async def test_wfm_03_wfm_08_what_waits_survives_the_death_of_everybody(url_by_day: str, tmp_path: Path) -> None:
    """W4: what came, and what was over, while nobody was there is found by who comes then. No step runs again."""
    gates = [f"{when}-{number}" for when in ("before", "while", "after") for number in range(5)]
    async with flowing(url_by_day, tmp_path, runners=2) as there:
        await there.begin({run: Plan(2, gate="1h") for run in gates})
        assert await there.suspended(gates)
        nap_s, timed = await begin_timed(there)
        for run in gates[:5]:
            await resolve(there.client, run)
        await there.kill(*there.runners)
        await there.read(there.plans)
        for run in gates[5:10]:
            await resolve(there.client, run)
        await there.due(timed)
        await there.start()
        for run in gates[10:]:
            await resolve(there.client, run)
        await there.finish()
        assert there.judge()["cut"] == 0
        assert {there.results[run][-1] for run in gates} == {OPEN}
        assert {there.results[run][-1] for run, plan in timed.items() if plan.gate} == {LATE}
        assert min(slept_s(there, run) for run, plan in timed.items() if plan.nap) >= nap_s - EARLY_S


async def begin_timed(there: WorkflowCluster) -> tuple[int, dict[str, Plan]]:
    """Begin runs that sleep, or wait for so long; all of them wait when this returns.

    If one was over before the last one was begun, on a busy machine, others are begun that wait for longer.
    """
    for time_s in (4, 8, 16, 32):
        naps = {f"nap-{time_s}-{number}": Plan(2, nap=f"{time_s}s") for number in range(5)}
        late = {f"late-{time_s}-{number}": Plan(2, gate=f"{time_s}s") for number in range(5)}
        await there.begin(naps | late)
        if await there.suspended(naps | late):
            return time_s, naps | late
    raise AssertionError("what waits for half a minute is over before all of it waits")


def slept_s(there: WorkflowCluster, run: str) -> float:
    """How long it was from the step before a nap until the one after it."""
    saw = [each.at_ns for each in there.effects("saw") if (each.run, each.step) == (run, 1)]
    ran = [each.at_ns for each in there.effects("ran") if (each.run, each.step) == (run, 2)]
    return (ran[0] - saw[0]) / 1e9


ALL = Plan(2, child=1, gate="1h", nap="1200ms")
"""All that a run can do."""
STEPS = ["step 1", "step 2", "begin of child", "step of child", "begin of gate", "gate", "begin of nap", "last step"]
RUNNERS_DIE = [
    "take", "take 13", "load", "load 2", "load 4", "start", "suspend", "end", "end 2",
    *(f"step {number}" for number, _ in enumerate(STEPS, 1)),
]  # fmt: skip
CLIENTS_DIE = [*ASKS]
WHEN = pytest.mark.parametrize("when", ["before", "during", "after"])


def each_moment(when: str, methods: Sequence[str]) -> list[str]:
    return [f"{when} units.{method}" for method in methods]


async def die_at(moments: Sequence[str], url: str, folder: Path) -> None:
    """One runner after the other is alone, and dies at a moment of a run; who comes next goes on with that one, too.

    The gate is open before anybody waits there; but for those who die when they are suspended there.
    """
    async with flowing(url, folder, runners=0) as there:
        for number, moment in enumerate(moments):
            run = f"{number:03}"
            about = "" if "take" in moment else f"flow/{run}"
            await there.begin({run: ALL})
            if "suspend" not in moment:
                await resolve(there.client, run)
            (victim,) = await there.start(FLOW_DIE=moment, FLOW_ABOUT=about)
            await there.dies(victim, moment)
            if "suspend" in moment:
                await resolve(there.client, run)
        await there.start()
        await there.finish()
        await there.require_kept(there.plans)
        assert there.judge()["runs"] == 2 * len(moments)


async def test_a_runner_dies_before_and_after_a_write_of_which_nobody_has_heard(
    url_by_day: str, tmp_path: Path
) -> None:
    """A sample of the moments below."""
    await die_at(["after units.step 2", "before units.end"], url_by_day, tmp_path)


@pytest.mark.nightly
@WHEN
async def test_a_runner_may_die_at_each_statement_of_a_run(when: str, url: str, tmp_path: Path) -> None:
    await die_at(each_moment(when, RUNNERS_DIE), url, tmp_path)


@pytest.mark.nightly
@WHEN
async def test_a_client_may_die_at_each_statement_of_a_run(when: str, url: str, tmp_path: Path) -> None:
    """W4: if it was committed, the run goes on, although nobody could tell its holder."""
    await clients_die_at(each_moment(when, CLIENTS_DIE), url, tmp_path)


async def clients_die_at(moments: Sequence[str], url: str, folder: Path) -> None:
    """One client after the other dies while it asks for something, and another one asks again, if need be."""
    async with flowing(url, folder, runners=1) as there:
        for number, moment in enumerate(moments):
            when, _, ask = moment.partition(" units.")
            run = f"{number:03}"
            there.plans[run] = ASKED
            if ask != "start":
                await there.begin({run: ASKED})
                assert await there.suspended([run])
            (victim,) = await there.start(FLOW_ASK=f"{ask} {run}", FLOW_DIE=moment)
            await there.dies(victim, moment)
            if when != "after":
                with suppress(AlreadyResolved):
                    await ASKS[ask](there.client, run)
            if ask in ("start", "resume"):
                await resolve(there.client, run)
            await ends(there, run, interrupted=ask == "interrupt")
        there.judge()


async def ends(there: WorkflowCluster, run: str, *, interrupted: bool) -> None:
    """Wait for the end of a run; one that was interrupted is undone."""
    if not interrupted:
        await there.finish([run])
        assert there.results[run][-1] == OPEN
        return
    with pytest.raises(WorkflowInterrupted):
        await there.finish([run])
    assert [each.run for each in there.effects("undone")].count(run) == 1
