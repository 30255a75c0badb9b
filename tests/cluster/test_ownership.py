"""Seats and real processes: whoever dies, freezes, leaves or blocks is replaced, and writes no more.

Each test ends with the judgement of all journals: no two holders' accepted writes interleave [INV-F1, INV-F2, INV-F3].
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.seat_cluster import STEADY, comes_back, held, holders, others, said
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MINUTES = 2


async def test_a_killed_runner_is_replaced_at_once_by_two_witnesses(url: str, tmp_path: Path) -> None:
    """INV-F5, M2: its lease would still run for seconds."""
    async with holders(url, tmp_path, times=STEADY) as stage:
        victim = stage.runners[0]
        seats = stage.journals.held_by(victim.name)
        at_ns = now_ns()
        await victim.kill()
        await stage.settled()
        await stage.writing()
        assert said(others(stage, victim), f"runner {victim.name} was evicted: its process is gone")
        after = [event for event in stage.journals.of("granted", since_ns=at_ns) if event.seat in seats]
        assert {event.seat for event in after} == set(seats)
        assert not any(event.more["clean"] for event in after), "its last work may have been cut short [C5]"


async def test_incident_9_runners_of_one_name_are_strangers_also_after_a_restart(
    url_by_day: str, tmp_path: Path
) -> None:
    """[0.2]: identity is the incarnation."""
    async with holders(url_by_day, tmp_path, times=STEADY, HOLDER_CALLED="the-same") as stage:
        ids = {event.incarnation for event in stage.journals.of("granted")}
        assert len(ids) == 3
        again = stage.runners[0]
        await again.kill()
        at_ns = now_ns()
        await again.start()
        await stage.wait_until(lambda: stage.journals.of("granted", runner=again.name, since_ns=at_ns))
        await stage.settled()
        assert len({event.incarnation for event in stage.journals.of("granted")} - ids) == 1


async def test_b2_a_frozen_runner_is_replaced_and_its_late_writes_are_refused(url: str, tmp_path: Path) -> None:
    async with holders(url, tmp_path) as stage:
        victim = stage.runners[0]
        await victim.freeze()
        await stage.settled()
        await stage.writing()
        thawed_ns = now_ns()
        await victim.thaw()
        lives = await comes_back(stage, victim, since_ns=thawed_ns)
        assert not stage.late_of(victim, since_ns=thawed_ns)
        tried = stage.journals.of("refused", runner=victim.name, since_ns=thawed_ns)
        assert tried or not lives, "nothing was tried after the thaw: the test shows nothing"


async def test_a_pause_shorter_than_trust_costs_no_seat(url_by_day: str, tmp_path: Path) -> None:
    """P1, P2: the lease is kept in a thread, so the same goes for a blocked loop, whose stack is logged."""
    async with holders(url_by_day, tmp_path, times=STEADY, HOLDER_BLOCK_S="3") as stage:
        before = held(stage)
        frozen, blocked, _ = stage.runners
        await frozen.freeze()
        blocked.send(signal.SIGUSR1)
        await asyncio.sleep(0.5)
        await frozen.thaw()
        await stage.wait_until(lambda: said([blocked], "the event loop has been blocked for "))
        await stage.writing()
        assert held(stage) == before
        assert said([blocked], "blocks the loop")


async def test_b2_a_loop_that_is_blocked_too_long_is_replaced(url_by_day: str, tmp_path: Path) -> None:
    """M16: the keeper evicts itself; the loop's late writes are refused."""
    async with holders(url_by_day, tmp_path, HOLDER_BLOCK_S="300") as stage:
        victim = stage.runners[0]
        victim.send(signal.SIGUSR1)
        await stage.wait_until(lambda: stage.journals.of("blocked"))
        blocked_ns = now_ns()
        await stage.settled(among=others(stage, victim))
        replaced_ns = now_ns()
        assert not stage.journals.of("lost", runner=victim.name), "its loop turned: the test shows nothing"
        (stage.cluster.directory / "unblock").touch()
        assert await comes_back(stage, victim, since_ns=blocked_ns)
        assert said([victim], "the event loop was blocked for")
        assert not stage.late_of(victim, since_ns=replaced_ns)
        assert stage.journals.of("refused", runner=victim.name), "nothing was tried: the test shows nothing"


async def test_f6_a_runner_that_is_asked_to_leave_hands_over_and_exits_with_0(url: str, tmp_path: Path) -> None:
    """INV-L1."""
    async with holders(url, tmp_path, times=STEADY) as stage:
        leaver = stage.runners[0]
        seats = stage.journals.held_by(leaver.name)
        at_ns = now_ns()
        assert await leaver.stop() == 0, leaver.tail()
        await stage.settled()
        await stage.writing()
        grants = {event.seat: event for event in stage.journals.of("granted", since_ns=at_ns)}
        assert set(seats) <= grants.keys()
        assert all(grants[seat].more["clean"] for seat in seats)
        drained = {event.seat: event.at_ns for event in stage.journals.of("drained", runner=leaver.name)}
        early = [seat for seat in seats if seat not in drained or drained[seat] > grants[seat].at_ns]
        assert not early, f"{early} were released before their work had ended"
        assert not stage.journals.of("lost")


