"""Runners that are killed and started again, and how long that takes: for tests and for the figures."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from coterie.testing import processes
from coterie.testing.proxy import free_port
from tests.cluster.seat_history import Journals
from tests.cluster.seat_program import now_ns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from coterie.testing import Process, Processes

PROGRAM = Path(__file__).with_name("restart_program.py")

Port = Literal["same", "other"]


class Restarts:
    """Runners of the restart program, and what they have noted."""

    def __init__(self, cluster: Processes, journals: Journals) -> None:
        self.cluster = cluster
        self.journals = journals
        self.runners = cluster.runners

    async def answered(self, runners: Sequence[Process], *, since_ns: int = 0) -> None:
        """Wait until all of these were ready, and were answered by every shard."""

        def all_answered() -> bool:
            assert all(each.alive for each in runners)
            return all(
                self.journals.of(what, runner=each.name, since_ns=since_ns)
                for each in runners
                for what in ("ready", "answered")
            )

        await self.cluster.wait_until(all_answered)

    async def again(self, runners: Sequence[Process]) -> float:
        """Start runners again that were killed, all at once; the seconds until each was answered by every shard."""
        began_ns = now_ns()
        await asyncio.gather(*(each.start() for each in runners))
        await self.answered(runners, since_ns=began_ns)
        last = max(self.journals.of("answered", runner=each.name, since_ns=began_ns)[0].at_ns for each in runners)
        return (last - began_ns) / 1e9

    async def another(self) -> float:
        """Start one more runner; the seconds until it was answered by every shard."""
        began_ns = now_ns()
        await self.cluster.start()
        await self.answered(self.runners[-1:])
        return (self.journals.of("answered", runner=self.runners[-1].name)[0].at_ns - began_ns) / 1e9

    def early(self) -> list[str]:
        """Who was ready although a shard was with nobody, or with a runner that was dead by then."""
        return [
            f"{event.runner}: {event.more['holders']}"
            for event in self.journals.of("ready")
            if not self._alive(event.at_ns).issuperset(event.more["holders"])
        ]

    def _alive(self, at_ns: int) -> set[str]:
        """The last incarnation of each runner that was up by then."""
        ups = [event for event in self.journals.of("up") if event.at_ns <= at_ns]
        return set({event.runner: event.incarnation for event in ups}.values())


@asynccontextmanager
async def restarts(
    url: str, folder: Path, *, runners: int, port: Port, times: Mapping[str, str], **variables: str
) -> AsyncIterator[Restarts]:
    """Runners on a database, all answered; the variables are those of the first ones."""
    journals = Journals(folder / f"journals-{now_ns()}")
    journals.folder.mkdir()
    env = {"HOLDER_JOURNAL": str(journals.folder), "COTERIE_SHARDS": "12", "PYTHONDONTWRITEBYTECODE": "", **times}

    def up(process: Process) -> object:
        return journals.of("up", runner=process.name)

    async with processes(PROGRAM, runners=0, url=url, env=env, ready=up, proxied=False) as cluster:
        listens = [f"127.0.0.1:{free_port() if port == 'same' else 0}" for _ in range(runners)]
        await asyncio.gather(*(cluster.start(env={"COTERIE_LISTEN": listen, **variables}) for listen in listens))
        stage = Restarts(cluster, journals)
        await stage.answered(stage.runners)
        yield stage


@contextmanager
def silent_address() -> Iterator[str]:
    """An address that takes connections and never answers, as that of a machine behind a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
