"""A cluster of holders on a real database, with its journals, and what can be asked of it."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.testing import Process, processes
from tests.cluster.seat_history import Event, Journals, judge
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from coterie.testing import Processes

HOLDER = Path(__file__).with_name("seat_program.py")
SEATS = 12
QUICK = {
    "COTERIE_LEASE_TTL": "4s",
    "COTERIE_LEASE_RENEW": "250ms",
    "COTERIE_LEASE_MARGIN": "1s",
    "COTERIE_STALL_LIMIT": "3s",
}
"""Two thirds of the defaults, for tests in which seats are lost. With less, runners of a busy machine lose theirs."""
NO_HTTP = {"COTERIE_HTTP_LISTEN": "off"}
"""For programs that are not asked over HTTP: Starlette and uvicorn are half of what a process imports."""
STEADY = {"COTERIE_LEASE_TTL": "60s", "COTERIE_LEASE_RENEW": "250ms", "COTERIE_STALL_LIMIT": "60s"}
"""Ten times the defaults, for tests in which no seat may move, on however busy a machine."""


class SeatCluster:
    """Holders, and what they have noted."""

    def __init__(self, cluster: Processes, journals: Journals, *, seats: int) -> None:
        self.cluster = cluster
        self.seats = seats
        self.runners = cluster.runners
        self.journals = journals
        self.wait_until = cluster.wait_until
        self.judged_from_ns = 0
        """A database that loses commits begins a new history."""

    async def settled(self, *, among: Iterable[Process] | None = None, within: str = "2m") -> None:
        """Wait until all seats are held and shared evenly, by those that live if nobody is named."""

        def settled_now() -> bool:
            names = {each.name for each in among or self.runners if each.alive and not each.frozen}
            share = Counter(grant.runner for grant in self.journals.holders().values())
            counts = [share[name] for name in names]
            return share.keys() == names and share.total() == self.seats and max(counts) - min(counts) <= 1

        await self.wait_until(settled_now, within=within)

    async def writing(self, *, since_ns: int | None = None, within: str = "2m") -> None:
        """Wait until every seat was written to, by whoever holds it, after a moment."""
        since_ns = now_ns() if since_ns is None else since_ns

        def written_now() -> bool:
            written = {(event.seat, event.epoch) for event in self.journals.of("written", since_ns=since_ns)}
            holders = self.journals.holders()
            return len(holders) == self.seats and all((seat, grant.epoch) in written for seat, grant in holders.items())

        await self.wait_until(written_now, within=within)

    def late_of(self, process: Process, *, since_ns: int) -> list[Event]:
        """What a process wrote after a moment in the name of seats that it had been granted before."""
        mine = [event for event in self.journals.of("granted", runner=process.name) if event.at_ns < since_ns]
        old = {(event.seat, event.epoch) for event in mine}
        written = self.journals.of("written", runner=process.name, since_ns=since_ns)
        return [event for event in written if (event.seat, event.epoch) in old and event.sent_ns >= since_ns]

    def judged(self) -> Mapping[str, int]:
        """Judge everything that happened in this history."""
        return judge(event for event in self.journals.events if event.at_ns >= self.judged_from_ns)


@asynccontextmanager
async def holders(
    url: str,
    folder: Path,
    *,
    runners: int = 3,
    seats: int = SEATS,
    times: Mapping[str, str] = QUICK,
    proxied: bool = True,
    **variables: str,
) -> AsyncIterator[SeatCluster]:
    """Holders on a database, settled and writing; what they have noted is judged at the end."""
    journals = Journals(folder / f"journals-{time.monotonic_ns()}")
    journals.folder.mkdir()
    env = {"HOLDER_JOURNAL": str(journals.folder), "COTERIE_SHARDS": str(seats), **times, **variables}

    def ready(process: Process) -> object:
        return journals.of("up", runner=process.name)

    async with processes(HOLDER, runners=0, url=url, env=env, ready=ready, proxied=proxied) as cluster:
        stage = SeatCluster(cluster, journals, seats=seats)
        await cluster.start(runners)
        await stage.settled()
        if variables.get("HOLDER_EVERY_S") != "0":
            await stage.writing()
        yield stage
        stage.judged()


def others(stage: SeatCluster, process: Process) -> list[Process]:
    return [each for each in stage.runners if each is not process]


def held(stage: SeatCluster) -> dict[str, int]:
    """The seats that are held, with their epochs."""
    return {seat: grant.epoch for seat, grant in stage.journals.holders().items()}


def said(processes: Iterable[Process], text: str) -> list[str]:
    """The lines of logs that contain a text."""
    return [line for process in processes for line in process.log if text in line]


async def comes_back(stage: SeatCluster, victim: Process, *, since_ns: int) -> bool:
    """Wait until a runner holds seats again, under another incarnation; False: it was ended while frozen [C3]."""

    def back() -> bool:
        return not victim.alive or bool(stage.journals.of("granted", runner=victim.name, since_ns=since_ns))

    await stage.wait_until(back)
    return victim.alive
