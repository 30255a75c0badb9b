"""A crew of runners of which one leads and counts, what can befall it, and how long nobody saved then.

What befalls it ends with the crew as it was: three runners, one of which leads.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coterie import Cluster
from coterie.testing import Process, processes
from tests.cluster.leader_program import LATE, NAME, Tally
from tests.cluster.seat_cluster import NO_HTTP, QUICK
from tests.cluster.seat_history import Event, Journals, judge
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from coterie.testing import Processes, Server

    Befall = Callable[["LeaderCluster"], Awaitable[list[float]]]

LEADING = Path(__file__).with_name("leader_program.py")
ROOT = LEADING.parent.parent.parent


class LeaderCluster:
    """Three runners, and what they have noted."""

    def __init__(self, cluster: Processes, journals: Journals) -> None:
        self.cluster = cluster
        self.runners = cluster.runners
        self.journals = journals
        self.wait_until = cluster.wait_until

    async def led(self) -> tuple[Process, Event]:
        """Wait until somebody leads and has saved; who, and the moment at which it began."""
        await self.saved_after(now_ns())
        (grant,) = self.journals.holders().values()
        return next(each for each in self.runners if each.name == grant.runner), grant

    async def saved_after(self, at_ns: int, *, epoch: int = 0, within: str = "2m") -> None:
        """Wait until a number was saved that was begun after a moment, at this epoch at least."""

        def saved() -> bool:
            recent = self.journals.of("written", since_ns=at_ns)
            return any(event.sent_ns >= at_ns and event.epoch >= epoch and event.key != LATE for event in recent)

        await self.wait_until(saved, within=within)

    async def answered(self, process: Process, grant: Event) -> None:
        """Wait until a former leader was refused, or not; one that was ended while it froze is started anew [C3]."""

        def told() -> bool:
            answers = [*self.journals.of("refused", runner=process.name), *self.written(late=True)]
            return not process.alive or any(event.epoch == grant.epoch for event in answers)

        await self.wait_until(told)
        if not process.alive:
            await process.start()

    def written(self, *, late: bool = False) -> list[Event]:
        """What was saved, in the order of the numbers; or what was accepted of those who had lost their leadership."""
        saved = [event for event in self.journals.of("written") if (event.key == LATE) == late]
        return sorted(saved, key=lambda event: event.version)

    def gaps(self, *, since_ns: int) -> list[float]:
        """Between the last save of an old leader and the first one of the new, after a moment, in milliseconds."""
        pairs = itertools.pairwise(self.written())
        return [_ms(one, other) for one, other in pairs if one.epoch != other.epoch and other.at_ns >= since_ns]

    def pause(self, *, since_ns: int) -> float:
        """The longest time between two saves that follow each other, whoever led."""
        return max(_ms(one, other) for one, other in itertools.pairwise(self.written()) if other.at_ns >= since_ns)

    async def judge(self) -> None:
        """Raise an AssertionError if a save was lost or stale, or hooks ran out of order."""
        judge(self.journals.events)
        _judge_hooks(self.journals)
        saved = self.written()
        client = Cluster(self.cluster.url)
        async with client.connect():
            tally = await client.singletons.state(NAME, Tally)
            history = await client.singletons.history(NAME)
        assert tally is not None
        assert tally.number >= saved[-1].version, f"{saved[-1]} is lost: {tally} [S2]"
        epochs = [each.epoch for each in sorted(history, key=lambda each: each.number)]
        assert epochs == sorted(epochs), f"an epoch wrote after its successor: {history}"


def _judge_hooks(journals: Journals) -> None:
    """In each process: one that begins, then the same one that ends, then the next one [S7]."""
    hooks = [event for what in ("granted", "drained", "lost") for event in journals.of(what)]
    hooks.sort(key=lambda event: event.at_ns)
    for pid in {event.more["pid"] for event in hooks}:
        its = [event for event in hooks if event.more["pid"] == pid]
        for begin, end in itertools.zip_longest(its[::2], its[1::2]):
            assert begin.what == "granted", f"a hook ran twice, or without the other: {its}"
            assert end is None or (end.what != "granted" and end.epoch == begin.epoch), f"out of order: {its}"


def _ms(one: Event, other: Event) -> float:
    return (other.at_ns - one.at_ns) / 1e6


@asynccontextmanager
async def crew(
    url: str, folder: Path, *, times: Mapping[str, str] = QUICK, proxied: bool = True, block_s: float = 100.0
) -> AsyncIterator[LeaderCluster]:
    """A crew at work; judged at the end."""
    journals = Journals(folder / f"journals-{time.monotonic_ns()}")
    journals.folder.mkdir()
    env = {
        "HOLDER_JOURNAL": str(journals.folder),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src",
        "LEADING_BLOCK_S": str(block_s),
        **NO_HTTP,
        **times,
    }

    def ready(process: Process) -> object:
        ups = journals.of("up", runner=process.name)
        return any(event.more["pid"] == process.pid for event in ups)

    async with processes(LEADING, runners=3, url=url, env=env, ready=ready, proxied=proxied) as cluster:
        one = LeaderCluster(cluster, journals)
        await one.led()
        yield one
        await one.led()
        await one.judge()


# What may befall it. Each gives the gaps that it caused.


async def kill(crew: LeaderCluster) -> list[float]:
    """SIGKILL."""
    leader, grant = await crew.led()
    at_ns = now_ns()
    await leader.kill()
    await crew.saved_after(at_ns, epoch=grant.epoch + 1)
    await leader.start()
    return crew.gaps(since_ns=at_ns)


async def freeze(crew: LeaderCluster) -> list[float]:
    """SIGSTOP, and SIGCONT when another one leads: nothing that it still writes is accepted."""
    leader, grant = await crew.led()
    at_ns = now_ns()
    await leader.freeze()
    await crew.saved_after(at_ns, epoch=grant.epoch + 1)
    await leader.thaw()
    await crew.answered(leader, grant)
    return crew.gaps(since_ns=at_ns)


async def cut(crew: LeaderCluster) -> list[float]:
    """No way to the database, silently; healed when another one leads."""
    leader, grant = await crew.led()
    at_ns = now_ns()
    await leader.cut("storage")
    await crew.saved_after(at_ns, epoch=grant.epoch + 1)
    await leader.heal()
    await crew.answered(leader, grant)
    return crew.gaps(since_ns=at_ns)


async def block(crew: LeaderCluster) -> list[float]:
    """A loop that is blocked until another one leads."""
    unblock = crew.cluster.directory / "unblock"
    unblock.unlink(missing_ok=True)
    leader, grant = await crew.led()
    at_ns = now_ns()
    leader.send(signal.SIGUSR1)
    await crew.saved_after(at_ns, epoch=grant.epoch + 1)
    unblock.touch()
    await crew.answered(leader, grant)
    return crew.gaps(since_ns=at_ns)


def restart(server: Server) -> Befall:
    """The database restarts: whoever led leads on, unless that takes longer than trust lasts."""

    async def restarted(crew: LeaderCluster) -> list[float]:
        await crew.led()
        at_ns = now_ns()
        server.restart()
        await crew.led()
        return [crew.pause(since_ns=at_ns)]

    return restarted


async def roll(crew: LeaderCluster) -> list[float]:
    """All three leave by SIGTERM and come again, one after the other."""
    await crew.led()
    at_ns = now_ns()
    for each in crew.runners:
        assert await each.stop() == 0, each.tail()
        await each.start()
    await crew.led()
    return crew.gaps(since_ns=at_ns)
