"""Seats and a PostgreSQL that crashes, hangs, falls silent or fails over: nobody moves without need, or writes late."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING

import asyncpg
import pytest

from coterie.testing import Server
from tests.cluster.seat_cluster import SEATS, STEADY, comes_back, held, holders, others, said
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from coterie.testing import Process
    from coterie.testing.database import Way
    from tests.cluster.seat_cluster import SeatCluster

pytestmark = pytest.mark.postgres


async def test_m1_a_server_that_crashes_and_a_session_that_falls_silent_move_no_seat(
    postgres_server: Server, postgres_url: str, tmp_path: Path
) -> None:
    """LOCK-11, incident 2: writes go on over the pool, the lease over a new session."""
    async with holders(postgres_url, tmp_path, times=STEADY) as stage:
        before, victim = held(stage), stage.runners[0]
        for _ in range(2):
            postgres_server.restart("immediate")
            await stage.writing()
        await stage.wait_until(lambda: dedicated(postgres_server, postgres_url, stage, victim))
        old = dedicated(postgres_server, postgres_url, stage, victim)
        assert victim.link is not None
        victim.link.cut(session=old)
        await stage.wait_until(lambda: dedicated(postgres_server, postgres_url, stage, victim) not in (old, 0))
        await stage.writing()
        assert held(stage) == before
        assert not said(stage.runners, "was evicted")


def dedicated(server: Server, url: str, stage: SeatCluster, process: Process) -> int:
    """The port from which the server sees the newest dedicated session of a runner; 0 if there is none."""
    incarnation = stage.journals.of("granted", runner=process.name)[-1].incarnation
    rows = server.execute(
        "select a.client_port from pg_locks l join pg_stat_activity a using (pid) where l.locktype = 'advisory' "
        f"and l.granted and a.application_name like '%{incarnation}%' order by a.backend_start desc",
        database=url.rpartition("/")[2],
    )
    return int(rows[0][0]) if rows else 0


async def test_m1_after_an_outage_longer_than_the_lease_the_first_to_return_evicts_nobody(
    postgres_url: str, tmp_path: Path
) -> None:
    async with holders(postgres_url, tmp_path) as stage:
        ids = {grant.incarnation for grant in stage.journals.holders().values()}
        first, *rest = stage.runners
        for each in stage.runners:
            await each.cut("storage")
        await stage.wait_until(lambda: len(stage.journals.of("lost")) >= SEATS)  # trust has run out everywhere
        await asyncio.sleep(2)  # and by now all leases
        healed_ns = now_ns()
        await first.heal()
        await stage.wait_until(lambda: stage.journals.of("granted", runner=first.name, since_ns=healed_ns))
        for each in rest:
            await each.heal()
        await stage.settled()
        await stage.writing()
        assert {grant.incarnation for grant in stage.journals.holders().values()} == ids
        assert not said(stage.runners, "was evicted")


async def test_b2_a_runner_behind_a_silent_network_is_replaced_and_comes_back(
    postgres_url: str, tmp_path: Path
) -> None:
    """Incidents 33 and 34, LOCK-03: what it had sent arrives when the network heals, and is refused."""
    await cut_and_heal((), postgres_url, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["requests", "replies"])
async def test_b2_a_runner_that_is_heard_but_hears_nothing_or_the_reverse_is_replaced(
    way: Way, postgres_url: str, tmp_path: Path
) -> None:
    await cut_and_heal((way,), postgres_url, tmp_path)


async def cut_and_heal(ways: tuple[Way, ...], url: str, folder: Path) -> None:
    async with holders(url, folder) as stage:
        victim = stage.runners[0]
        seats = stage.journals.held_by(victim.name)
        await victim.cut("storage", *ways)
        await stage.settled(among=others(stage, victim))
        await stage.writing()
        lost = {event.seat: event.at_ns for event in stage.journals.of("lost", runner=victim.name)}
        taken = {event.seat: event.at_ns for event in stage.journals.of("granted") if event.runner != victim.name}
        late = [seat for seat in seats if seat not in lost or lost[seat] > taken[seat]]
        assert not late, f"it trusted itself on {late} until after it was replaced [INV-F4]"
        healed_ns = now_ns()
        await victim.heal()
        assert await comes_back(stage, victim, since_ns=healed_ns)
        await stage.settled()
        assert not stage.late_of(victim, since_ns=healed_ns)


@pytest.mark.nightly
async def test_a_machine_that_vanishes_is_replaced_when_its_lease_runs_out(postgres_url: str, tmp_path: Path) -> None:
    """No connection of it is ever closed: the database takes its session for alive [M2]."""
    async with holders(postgres_url, tmp_path) as stage:
        victim = stage.runners[0]
        await victim.cut("storage")
        await victim.kill()
        await stage.settled()
        await stage.writing()
        assert said(others(stage, victim), f"runner {victim.name} was evicted: its lease has run out")


@pytest.mark.nightly
async def test_a_runner_behind_a_slow_network_works_and_leaves_in_order(postgres_url: str, tmp_path: Path) -> None:
    async with holders(postgres_url, tmp_path, times=STEADY) as stage:
        victim = stage.runners[0]
        assert victim.link is not None
        victim.link.delay(0.1)
        await stage.writing()
        assert await victim.stop() == 0, victim.tail()
        await stage.settled()


async def test_incident_1_takers_that_were_blocked_longer_than_their_lease_act_on_nothing_stale(
    postgres_url: str, tmp_path: Path
) -> None:
    """m3: a stranger holds the seats' rows while their holder dies."""
    async with holders(postgres_url, tmp_path) as stage:
        stranger = await asyncpg.connect(postgres_url)
        try:
            async with stranger.transaction():
                await stranger.execute("select 1 from coterie.seats for update")
                await stage.runners[0].kill()
                await asyncio.sleep(4)  # longer than their trust lasts
        finally:
            stranger.terminate()
        await stage.settled()
        await stage.writing()


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server whose data the test may exchange."""
    with contextlib.closing(Server()) as server:
        server.start()
        yield server


@pytest.mark.nightly
async def test_incident_32_a_failover_that_lost_grants_repeats_no_epoch(own_server: Server, tmp_path: Path) -> None:
    """M13, INV-F1: a standby that lags is promoted; who was granted what it does not know of is refused."""
    url = own_server.url(own_server.create_database())
    async with holders(url, tmp_path) as stage:
        lagging = copied(own_server)
        await stage.writing()
        await stage.runners[0].kill()  # grants that the standby does not know of
        await stage.settled()
        await stage.writing()
        stage.judged()
        fail_over(own_server, lagging)
        stage.judged_from_ns = now_ns()
        await stage.settled()
        await stage.writing(since_ns=stage.judged_from_ns)
        epochs = [(event.seat, event.epoch) for event in stage.journals.of("granted")]
        assert len(epochs) == len(set(epochs))


def copied(server: Server) -> Path:
    """The data as it is now, as a standby would have it that gets nothing from here on."""
    server.stop()
    copy = server.directory / "lagging"
    shutil.copytree(server.data, copy, copy_function=shutil.copy2)
    server.start()
    return copy


def fail_over(server: Server, lagging: Path) -> None:
    """Promote a lagging standby in the place of its primary."""
    server.stop("immediate")
    owner = server.data.stat()
    shutil.rmtree(server.data)
    lagging.rename(server.data)
    (server.data / "standby.signal").touch()
    for path in (server.data, *server.data.rglob("*")):
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.start()
    server.execute("select pg_promote()")
