"""After a failover to a server that lacks commits nothing in memory shows the lost past [M13]."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, ClusterError, Entity, Leader, rpc
from coterie.kernel import metrics
from coterie.storage.postgres.server.server_check import ServerFacts, judge
from coterie.testing.postgres import Server
from tests.unit.postgres.conftest import stranger, until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.postgres


@dataclass
class Count:
    n: int = 0


class Counter(Entity[Count]):
    @rpc
    async def add(self) -> int:
        self.state.n += 1
        return self.state.n

    @rpc
    async def value(self) -> int:
        return self.state.n


def counting(url: str) -> tuple[Cluster, list[int]]:
    """A cluster with an entity and a leader, and what the leader found in its state each time it began."""
    cluster = Cluster(url, shards=2, runner_name="anna", http_listen="off")
    cluster.entity(Counter)
    found: list[int] = []

    @cluster.singleton("importer", state=Count)
    async def importer(leader: Leader[Count]) -> None:
        found.append(leader.state.n)
        await asyncio.Event().wait()

    return cluster, found


async def test_what_the_new_server_has_not_is_dropped_from_memory_and_said(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Played: the rows of the past, and the generation that the first runner on the new server has raised."""
    cluster, found = counting(postgres_url)
    before = metrics.FAILOVERS.of().value
    async with cluster, stranger(postgres_url) as sql:
        await cluster.ready(timeout="2m")
        ref = cluster.ref(Counter, "alice")
        assert await ref.add() == 1
        await until(lambda: found == [0])
        await sql.execute("create table past as select * from coterie.states")
        assert await ref.add() == 2
        async with sql.transaction():
            await sql.execute("delete from coterie.states")
            await sql.execute("insert into coterie.states select * from past")
            await sql.execute("update coterie.generations set generation = generation + 1")
        await until(lambda: len(found) == 2)
        async with asyncio.timeout(120):
            while await ref.value() != 1:
                await asyncio.sleep(0.01)
        health = await cluster.health()
        (reason,) = [each for each in health.reasons if each.what == "database"]
        assert "acknowledged and not replicated may be missing" in reason.problem
        assert health.status == "degraded"
    assert found == [0, 0], "it led once more"
    assert metrics.FAILOVERS.of().value == before + 1
    assert any("may be missing" in each.getMessage() for each in caplog.records if each.levelno == logging.CRITICAL)


SAFE = ServerFacts(standby=False, synchronous_commit="on", fsync="on", full_page_writes="on")


def test_standbys_of_which_none_is_waited_for_are_warned_about() -> None:
    assert judge(replace(SAFE, standbys=2, synchronous_standby_names="first 1 (a, b)"), address="db") == []
    for facts in (
        replace(SAFE, standbys=1),
        replace(SAFE, standbys=1, synchronous_standby_names="*", synchronous_commit="local"),
    ):
        (warning,) = judge(facts, address="db")
        assert "a failover loses what was acknowledged and not replicated yet" in warning
    assert judge(replace(SAFE, synchronous_standby_names="*"), address="db") == [], "there are none"


@contextmanager
def standby_of(primary: Server) -> Iterator[Server]:
    """A server that follows another one."""
    standby = Server()
    try:
        shutil.rmtree(standby.data)
        command = f"pg_basebackup -h 127.0.0.1 -p {primary.port} -U postgres -R -X stream -c fast -D {standby.data}"
        process = standby._launch(command.split(), output=subprocess.PIPE)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        standby.start()
        yield standby
    finally:
        standby.close()


def has_replayed(primary: Server, place: str) -> bool:
    return bool(primary.execute(f"select 1 from pg_stat_replication where replay_lsn >= '{place}'"))


@pytest.mark.nightly
async def test_a_promoted_standby_that_lacks_commits(caplog: pytest.LogCaptureFixture) -> None:
    """Incident 32, with two hosts in the url: the runner goes on by itself, and with what the new server has."""
    primary = Server()
    try:
        primary.start()
        with standby_of(primary) as standby:
            cluster, found = counting(
                f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
            )
            async with cluster:
                await cluster.ready(timeout="2m")
                assert any("commits wait for none of them" in each.getMessage() for each in caplog.records)
                ref = cluster.ref(Counter, "alice")
                assert await ref.add() == 1
                await until(lambda: found == [0])
                place = primary.execute("select pg_current_wal_lsn()::text")[0][0]
                await until(lambda: has_replayed(primary, place))
                standby.stop()
                assert await ref.add() == 2
                primary.kill()
                standby.start()
                standby.execute("select pg_promote()")
                await until(lambda: len(found) == 2)
                async with asyncio.timeout(120):
                    while await value(ref) != 1:
                        await asyncio.sleep(0.01)
                assert await ref.add() == 2
                reasons = [each.what for each in (await cluster.health()).reasons]
                assert "database" in reasons
    finally:
        primary.close()


async def value(ref: Counter) -> int | None:
    try:
        return await ref.value()
    except ClusterError:
        return None
