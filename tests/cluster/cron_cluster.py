"""Three runners with a bell that rings each second, what can befall whoever rings it, and the judgement of all ticks.

What befalls it ends with the belfry as it was: three runners, and a bell that rings.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster, CoterieError
from coterie.testing import Process, processes
from tests.cluster.cron_history import BodyStart, judge
from tests.cluster.cron_program import names
from tests.cluster.seat_cluster import NO_HTTP, QUICK, said
from tests.cluster.seat_history import Journals
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from coterie.storage.contracts.ticks import TickRow
    from coterie.storage.interface import Storage
    from coterie.testing import Processes, Server
    from coterie.testing.postgres import Mode

    Befall = Callable[["CronCluster"], Awaitable[None]]

BELL = Path(__file__).with_name("cron_program.py")
ROOT = BELL.parent.parent.parent
MOST = 1_000
"""Ticks of one bell that can be judged."""
FELT = "waits for the database"
"""What a runner says when an outcome cannot be written; without its session it claims nothing [M2]."""


class CronCluster:
    """The runners, a client in this process, and what all have noted."""

    def __init__(
        self, cluster: Processes, client: Cluster, journals: Journals, *, bells: Sequence[str], every_s: int
    ) -> None:
        self.cluster = cluster
        self.client = client
        self.journals = journals
        self.bells = bells
        self.every_s = every_s
        self.runners = cluster.runners
        self.wait_until = cluster.wait_until

    @property
    def storage(self) -> Storage:
        """The database, for our own eyes."""
        return self.client._acting().storage

    def rings(self, bell: str) -> list[BodyStart]:
        """Each time that one of them has rung."""
        return self.all_rings()[bell]

    def all_rings(self) -> dict[str, list[BodyStart]]:
        """The same of all."""
        rung: dict[str, list[BodyStart]] = {bell: [] for bell in self.bells}
        for event in self.journals.of("rang"):
            rung[event.key].append(BodyStart.of(event))
        return rung

    async def start(self, n: int = 1, **variables: str) -> list[Process]:
        """Start more runners."""
        before = len(self.runners)
        await self.cluster.start(n, env=variables)
        return self.runners[before:]

    async def ringer(self, bell: str | None = None) -> Process:
        """Whoever has a bell just now: it rings after this moment."""
        bell = bell or self.bells[0]
        began_ns = now_ns()
        await self.wait_until(lambda: self._last(bell, since_ns=began_ns))
        return next(each for each in self.runners if each.name == self._last(bell, since_ns=began_ns))

    def _last(self, bell: str, *, since_ns: int) -> str:
        rung = [event for event in self.journals.of("rang", since_ns=since_ns) if event.key == bell]
        return rung[-1].runner if rung else ""

    async def ringing(self, *, since: datetime | None = None, but: Process | None = None, times: int = 2) -> None:
        """Wait until each bell has rung so often for instants after a moment (now), by somebody else than that."""
        since_s = (since or await self.storage.now()).timestamp()

        def rang() -> bool:
            events = [event for event in self.journals.of("rang") if but is None or event.runner != but.name]
            counts = Counter(event.key for event in events if event.more["tick_s"] > since_s)
            return all(counts[bell] >= times for bell in self.bells)

        await self.wait_until(rang)

    async def passing(self, seconds: float) -> None:
        """Wait until the database's clock has gone on by so much."""
        since = await self.storage.now()

        async def passed() -> bool:
            return (await self.storage.now() - since).total_seconds() >= seconds

        await self.wait_until(passed)

    async def rows(self, bell: str) -> Sequence[TickRow]:
        """All that is stored of one."""
        found = await self.storage.ticks.history(bell, most=MOST)
        assert len(found) < MOST, "there may be more ticks than were read"
        return found

    async def judge(self) -> Counter[str]:
        """Raise an AssertionError if a tick up to now was lost or doubled; what there was."""
        until, effective_from = await self.over(), await self.effective_from()
        rung, counts = self.all_rings(), Counter[str]()
        for bell in self.bells:
            rows = await self.rows(bell)
            counts += judge(rows, rung[bell], since=effective_from[bell], until=until, every_s=self.every_s)
        return counts

    async def over(self) -> datetime:
        """Wait until all ticks up to now have come to their end; up to when that is."""
        await self.wait_until(self.is_there)
        until = await self.storage.now()
        await self.wait_until(lambda: self._is_over(until))
        return until

    async def effective_from(self) -> dict[str, datetime]:
        """Since when there are ticks, of each bell."""
        return {row.name: row.effective_from for row in await self.storage.ticks.list()}

    async def is_there(self) -> bool:
        """Whether the database answers."""
        try:
            await self.storage.now()
        except CoterieError:
            return False
        return True

    async def _is_over(self, until: datetime) -> bool:
        """Whether all bells have come past an instant, and nothing before it goes on."""
        last_s = math.floor(until.timestamp() / self.every_s) * self.every_s
        for row in await self.storage.ticks.list():
            if row.last is None or row.last.timestamp() < last_s:
                return False
            if row.open and any(each.outcome is None and each.at <= until for each in await self.rows(row.name)):
                return False
        return True


