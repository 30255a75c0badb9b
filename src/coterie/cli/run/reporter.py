"""Turns what happens to a runner into events, for `coterie run` or for the supervisor of this worker."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from coterie.cli.run import events
from coterie.errors import ShuttingDown
from coterie.kernel.ids import Seat
from coterie.settings.secret import redacted_url
from coterie.storage.engines import file_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from coterie.cli.run.events import Event
    from coterie.cli.run.load import LoadedProgram
    from coterie.main import Drain, SideService
    from coterie.runner import Runner
    from coterie.settings import Settings

_LOOK_S = 0.2
"""Between two polls of the held seats."""
_PLURALS = {"entity": "entities"}


class Reporter:
    """Reports on a runner in this process (`main.RunReporter`).

    Args:
        loaded: Its program.
        report: Called with each event.
    """

    def __init__(self, loaded: LoadedProgram, report: Callable[[Event], None]) -> None:
        self._loaded = loaded
        self._report = report
        self._served: str | None = None

    def waits(self, runner: Runner, problem: str, waited_s: float) -> None:
        """It cannot start yet."""
        self._report(events.Waits(runner=runner.name, problem=problem, waited_s=waited_s))

    def announce(self, runner: Runner, beside: SideService | None) -> None:
        """It is registered."""
        settings = runner.settings
        self._served = None if beside is None else beside.url
        self._report(
            events.ProgramLoaded(
                runner=runner.name,
                cluster=settings.name,
                app=self._loaded.shown,
                defines=counted(self._loaded.cluster._program.names()),
                database=shown_database(settings),
                database_from=_origin(settings),
                served=self._served,
                has_page=runner.settings.web != "off",
                moved_from=None if beside is None else beside.moved_from,
                drain_s=settings.drain.total_seconds(),
                log_format=settings.log_format,
            )
        )

    async def follow(self, runner: Runner) -> None:
        """Report that it has joined, and what it leads from then on."""
        try:
            await runner.ready()
        except ShuttingDown:  # it is stopped before it was ready
            return
        shards = len(_shards(runner.seats))
        self._report(events.RunnerJoined(runner=runner.name, shards=shards, served=self._served))
        await self._report_shards(runner, shards)

    async def _report_shards(self, runner: Runner, reported: int) -> None:
        led: dict[str, int] = {}
        before = reported
        while True:
            shards, leads = len(_shards(runner.seats)), _led(runner)
            if shards == before != reported:  # they have stopped moving
                self._report(events.ShardsOwned(runner=runner.name, shards=shards))
                reported = shards
            for name in led.keys() - leads.keys():
                self._report(events.LeadershipEnded(runner=runner.name, singleton=name))
            for name, epoch in leads.items():
                if led.get(name) != epoch:
                    self._report(events.LeadershipBegan(runner=runner.name, singleton=name, epoch=epoch))
            before, led = shards, leads
            await asyncio.sleep(_LOOK_S)

    def drains(self, drain: Drain) -> None:
        """It begins to drain."""
        self.progress(drain)

    def progress(self, drain: Drain) -> None:
        """It is still draining."""
        shards = len(_shards(drain.held))
        calls, oldest_s = _in_flight(drain.runner)
        self._report(
            events.RunnerDraining(
                runner=drain.runner.name,
                shards=shards,
                given=shards - len(_shards(drain.kept)),
                calls=calls,
                oldest_s=oldest_s,
                left_s=drain.left_s,
            )
        )

    def left(self, drain: Drain) -> None:
        """It has drained and deregistered."""
        shards, host = len(_shards(drain.held)), drain.runner.calling.host
        returned = 0 if host is None or host.inbox is None else host.inbox.returned
        given = shards - len(_shards(drain.kept))
        self._report(
            events.RunnerLeft(
                runner=drain.runner.name, shards=shards, given=given, took_s=drain.spent_s, returned=returned
            )
        )


class WorkerReporter(Reporter):
    """The same in a worker: sends the events to its supervisor.

    Args:
        loaded: Its program.
        line: A socket to the supervisor.

    Promise:
        When the supervisor is gone, for whatever reason, the worker drains and exits.
    """

    def __init__(self, loaded: LoadedProgram, line: socket.socket) -> None:
        super().__init__(loaded, self._send)
        self._line = line
        line.setblocking(False)

    def waits(self, runner: Runner, problem: str, waited_s: float) -> None:
        """Also checks that the supervisor is still there: nothing else would end a waiting worker."""
        super().waits(runner, problem, waited_s)
        if self._starter_is_gone():
            os.kill(os.getpid(), signal.SIGTERM)

    async def follow(self, runner: Runner) -> None:
        """Also checks that the supervisor is still there."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._line, self._spoke)
        try:
            await super().follow(runner)
        finally:
            loop.remove_reader(self._line)

    def _spoke(self) -> None:
        if self._starter_is_gone():
            asyncio.get_running_loop().remove_reader(self._line)
            os.kill(os.getpid(), signal.SIGTERM)

    def _starter_is_gone(self) -> bool:
        try:
            return not self._line.recv(1024)  # nothing is sent to workers yet
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def _send(self, event: Event) -> None:
        with suppress(OSError):  # the supervisor is gone, or does not read: lines of this size fit otherwise
            self._line.sendall(events.encode(event))


def counted(defined: Mapping[str, Sequence[str]]) -> str:
    """`2 entities, 1 cron`."""
    parts = [
        f"{len(names)} {kind if len(names) == 1 else _PLURALS.get(kind, f'{kind}s')}"
        for kind, names in defined.items()
        if names
    ]
    return ", ".join(parts) or "defines nothing yet"


def shown_database(settings: Settings) -> str:
    """The file, or the URL without its password."""
    file = file_of(settings)
    return redacted_url(settings.url) if file is None else str(file)


def _origin(settings: Settings) -> str:
    origin = settings.origin("url")
    if origin == "default":
        return "default; set COTERIE_URL for PostgreSQL"
    return "from the program" if origin == "argument" else f"from {origin}"


def _shards(seats: Sequence[str]) -> list[str]:
    return [seat for seat in seats if Seat.is_shard(seat)]


def _led(runner: Runner) -> dict[str, int]:
    """The singletons that it leads, with their epochs."""
    found = {}
    for seat in runner.seats:
        kind, name = Seat.split(seat)
        if kind == "singleton" and (tenure := runner.tenure(seat)) is not None:
            found[name] = tenure.epoch
    return found


def _in_flight(runner: Runner) -> tuple[int, float]:
    """The number of calls that run or wait in mailboxes, and how long the oldest has run."""
    host = runner.calling.host
    return (0, 0.0) if host is None else (sum(host.queued()), host.oldest_s())