async def test_a_storm_of_signals_ends_everybody_and_loses_nothing(url_by_day: str, tmp_path: Path) -> None:
    """Incident 20: several leave at once, one of them is asked twice, others join at the same instant."""
    async with holders(url_by_day, tmp_path, runners=2, times=STEADY) as stage:
        await stage.cluster.start(env={"HOLDER_DRAIN_S": "600", "COTERIE_DRAIN": "10m"})
        await stage.settled()
        *first, slow = stage.runners
        joining = stage.cluster.start(2)
        leaving = [each.stop() for each in first]
        slow.send(signal.SIGTERM)
        await joining
        await stage.wait_until(lambda: stage.journals.of("draining", runner=slow.name))
        await stage.wait_until(lambda: "seats released" in slow.tail())  # a second later: sooner, two signals are one
        codes = [*[await each for each in leaving], await slow.stop()]
        assert codes == [0, 0, 128 + signal.SIGTERM], stage.cluster.report()
        await stage.settled()
        await stage.writing()


async def test_a_forked_child_that_stays_behind_does_not_hold_seats(url_by_day: str, tmp_path: Path) -> None:
    """M2, P13: it has neither the session, nor the lock, nor the listener."""
    async with holders(url_by_day, tmp_path, times=STEADY) as stage:
        victim = stage.runners[0]
        victim.send(signal.SIGUSR2)
        await stage.wait_until(lambda: stage.journals.of("forked"))
        child = stage.journals.of("forked")[0].more["child"]
        await victim.kill()
        await stage.settled()
        os.kill(child, 0)  # it lives
        assert said(others(stage, victim), f"runner {victim.name} was evicted: its process is gone")


GIVING = ["leaving", "release", "release 2", "leave"]
TAKING = ["register", "acquire", "acquire 2"]
MOMENTS = ["in drain", *(f"{when} {what}" for what in (*GIVING, *TAKING) for when in ("before", "during", "after"))]


async def die_at(moments: Sequence[str], url: str, folder: Path) -> None:
    """One runner after the other joins, leaves, and dies at a moment of it; two others carry on."""
    async with holders(url, folder, runners=2) as stage:
        for moment in moments:
            joining = stage.cluster.start(env={"HOLDER_DIE": moment})
            victim = stage.runners[-1]
            if any(what in moment for what in TAKING):
                await asyncio.gather(joining, return_exceptions=True)  # it may die before it is ready
                await stage.wait_until(lambda: not victim.alive)  # noqa: B023 used in this turn only
                assert victim.exit_code == -signal.SIGKILL, f"{moment}: {victim.tail()}"
            else:
                await joining
                await stage.settled()
                assert await victim.stop() == -signal.SIGKILL, f"{moment}: {victim.tail()}"
            await stage.settled()
            await stage.writing()


async def test_a_runner_that_dies_while_it_hands_or_takes_over_is_replaced(url_by_day: str, tmp_path: Path) -> None:
    await die_at(["before release", "during release 2", "during acquire"], url_by_day, tmp_path)


@pytest.mark.nightly
async def test_a_runner_may_die_at_each_moment_of_a_hand_over(url: str, tmp_path: Path) -> None:
    await die_at(MOMENTS, url, tmp_path)


async def test_incidents_5_and_21_a_runner_with_other_settings_refuses_to_join(url: str, tmp_path: Path) -> None:
    """INV-F6: and says both values."""
    async with holders(url, tmp_path, runners=1) as stage:
        outcomes = await asyncio.gather(
            stage.cluster.start(env={"COTERIE_SHARDS": "13"}),
            stage.cluster.start(env={"COTERIE_LEASE_TTL": "5s"}),
            return_exceptions=True,
        )
        assert all("before it was ready" in str(outcome) for outcome in outcomes), outcomes
        assert said(stage.runners[1:2], "shards is 13 here, and 12 in cluster 'default'")
        assert said(stage.runners[2:3], "lease_ttl is 5s here, and 4s in cluster 'default'")
        assert {event.runner for event in stage.journals.of("granted")} == {"runner-1"}


@pytest.mark.nightly
async def test_gap_02_kills_and_freezes_at_random_for_minutes(url: str, tmp_path: Path) -> None:
    chance = random.Random(2)
    over = time.monotonic() + MINUTES * 60
    async with holders(url, tmp_path, runners=4) as stage:
        while time.monotonic() < over:
            victim = chance.choice(stage.runners)
            if victim.alive and chance.random() < 0.5:
                await victim.kill()
            elif victim.alive:
                await victim.freeze()
            await asyncio.sleep(chance.uniform(0, 5))
            if victim.frozen:
                await victim.thaw()
            if not victim.alive:  # killed, or ended while it was frozen in a commit [C3]
                await victim.start()
        await stage.settled()
        await stage.writing()
        assert stage.judged()["refused"], "nobody was ever late: the test shows nothing"
