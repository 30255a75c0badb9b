"""A job each second in real processes: whatever befalls whoever runs it, each tick has one outcome.

Each test ends with the judgement of all ticks, from their rows and what the bodies have noted, against an enumeration
of the schedule of its own: none lost, none doubled, none invented, each attempt by another holder [C2, INV-C1, INV-C2].
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from tests.cluster.cron_cluster import belfry, freeze, kill, restart, roll
from tests.cluster.seat_cluster import STEADY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from coterie.storage.contracts.ticks import TickRow
    from coterie.testing import Server


async def test_runners_are_killed_and_frozen_and_no_tick_is_lost_or_doubled(url_by_day: str, tmp_path: Path) -> None:
    async with belfry(url_by_day, tmp_path) as there:
        for befall in (kill, freeze, kill):
            await befall(there)
        epochs = {ring.epoch for ring in there.rings(there.bells[0])}  # maybe without 1: it may move before a tick
        assert len(epochs) > 1, "nobody else has rung: nothing is shown"


async def test_gap_27_a_tick_whose_holder_dies_between_claim_and_outcome_is_begun_again(
    url_by_day: str, tmp_path: Path
) -> None:
    """Incident 24: by the next holder, as its second attempt."""
    async with belfry(url_by_day, tmp_path, runners=0) as there:
        (victim,) = await there.start(BELL_DIE="in body 3")
        await there.wait_until(lambda: not victim.alive)
        (successor,) = await there.start()
        await there.ringing(but=victim)
        await there.judge()
        (row,) = [row for row in await there.rows(there.bells[0]) if row.attempt > 1]
        assert (row.outcome, row.attempt, row.runner) == ("ran", 2, successor.name)
        assert [ring.attempt for ring in there.rings(there.bells[0]) if ring.tick_s == row.at.timestamp()] == [1, 2]


async def test_a_rolling_restart_loses_and_doubles_no_tick(url_by_day: str, tmp_path: Path) -> None:
    """And cuts none short: what runs is waited for."""
    async with belfry(url_by_day, tmp_path, takes_s=0.3, times=STEADY) as there:
        await roll(there)
        assert not (await there.judge())["again"]


async def test_c3_after_an_outage_missed_ticks_run_or_are_skipped_as_their_cron_says(
    url_by_day: str, tmp_path: Path
) -> None:
    """Incident 25: all of them, the newest, or none."""
    async with belfry(url_by_day, tmp_path, catch_up=("all", "latest", "none")) as there:
        for each in there.runners:
            await each.kill()
        killed_at = await there.storage.now()
        await there.passing(4)
        started_at = await there.storage.now()
        await there.runners[0].start()
        await there.ringing(since=started_at)
        await there.judge()
        every, newest, none = [missed(await there.rows(bell), killed_at, started_at) for bell in there.bells]
        assert {row.outcome for row in every} == {"ran"}
        assert len(every) >= 3
        assert {(row.outcome, row.reason) for row in newest} == {("skipped", "superseded")}
        assert {(row.outcome, row.reason) for row in none} == {("skipped", "stale")}


@pytest.mark.postgres
async def test_gap_06_no_tick_is_lost_when_the_database_crashes_and_restarts(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    """Twenty bells: claims and outcomes are under way at each moment of the second."""
    async with belfry(postgres_url, tmp_path, count=20, takes_s=0.4, times=STEADY) as there:
        await restart(postgres_server)(there)


EACH_S = 60


@pytest.mark.nightly
async def test_a_minute_with_leases_as_by_default(url: str, tmp_path: Path) -> None:
    """Its holder is killed twice and frozen once; `bench/crons.py` has the figures."""
    async with belfry(url, tmp_path, times={}) as there:
        began_at = await there.storage.now()
        for befall in (kill, freeze, kill):
            await there.passing(5)
            await befall(there)
        await there.passing(EACH_S - (await there.storage.now() - began_at).total_seconds())


STATEMENTS = ["take", "claim", "claim 4", "note", "note 4"]
MOMENTS = [f"{when} {statement}" for statement in STATEMENTS for when in ("before", "during", "after")]


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_gap_27_a_runner_may_die_at_each_statement_of_a_tick(url: str, tmp_path: Path) -> None:
    """It holds the seat when it dies: the others come and go."""
    await die_at([*MOMENTS, "in body 1", "in body 4"], url, tmp_path)


async def die_at(moments: Sequence[str], url: str, folder: Path) -> None:
    """One runner after the other has the bell alone, and dies at a moment of a tick; the next one goes on."""
    async with belfry(url, folder, runners=0) as there:
        for moment in moments:
            (victim,) = await there.start(BELL_DIE=moment)
            await there.wait_until(lambda: not victim.alive)  # noqa: B023 used in this turn only
            assert victim.exit_code == -9, f"{moment}: {victim.tail()}"
        await there.start()


def missed(rows: Sequence[TickRow], since: datetime, until: datetime) -> list[TickRow]:
    """What passed while nobody was there; without the newest, which may be the last of them."""
    return [row for row in rows if row.until >= since and row.at < until - timedelta(seconds=1)]
