"""The facts of a big cluster that does not exist, served by a real HTTP server: what `bench.page` watches.

With each reading all runners have handled calls, some shards have changed hands and some crons have run.
"""

from __future__ import annotations

import copy
import os
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from bench.peers import keep
from coterie import Cluster, web
from coterie.cron.api import CronInfo, TickInfo
from coterie.kernel.clock import SystemClock
from coterie.kernel.ids import Seat, ShardId
from coterie.kernel.metrics import CALL_DURATION
from coterie.observe.collect import Collector
from coterie.observe.facts import ClusterFacts, LocalFacts
from coterie.singletons.api import SingletonInfo
from coterie.storage.contracts.ticks import TickRow
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow
from coterie.web.server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coterie.client import Client

RUNNERS = 50
SHARDS = 1_000
CRONS = 500
SINGLETONS = 10
EXCHANGES = 3
"""Pairs of shards that exchange their holders, with each reading."""
RUN = 8
"""Crons that have run since the reading before: about as many as 500 that run once a minute."""
UP_S = 86_400.0
_MINUTE = timedelta(minutes=1)


async def serve(spent: Any) -> str:
    """Serve the page of such a cluster in this process.

    Args:
        spent: A shared number. The CPU seconds that the simulation itself takes are added to it.

    Returns:
        The id of this process and the URL.
    """
    cluster = Cluster("sqlite://", http_listen="127.0.0.1:0")
    stack = AsyncExitStack()
    keep.append(stack)
    await stack.enter_async_context(cluster.connect())
    here, simulated = cluster._acting(), SimulatedCluster()
    here.collector = SimulatedCollector(here, simulated, spent)
    here.storage.ticks.histories = simulated.histories  # type: ignore[method-assign]
    server = HttpServer(web.app(cluster), cluster.settings)
    await server.start()
    keep.append(server)
    return f"{os.getpid()} {server.url}"


class SimulatedCollector(Collector):
    """Collects facts of a cluster that does not exist; shares and caches them as the real one.

    Args:
        here: The process.
        simulated: The cluster.
        spent: See `serve`.
    """

    def __init__(self, here: Client, simulated: SimulatedCluster, spent: Any) -> None:
        super().__init__(here, SystemClock())
        self._simulated = simulated
        self._spent = spent

    async def _gather(self, now_ns: int) -> ClusterFacts:
        del now_ns
        began_s = time.thread_time()
        facts = self._simulated.read()
        self._spent.value += time.thread_time() - began_s
        return facts


