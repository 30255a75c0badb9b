"""How late ticks are while all is well, when whoever runs them is killed or frozen, and when a thousand are due.

Three real processes, settings as by default, a job each second with `catch_up="all"`. A tick is late from its instant
to the first line of its body (of the attempt that was not cut short), by the clock of this machine, which is the
database's too. Every tick is judged from its rows against an enumeration of its own, see `tests.cluster.cron_history`.

RAW, for claims, is one row put and committed each, as in `bench.kv`.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.cron_cluster import belfry, freeze, kill
from tests.cluster.cron_history import by_tick, due, late_s

from bench import kv
from bench.measure import Row, compare
from bench.ownership import DURABLE, Limit, limit
from coterie import Cluster
from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import TickClaim, Verdict
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from coterie.testing import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cluster.cron_cluster import Befall, CronCluster

    from bench.measure import Work

LATE_MOST_MS, KILLED_MOST_MS, FROZEN_MOST_MS, CROWD_MOST_MS = 10, 2_000, 10_000, 2_000
CROWD, CROWD_EVERY_S = 1_000, 10
CALLERS = 100
PEERS = (
    "Effect Cluster: 6 of 54 ticks ran at its defaults; tuned 30 of 30, 53 ms late",
    "Procrastinate: 515 ms late, 11-12 ticks doubled after a freeze",
    "DBOS: 140-590 ms late",
    "RedBeat: 27 of 40 ticks lost",
    "APScheduler 3: every tick doubled; 4 (alpha): 25 ms late, none lost",
)
"""As they were measured once on the same work, a job each second whose process is killed or frozen; not by this run."""


@dataclass(frozen=True)
class Beside(Limit):
    """A figure of somebody else, told and not measured here."""

    def line(self) -> str:
        """As a line of the table."""
        return f"  beside it, measured once on the same work: {self.scenario}"


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """Both engines: a minute with a job each second (a quick look is shorter), a crowd, and what a claim costs."""
    calm_s = 24 if rounds >= 7 else 6
    with closing(Server(options=DURABLE)) as server, tempfile.TemporaryDirectory() as folder:
        server.start()
        for engine in ("postgres", "sqlite"):
            postgres = engine == "postgres"
            fresh = partial(_fresh, server if postgres else None, Path(folder))
            async for row in _minute(engine, fresh(), Path(folder), calm_s=calm_s):
                yield row
            if postgres:
                for told in PEERS:
                    yield Beside(told, 0, 0, 0, 1, None, 0, 0, "")
            yield await _crowd(engine, fresh(), Path(folder))
            async with _claims(fresh()) as claim, kv._postgres() if postgres else kv._sqlite() as (_, raw):
                yield await compare(
                    f"claim a tick, {engine}",
                    ours=claim, raw=raw, callers=CALLERS, goal=None, rounds=rounds, seconds=seconds,
                )  # fmt: skip


_numbers = itertools.count()


def _fresh(server: Server | None, folder: Path) -> str:
    return f"sqlite:///{folder}/{next(_numbers)}.db" if server is None else server.url(server.create_database())


async def _minute(engine: str, url: str, folder: Path, *, calm_s: float) -> AsyncIterator[Row]:
    async with belfry(url, folder, times={}) as there:
        _say(f"a job each second, {engine}")
        since_s = (await there.storage.now()).timestamp()
        await there.passing(calm_s)
        until_s = (await there.storage.now()).timestamp()
        killed = [await _through(there, kill, calm_s / 3) for _ in range(2)]
        frozen = await _through(there, freeze, calm_s / 3)
        until, bell = await there.over(), there.bells[0]
        expected = due((await there.effective_from())[bell], until)
        found = by_tick(await there.rows(bell), until=until)
        calm = sorted(late_s(there.rings(bell), since_s=since_s, until_s=until_s))
        counts = await there.judge()
        _say("")
    yield _late(f"tick late, {engine}", calm, most_p50=LATE_MOST_MS)
    yield limit(f"… through SIGKILL, {engine}", killed, trials=2, most=KILLED_MOST_MS)
    yield limit(f"… through SIGSTOP, {engine}", [frozen], trials=1, most=FROZEN_MOST_MS)
    without = sum(all(row.outcome is None for row in found.get(tick, ())) for tick in expected)
    twice = sum(len(rows) > 1 for rows in found.values())
    counted = partial(limit, trials=len(expected), most=0, unit="")
    yield counted(f"no outcome, {engine}", [without])
    yield counted(f"two outcomes, {engine}", [twice])
    again = counts["again"]
    yield Limit(f"another attempt, {engine}", len(expected), 0, 0, 1, None, again, again, "")


async def _through(there: CronCluster, befall: Befall, rest_s: float) -> float:
    """The latest tick of those that were due while something befell whoever runs them, in milliseconds."""
    await there.passing(rest_s)
    since_s = (await there.storage.now()).timestamp()
    await befall(there)
    return 1e3 * max(late_s(there.rings(there.bells[0]), since_s=since_s - 1))


async def _crowd(engine: str, url: str, folder: Path) -> Row:
    """A thousand crons that are due in the same second, some times; each of their ticks has run."""
    async with belfry(url, folder, count=CROWD, every_s=CROWD_EVERY_S, takes_s=0, times={}) as there:
        _say(f"{CROWD} crons at once, {engine}")
        since_s = (await there.storage.now()).timestamp()
        await there.ringing(times=3)
        until_s = (await there.over()).timestamp()
        late: list[float] = []
        for bell, rings in there.all_rings().items():
            ticks = late_s(rings, since_s=since_s, until_s=until_s)
            assert len(ticks) >= 3, f"{bell} has not run at each of its ticks"
            late += ticks
        _say("")
    return _late(f"{CROWD} at once: late, {engine}", sorted(late), most_p99=CROWD_MOST_MS)


def _late(scenario: str, late: list[float], *, most_p50: float | None = None, most_p99: float | None = None) -> Limit:
    """The median and the 99th percentile; one of them has a limit, and none may be early."""
    p50, p99 = (1e3 * late[len(late) * part // 100] for part in (50, 99))
    ratios = [most / told for most, told in ((most_p50, p50), (most_p99, p99)) if most is not None]
    ratio = min(ratios) if late[0] >= 0 else 0.0
    return Limit(scenario, len(late), 0, 0, ratio, 1, p50, p99, "ms")


def _say(what: str) -> None:
    print(f"\r{what:<50}\r", end="", file=sys.stderr, flush=True)


RUNNER, SCHEDULE = "f" * 32, "s"
LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def _claims(url: str) -> AsyncIterator[Work]:
    """A claim of the next tick of one cron after the other, as its holder writes it."""
    client = Cluster(url)
    async with client.connect():
        storage = client._acting().storage
        names = [f"cron-{number}" for number in range(CALLERS)]
        knows = {Seat.cron(name): f"{SCHEDULE}:o" for name in names}
        me = Registration(id=RUNNER, name="bench", address="", host_id="", groups=("default",), knows=knows)
        async with storage.ownership(RUNNER) as session:
            await session.register(
                me, [SeatDeclaration(seat, "default", told) for seat, told in knows.items()], ttl_s=3600
            )
            granted = {each.name: each.epoch for each in await session.acquire(list(knows))}
            assert granted.keys() == knows.keys(), "not all seats were granted"
            lasts: dict[str, datetime | None] = dict.fromkeys(names)
            idle = list(names)

            async def claim() -> None:
                name = idle.pop()
                last = lasts[name]
                at = LONG_AGO if last is None else last + timedelta(seconds=1)
                holder = Claim(RUNNER, Seat.cron(name), granted[Seat.cron(name)])
                write = TickClaim(holder, name, SCHEDULE, last, (Verdict(at, at),))
                assert (await storage.ticks.claim(write)).told == "written"
                lasts[name] = at
                idle.append(name)

            yield claim