@asynccontextmanager
async def belfry(
    url: str,
    folder: Path,
    *,
    runners: int = 3,
    catch_up: Sequence[str] = ("all",),
    count: int = 1,
    every_s: int = 1,
    takes_s: float = 0.05,
    times: Mapping[str, str] = QUICK,
) -> AsyncIterator[CronCluster]:
    """Bells that ring; all ticks are judged at the end."""
    journals = Journals(folder / f"journals-{time.monotonic_ns()}")
    journals.folder.mkdir()
    env = {
        "HOLDER_JOURNAL": str(journals.folder),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
        "BELL_CATCH_UP": " ".join(catch_up),
        "BELL_COUNT": str(count),
        "BELL_SCHEDULE": f"*/{every_s} * * * * *",
        "BELL_TAKES_S": str(takes_s),
        **NO_HTTP,
        **times,
    }

    def ready(process: Process) -> object:
        ups = journals.of("up", runner=process.name)
        return any(event.more["pid"] == process.pid for event in ups)

    async with processes(BELL, runners=runners, url=url, env=env, ready=ready, proxied=False) as cluster:
        client = Cluster(url)
        bells = [name for way in catch_up for name in names(way, count)]
        async with client.connect():
            one = CronCluster(cluster, client, journals, bells=bells, every_s=every_s)
            if runners:
                await one.ringing()
            yield one
            await one.judge()


# What may befall whoever rings.


async def kill(there: CronCluster) -> None:
    """SIGKILL."""
    victim = await there.ringer()
    await victim.kill()
    await there.ringing()
    await victim.start()


async def freeze(there: CronCluster) -> None:
    """SIGSTOP, and SIGCONT when another one rings: what it still has in its hands is refused."""
    victim = await there.ringer()
    await victim.freeze()
    await there.ringing(but=victim)
    await victim.thaw()
    await there.ringing()
    if not victim.alive:  # ended while it was frozen in a commit [C3]
        await victim.start()


async def roll(there: CronCluster) -> None:
    """All leave by SIGTERM and come again, one after the other."""
    for each in there.runners:
        assert await each.stop() == 0, each.tail()
        await each.start()
    await there.ringing()


def restart(server: Server) -> Befall:
    """The database crashes and comes again when an outcome could not be written, then the same in good order."""

    async def restarted(there: CronCluster) -> None:
        modes: tuple[Mode, ...] = ("immediate", "fast")
        for mode in modes:
            await there.ringing()
            before = len(said(there.runners, FELT))
            server.stop(mode)
            await there.wait_until(lambda: len(said(there.runners, FELT)) > before)  # noqa: B023 used in this turn only
            server.start()
            await there.wait_until(there.is_there)
        await there.ringing()

    return restarted