class SimulatedCluster:
    """Its rows."""

    def __init__(self) -> None:
        self._began_at = datetime.now(UTC)
        self._readings = 0
        crons, singletons = (
            [f"{word}-{number:03}" for number in range(count)]
            for word, count in (("report", CRONS), ("importer", SINGLETONS))
        )
        knows = {Seat.cron(name): "f" for name in crons} | {Seat.singleton(name): "f" for name in singletons}
        self._runners = tuple(self._runner(number, knows) for number in range(RUNNERS))
        shards = (Seat.shard(ShardId("default", number)) for number in range(SHARDS))
        names = (*shards, *map(Seat.cron, crons), *map(Seat.singleton, singletons))
        self._seats = [self._seat(name, number) for number, name in enumerate(names)]
        self._crons = [self._cron(name, number) for number, name in enumerate(crons)]
        self._singletons = [self._singleton(name, number) for number, name in enumerate(singletons)]

    def read(self) -> ClusterFacts:
        """The next facts: all objects are new, as those that come from a database and over the wire."""
        now = datetime.now(UTC)
        self._readings += 1
        for number in range(EXCHANGES):
            self._exchange(2 * (self._readings * EXCHANGES + number) % SHARDS)
        for number in range(RUN):
            self._run((self._readings * RUN + number) % CRONS, now)
        self._singletons = [replace(each, last_heartbeat_at=now, alive_at=now) for each in self._singletons]
        facts = ClusterFacts(
            now=now,
            view=ClusterSnapshot(self._runners, tuple(self._seats), str(self._readings)),
            runners={row.id: self._local(number, row, now) for number, row in enumerate(self._runners)},
            singletons=tuple(self._singletons),
            crons=tuple(self._crons),
        )
        return copy.deepcopy(facts)

    async def histories(
        self, names: Sequence[str], *, most: int, since: datetime, before: datetime
    ) -> Mapping[str, Sequence[TickRow]]:
        """A tick each minute, the newest first."""
        last = min(before, datetime.now(UTC)).replace(second=0, microsecond=0)
        instants = [at for number in range(most) if (at := last - number * _MINUTE) >= since]
        return {name: [self._tick(name, at) for at in instants] for name in names}

    # Rows as they are at first

    def _runner(self, number: int, knows: dict[str, str]) -> RunnerRow:
        return RunnerRow(
            id=f"{number:032x}",
            name=f"web-{number}",
            address=f"10.0.0.{number}:7649",
            host_id=f"host-{number}",
            groups=("default",),
            knows=knows,
            started_at=self._began_at - timedelta(seconds=UP_S),
        )

    def _seat(self, name: str, number: int) -> SeatRow:
        return SeatRow(name, "default", f"{number % RUNNERS:032x}", 1, "f", self._began_at, clean=True)

    def _cron(self, name: str, number: int) -> CronInfo:
        at = self._began_at.replace(second=0, microsecond=0)
        return CronInfo(
            name=name,
            schedule="* * * * *",
            timezone="Europe/Zurich",
            explained="every minute",
            group="default",
            runner=f"web-{number % RUNNERS}",
            epoch=1,
            next_at=at + _MINUTE,
            paused_at=None,
            last_run_at=at,
            run_count=1_000,
            last_error=None,
            last_error_at=None,
            failures=0,
            running=0,
            last_heartbeat_at=None,
            latest=self._ended(name, number, at),
            problem="",
        )

    def _singleton(self, name: str, number: int) -> SingletonInfo:
        return SingletonInfo(
            name=name,
            group="default",
            leader=f"web-{number % RUNNERS}",
            epoch=1,
            since_at=self._began_at,
            last_run_at=self._began_at,
            run_count=1,
            last_error=None,
            last_error_at=None,
            last_heartbeat_at=self._began_at,
            alive_at=self._began_at,
            note="",
            done=None,
            total=None,
            expected_interval=timedelta(seconds=30),
            problem="",
        )

    # What changes

    def _exchange(self, first: int) -> None:
        """Two shards exchange their holders, so that the cluster stays balanced."""
        one, other = self._seats[first], self._seats[first + 1]
        replaced = msgspec.structs.replace
        self._seats[first] = replaced(one, holder=other.holder, epoch=one.epoch + 1)
        self._seats[first + 1] = replaced(other, holder=one.holder, epoch=other.epoch + 1)

    def _run(self, number: int, now: datetime) -> None:
        old = self._crons[number]
        self._crons[number] = replace(
            old,
            next_at=now + _MINUTE,
            last_run_at=now,
            run_count=old.run_count + 1,
            latest=self._ended(old.name, number, now),
        )

    def _local(self, number: int, row: RunnerRow, now: datetime) -> LocalFacts:
        """All of a runner's figures are others each time."""
        up_s = UP_S + (now - self._began_at).total_seconds()
        calls = self._readings * (100 + number)
        return LocalFacts(
            runner=row.id,
            name=row.name,
            version="1.0",
            up_s=up_s,
            is_ready=True,
            seats=len(self._seats) // RUNNERS,
            entities={"Account": 200 + self._readings % 7, "Session": 100 + number},
            waiting=self._readings % 5,
            running=self._readings % 3,
            calls=calls,
            call_times=tuple(calls // (place + 1) for place in range(len(CALL_DURATION.bounds) + 1)),
            loop_lag_s=0.001 + self._readings % 9 / 1e4,
            storage_s=0.002 + self._readings % 11 / 1e4,
            clock_offset_s=0.0,
            lease_left_s=4.0 + self._readings % 10 / 10,
            memory_bytes=60_000_000 + self._readings % 13 * 4096,
            cpu_s=up_s / 10,
        )

    @staticmethod
    def _ended(name: str, number: int, at: datetime) -> TickInfo:
        took = timedelta(milliseconds=100 + number)
        return TickInfo(
            cron=name,
            scheduled_at=at,
            until=at,
            count=1,
            kind="scheduled",
            matches_schedule=True,
            outcome="ran",
            reason="",
            attempt=1,
            errors=(),
            runner=f"web-{number % RUNNERS}",
            epoch=1,
            started_at=at,
            ended_at=at + took,
            late=timedelta(milliseconds=5),
            took=took,
            note="",
            done=None,
            total=None,
        )

    @staticmethod
    def _tick(name: str, at: datetime) -> TickRow:
        return TickRow(
            name=name,
            kind="scheduled",
            at=at,
            until=at,
            count=1,
            seq=0,
            epoch=1,
            attempt=1,
            outcome="ran",
            runner="web-1",
            claimed_at=at,
            ended_at=at + timedelta(seconds=1),
            late_s=0.005,
            took_s=0.995,
        )
