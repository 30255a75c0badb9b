"""Runners that were killed and are started again: the new process owns everything at once, and is not ready before."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest

from coterie.testing import Server
from tests.cluster.conftest import POSTGRES
from tests.cluster.restart_cluster import Port, restarts, silent_address
from tests.cluster.seat_cluster import QUICK, held, holders, said
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from pathlib import Path

PATIENT = {"COTERIE_LEASE_TTL": "5m", "COTERIE_LEASE_RENEW": "250ms"}
"""Whoever waited for a lease would be too late for any wait of these tests, which is two minutes at most."""


@pytest.mark.parametrize(
    ("runners", "killed", "port"),
    [
        (1, 1, "same"),
        (3, 3, "other"),
        *(
            pytest.param(*each, marks=pytest.mark.nightly)
            for each in [(1, 1, "other"), (3, 1, "same"), (3, 1, "other"), (3, 2, "other"), (3, 3, "same")]
        ),
    ],
)
async def test_runners_that_were_killed_and_start_again_own_every_shard_without_waiting_for_a_lease(
    url: str, tmp_path: Path, runners: int, killed: int, port: Port
) -> None:
    """systemd, `restart: always`, a laptop, a pod that ran out of memory."""
    async with restarts(url, tmp_path, runners=runners, port=port, times=PATIENT) as stage:
        victims = stage.runners[:killed]
        for each in victims:
            await each.kill()
        await stage.again(victims)
        assert not stage.early()


@pytest.mark.parametrize("engine", ["sqlite", POSTGRES])
async def test_one_whose_old_address_is_silent_is_replaced_when_its_lease_is_over(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The process is gone and something between keeps what is sent to it; on SQLite the kernel knows all the same."""
    url = f"sqlite:///{tmp_path}/coterie.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    times = PATIENT if engine == "sqlite" else QUICK
    why = "its process is gone" if engine == "sqlite" else "its lease has run out and nothing is left of it"
    over = "select bool_and(expires_at < clock_timestamp()) from coterie.leases"
    with silent_address() as silent:
        async with restarts(url, tmp_path, runners=1, port="other", times=times, COTERIE_ADVERTISE=silent) as stage:
            await stage.runners[0].kill()
            if engine == "postgres":
                await stage.cluster.wait_until(lambda: execute(request, url, over)[0][0])
            await stage.another()
            assert said(stage.runners[1:], f"was evicted: {why}")
            assert not stage.early()


@pytest.mark.parametrize("engine", ["sqlite", POSTGRES])
async def test_after_a_reboot_that_left_rows_behind_a_runner_starts_and_owns_everything(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The rows have loopback addresses of another boot, which were taken for those of another host, for ever."""
    url = f"sqlite:///{tmp_path}/coterie.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    async with restarts(url, tmp_path, runners=2, port="same", times=QUICK) as stage:
        for each in stage.runners:
            await each.kill()
        if engine == "postgres":
            execute(request, url, "update coterie.runners set host_id = 'before/1'")
        else:
            change(tmp_path / "coterie.db", "update runners set host_id = 'before/1'")
            change(tmp_path / "coterie.db-leases", "update leases set boot_id = 'before'")
        await stage.again(stage.runners)
        assert not stage.early()


def execute(request: pytest.FixtureRequest, url: str, sql: str) -> list[Any]:
    """Of a database on the server of the tests."""
    server: Server = request.getfixturevalue("postgres_server")
    return server.execute(sql, database=url.rpartition("/")[2])


def change(path: Path, sql: str) -> None:
    """A file that nobody has open."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(sql)


@pytest.mark.postgres
async def test_m1_a_server_that_was_down_for_longer_than_a_lease_costs_no_living_runner_its_seats(
    tmp_path: Path,
) -> None:
    """One that starts just then finds all locks free and all leases over, and nobody that it has met."""
    with contextlib.closing(Server()) as server:
        server.start()
        url = server.url(server.create_database())
        async with holders(url, tmp_path, runners=2, proxied=False) as stage:
            before = held(stage)
            server.stop("immediate")
            await stage.wait_until(lambda: len(stage.journals.of("lost")) >= stage.seats)  # trust has run out
            expired_ns = now_ns() + 2_000_000_000  # a margin of 1 s, and more
            await stage.wait_until(lambda: now_ns() >= expired_ns)
            newcomer = stage.cluster.start()
            server.start()
            await newcomer
            await stage.settled()
            await stage.writing()
            assert not said(stage.runners, "was evicted")
            first = {event.incarnation for event in stage.journals.of("granted") if before[event.seat] == event.epoch}
            assert first <= {grant.incarnation for grant in stage.journals.holders().values()}
