"""How long seats are unheld when runners die, freeze, leave, join and start again; what an idle one costs the database.

Three real processes on a real PostgreSQL, settings as by default, each seat written to twice a second. Every seat of
every trial counts; a seat is unheld from the signal on, or from the end of its drain, until its next holder has it. A
restart is the time from the start of the new processes until an entity on each of 100 shards has answered each of them.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import tempfile
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.restart_cluster import restarts, silent_address
from tests.cluster.seat_cluster import comes_back, holders
from tests.cluster.seat_program import now_ns

from bench.measure import Row
from coterie.testing import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.cluster.restart_cluster import Port
    from tests.cluster.seat_cluster import SeatCluster

    from coterie.testing import Process

SEATS = 100
IDLE_S = 20.0
LEASE_S = 6.5
"""By then a lease is over."""
RESTARTS: tuple[tuple[int, int, Port], ...] = (
    *((1, 1, "same"), (1, 1, "other")),
    *((3, 1, "same"), (3, 1, "other"), (3, 3, "same"), (3, 3, "other")),
)
"""How many runners there are, how many of them are killed and start again, and on which port."""
REST_S = 1.5
"""Longer than a renewal: by then everybody has seen where the seats are."""
DURABLE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "128MB"}
_STATEMENT = re.compile(r"LOG:  (?:execute [^:]+|statement): ")


@dataclass(frozen=True)
class Limit(Row):
    """Something that may not be exceeded: the ratio is what is allowed / what was measured, the worse of the two."""

    median: float
    most: float
    unit: str

    def line(self) -> str:
        """As a line of the table."""
        figures = f"{f'{self.median:,.4g} {self.unit}':>12}{f'max {self.most:,.4g}':>12}"
        goal = "" if self.goal is None else f"{self.goal:>8.2g} {'✓' if self.met else '✗'}"
        return f"{self.scenario:<28}{self.callers:>8}{figures}{self.ratio:>8.2f}{goal}"


async def run(*, rounds: int, seconds: float) -> AsyncIterator[Row]:
    """A row for each way to lose or gain seats, over at least 20 trials unless a quick look is wanted."""
    del seconds
    trials = 20 if rounds >= 7 else 4
    limited = partial(limit, trials=trials)
    with closing(Server(options=DURABLE)) as server, tempfile.TemporaryDirectory() as folder:
        server.start()
        async with _cluster(server, Path(folder)) as stage:
            killed = [await _kill(stage, each) async for each in _trials(stage, trials, "SIGKILL")]
            yield limited("seat unheld after SIGKILL", chain(*killed), median=300, most=1500)
            left = [await _leave(stage, each) async for each in _trials(stage, trials, "SIGTERM")]
            yield limited("seat unheld after SIGTERM", chain(*left), median=100, most=500)
            joined = [await _join(stage) async for _ in _trials(stage, trials, "join")]
            yield limited("a 4th joins: settled", [settled for settled, _ in joined], most=3000)
            yield limited("a 4th joins: seat unheld", chain(*(unheld for _, unheld in joined)), most=200)
            frozen = [await _freeze(stage, each) async for each in _trials(stage, trials, "SIGSTOP")]
            yield limited("seat unheld after SIGSTOP", chain(*(unheld for unheld, _ in frozen)), most=10_000)
            yield limited("late writes after SIGCONT", [late for _, late in frozen], most=0, unit="")
        for engine in ("postgres", "sqlite"):
            place = partial(_url, engine, server, Path(folder))
            for runners, dead, port in RESTARTS:
                took = await _restart(place(), Path(folder), trials // 2, runners, dead, port)
                scenario = f"restart {engine} {dead}/{runners} {port}"
                yield limit(scenario, took, trials=len(took), median=1000, most=3000)
            took = await _restart_beside_silence(place(), Path(folder), trials // 4)
            yield limit(f"restart {engine}, silent", took, trials=len(took), median=3000, most=5000)
        per_s = await _idle(server, Path(folder))
        yield limit("statements/s/runner, idle", per_s, trials=len(per_s), most=3, unit="/s")


def limit(
    scenario: str,
    figures: Iterable[float],
    *,
    trials: int,
    most: float,
    median: float | None = None,
    unit: str = "ms",
) -> Limit:
    """A row for times that may not be exceeded by their median, if so wished, and by the longest."""
    values = list(figures)
    middle, worst = statistics.median(values), max(values)
    ratios = [_ratio(most, worst), *([_ratio(median, middle)] if median is not None else [])]
    return Limit(scenario, trials, 0.0, 0.0, min(ratios), 1.0, middle, worst, unit)


def _ratio(allowed: float, measured: float) -> float:
    return allowed / measured if measured else 1.0


@asynccontextmanager
async def _cluster(
    server: Server, folder: Path, *, log: str = "none", every_s: str = "0.5"
) -> AsyncIterator[SeatCluster]:
    database = server.create_database()
    server.execute(f"alter database {database} set log_statement = '{log}'")
    url = server.url(database)
    async with holders(url, folder, seats=SEATS, times={}, proxied=False, HOLDER_EVERY_S=every_s) as stage:
        yield stage


async def _trials(stage: SeatCluster, trials: int, what: str) -> AsyncIterator[Process]:
    """One victim after the other, in turn, each from a cluster at rest."""
    for number in range(trials):
        print(f"\r{what}: trial {number + 1} of {trials} ", end="", file=sys.stderr, flush=True)
        await stage.settled()
        await asyncio.sleep(REST_S)
        yield stage.runners[number % 3]
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)


async def _kill(stage: SeatCluster, victim: Process) -> list[float]:
    seats = stage.journals.held_by(victim.name)
    struck_ns = now_ns()
    await victim.kill()
    unheld = await _taken(stage, dict.fromkeys(seats, struck_ns))
    await victim.start()
    return unheld


async def _leave(stage: SeatCluster, victim: Process) -> list[float]:
    seats = stage.journals.held_by(victim.name)
    asked_ns = now_ns()
    assert await victim.stop() == 0, victim.tail()
    drained = stage.journals.of("drained", runner=victim.name, since_ns=asked_ns)
    assert sorted(event.seat for event in drained) == seats
    unheld = await _taken(stage, {event.seat: event.at_ns for event in drained})
    await victim.start()
    return unheld


async def _freeze(stage: SeatCluster, victim: Process) -> tuple[list[float], int]:
    """Also how many of its writes were accepted after the thaw."""
    seats = stage.journals.held_by(victim.name)
    struck_ns = now_ns()
    await victim.freeze()
    unheld = await _taken(stage, dict.fromkeys(seats, struck_ns))
    thawed_ns = now_ns()
    await victim.thaw()
    assert await comes_back(stage, victim, since_ns=thawed_ns), victim.tail()
    assert stage.journals.of("refused", runner=victim.name, since_ns=thawed_ns), "nothing was tried after the thaw"
    return unheld, len(stage.late_of(victim, since_ns=thawed_ns))


async def _join(stage: SeatCluster) -> tuple[float, list[float]]:
    """How long a fourth runner takes to get its share, from its registration on; how long seats were unheld."""
    began_ns = now_ns()
    await (stage.runners[3].start() if len(stage.runners) == 4 else stage.cluster.start())
    newcomer = stage.runners[3]
    await stage.settled()
    up_ns = stage.journals.of("up", runner=newcomer.name, since_ns=began_ns)[0].at_ns
    gained = stage.journals.of("granted", runner=newcomer.name, since_ns=began_ns)
    drained = {event.seat: event.at_ns for event in stage.journals.of("drained", since_ns=began_ns)}
    assert await newcomer.stop() == 0, newcomer.tail()
    return _ms(gained[-1].at_ns - up_ns), [_ms(event.at_ns - drained[event.seat]) for event in gained]


async def _taken(stage: SeatCluster, lost_ns: dict[str, int]) -> list[float]:
    """Wait until each seat was granted again after the moment at which it was lost; the times in between."""

    def granted() -> dict[str, int]:
        found: dict[str, int] = {}
        for event in stage.journals.of("granted", since_ns=min(lost_ns.values())):
            if event.seat in lost_ns and event.at_ns > lost_ns[event.seat]:
                found.setdefault(event.seat, event.at_ns)
        return found

    await stage.wait_until(lambda: granted().keys() == lost_ns.keys())
    return [_ms(at_ns - lost_ns[seat]) for seat, at_ns in granted().items()]


def _url(engine: str, server: Server, folder: Path) -> str:
    if engine == "postgres":
        return server.url(server.create_database())
    return f"sqlite:///{folder}/restart-{now_ns()}.db"


async def _restart(url: str, folder: Path, trials: int, runners: int, killed: int, port: Port) -> list[float]:
    """How long runners take that were killed together and are started again at once."""
    async with restarts(url, folder, runners=runners, port=port, times={"COTERIE_SHARDS": "100"}) as stage:
        took = []
        for _ in range(trials):
            victims = stage.runners[:killed]
            for each in victims:
                await each.kill()
            took.append(1000 * await stage.again(victims))
        assert not stage.early(), stage.early()
        return took


async def _restart_beside_silence(url: str, folder: Path, trials: int) -> list[float]:
    """The same for one whose old address is silent; its lease is over."""
    took = []
    times = {"COTERIE_SHARDS": "100"}
    with silent_address() as silent:
        for _ in range(trials):
            async with restarts(url, folder, runners=1, port="other", times=times, COTERIE_ADVERTISE=silent) as stage:
                await stage.runners[0].kill()
                await asyncio.sleep(LEASE_S)
                took.append(1000 * await stage.another())
    return took


def _ms(ns: int) -> float:
    return ns / 1e6


async def _idle(server: Server, folder: Path) -> list[float]:
    """Statements a second and runner that the server has logged, over some stretches of time."""
    async with _cluster(server, folder, log="all", every_s="0") as stage:
        await asyncio.sleep(5)  # what a start brings with it is over
        stretches = []
        for _ in range(4):
            before = len(_STATEMENT.findall(server.log()))
            await asyncio.sleep(IDLE_S / 4)
            stretches.append((len(_STATEMENT.findall(server.log())) - before) / (IDLE_S / 4) / len(stage.runners))
        return stretches
