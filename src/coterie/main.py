"""Runs a runner as a whole process, for `cluster.run`: its loop, its signals, its exit code.

first SIGTERM or SIGINT   drain, hand over, leave: exit code 0, or 1 if a seat could not be released
second one                end at once: exit code 128 + the signal's number; within half a second it is still the first
a standing task of the    drain, hand over, leave, with a line that names it: exit code 1
runner keeps failing
its database file was     nothing can be handed over, the error is raised: exit code 1, 4 under `coterie run`
replaced
none of these is enough   the stacks of all threads are printed and the process ends: exit code 1
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from coterie.errors import PersistenceError, ShuttingDown
from coterie.kernel.clock import Clock, SystemClock
from coterie.kernel.durations import format_duration
from coterie.kernel.service import Tasks
from coterie.observe import logs
from coterie.runner import Runner, name_of
from coterie.settings.secret import redacted_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.settings import Settings

log = logging.getLogger("coterie")

GRACE_S = 9.0
"""How long ending may take beyond the drain, before it is enforced: 29 s by default; Kubernetes kills after 30."""
ONE_S = 0.5
"""Signals within this time of the first count as one: supervisors signal a process and its group, and wrappers
forward what the terminal has sent to all."""
_PROGRESS_S = 1.0
_WAIT_LOGGED_S = 10.0
"""Time between two log lines about a database that is waited for."""
_STDERR = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SideService(Protocol):
    """A service that runs from before the runner starts until after it has left: the HTTP server."""

    @property
    def url(self) -> str:
        """The URL that it serves."""
        ...

    @property
    def moved_from(self) -> int | None:
        """The port that was configured, if that was taken."""
        ...

    @property
    def announcement(self) -> str:
        """Its announcement to the user who started the process."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The progress of a runner that leaves."""

    runner: Runner
    held: tuple[str, ...]
    """The seats that it held when it began to leave."""
    spent_s: float

    @property
    def kept(self) -> list[str]:
        """The seats that it has not released yet, or could not."""
        return self.runner.left_behind or self.runner.seats

    @property
    def left_s(self) -> float:
        """The time left of the setting `drain`."""
        return max(self.runner.settings.drain.total_seconds() - self.spent_s, 0.0)


class RunReporter(Protocol):
    """Reports what happens to a runner to the user who started its process. Called on the runner's loop."""

    def waits(self, runner: Runner, problem: str, waited_s: float) -> None:
        """The runner waits for a database that cannot be reached: called at once, then periodically."""
        ...

    def announce(self, runner: Runner, beside: SideService | None) -> None:
        """The runner is running."""
        ...

    async def follow(self, runner: Runner) -> None:
        """Report what happens from then on; cancelled when the runner has left."""
        ...

    def drains(self, drain: Drain) -> None:
        """The runner begins to leave."""
        ...

    def progress(self, drain: Drain) -> None:
        """The runner is still leaving: called each second."""
        ...

    def left(self, drain: Drain) -> None:
        """The runner has left."""
        ...


def run(
    begin: Callable[[], Runner],
    settings: Settings,
    *,
    beside: Callable[[], SideService] | None = None,
    reporter: RunReporter | None = None,
    wait: bool = True,
) -> None:
    """Run a runner until a signal ends it or it is stopped.

    Args:
        begin: Makes the runner; called on the loop.
        settings: Its settings.
        beside: Makes the service that runs beside it; called on the loop, after `begin`.
        reporter: Reports what happens; default: the log.
        wait: Whether to wait for a database that cannot be reached yet.

    Raises:
        SystemExit: Not all seats were released, or the runner ended by itself.
        StorageReplaced: The database file was deleted or replaced while it was in use.
        RuntimeError: Called where a loop is already running, or in a thread other than the main one.
    """
    _require_no_loop()
    if reporter is None:
        configure_logs(settings)
    with (
        Signals(limit_s=settings.drain.total_seconds() + GRACE_S) as signals,
        asyncio.Runner(loop_factory=loop_factory()) as loop,
    ):
        in_order = loop.run(_live(begin, signals, beside, reporter or Logged(), wait=wait))
    if not in_order:
        sys.exit(1)


class Signals:
    """Handles SIGTERM and SIGINT in the main thread.

    Uses Python's own handlers, not those of the loop, which would wait for a loop that is blocked.

    Promise:
        The first signal calls back on the loop; from then on the process ends within `limit_s`, whatever hangs. The
        second one, after `ONE_S`, ends it at once. In forked children signals do what they did before.
    """

    def __init__(self, *, limit_s: float) -> None:
        self.asked = False
        """Whether there was a first signal."""
        self._limit_s = limit_s
        self._clock: Clock = SystemClock()
        self._asked_ns = 0
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        self._call: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        try:
            self._before = {each: signal.signal(each, self._on_signal) for each in _SIGNALS}
        except ValueError:
            raise RuntimeError(
                "cluster.run() handles signals, which Python allows in the main thread only: "
                "elsewhere use `async with cluster:`"
            ) from None
        return self

    def __exit__(self, *exc: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        for each, before in self._before.items():
            signal.signal(each, before)

    def on_first(self, callback: Callable[[], object]) -> None:
        """Call back on the running loop at the first signal, which may have come already."""
        loop = asyncio.get_running_loop()
        self._call = lambda: loop.call_soon_threadsafe(callback)
        if self.asked:
            callback()

    def end_in_time(self) -> None:
        """Make the process end within `limit_s` from now."""
        # In a thread that needs no Python: it works even if C code blocks the interpreter [P19].
        faulthandler.dump_traceback_later(self._limit_s, exit=True, file=_STDERR)

    def _on_signal(self, number: int, _: object) -> None:
        if os.getpid() != self._pid:
            self._as_before(number)
        elif self.asked and self._clock.steady_ns() - self._asked_ns < ONE_S * 1e9:
            return
        elif self.asked:
            os.write(_STDERR, b"coterie: a second signal: ending at once\n")
            os._exit(128 + number)
        else:
            self.asked, self._asked_ns = True, self._clock.steady_ns()
            self.end_in_time()
            self._call()

    def _as_before(self, number: int) -> None:
        """A forked child inherits this handler, but neither runner nor loop: restore the former effect [P13]."""
        signal.signal(number, self._before.get(number) or signal.SIG_DFL)
        os.kill(os.getpid(), number)


async def _live(
    begin: Callable[[], Runner],
    signals: Signals,
    beside: Callable[[], SideService] | None,
    reporter: RunReporter,
    *,
    wait: bool,
) -> bool:
    """Run the process from start to end. Returns: whether it left in order."""
    runner, tasks = begin(), Tasks("signals")
    if wait:
        runner.storage.on_unreachable = Patience(runner, reporter)
    drains: list[asyncio.Task[None]] = []
    runner.on_failure(signals.end_in_time)
    signals.on_first(lambda: drains.append(tasks.spawn(_drain(runner, reporter), name="drain", report=False)))
    async with AsyncExitStack() as last:
        # Entered first and exited last: probes are answered while the runner starts, and until it has left.
        served = None if beside is None else await last.enter_async_context(beside())
        await _run(runner, signals, served, reporter)
        await asyncio.gather(*drains)
    return not runner.left_behind and not runner.failure


class Patience:
    """Reports that a runner waits for its database: at once, then each `_WAIT_LOGGED_S`."""

    def __init__(self, runner: Runner, reporter: RunReporter) -> None:
        self._runner = runner
        self._reporter = reporter
        self._began_s: float | None = None
        self._next_s = 0.0

    def __call__(self, error: PersistenceError) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._began_s is None:
            self._began_s = self._next_s = now_s
        if now_s >= self._next_s:
            self._next_s = now_s + _WAIT_LOGGED_S
            self._reporter.waits(self._runner, error.message, now_s - self._began_s)


async def _run(runner: Runner, signals: Signals, beside: SideService | None, reporter: RunReporter) -> None:
    following = Tasks("reporter")
    try:
        await runner.start()
    except ShuttingDown as error:
        if not signals.asked and error.what != runner.what:  # raised by something else that its start uses
            raise
    else:
        reporter.announce(runner, beside)
        follow = functools.partial(reporter.follow, runner)
        following.supervise(follow, name="report the runner", supervisor=runner.supervisor)
        await runner.gone.wait()
    finally:
        await following.stop()
    await runner.stop()
    if runner.lost is not None:
        raise runner.lost


async def _drain(runner: Runner, reporter: RunReporter) -> None:
    loop, held = asyncio.get_running_loop(), tuple(runner.seats)
    began_s = loop.time()

    def drain() -> Drain:
        return Drain(runner=runner, held=held, spent_s=loop.time() - began_s)

    async def report() -> None:
        while True:
            await asyncio.sleep(_PROGRESS_S)
            reporter.progress(drain())

    reporter.drains(drain())
    reporting = Tasks("progress")
    reporting.spawn(report(), name="report")
    try:
        await runner.stop()
    finally:
        await reporting.stop()
    reporter.left(drain())


class Logged:
    """A reporter for programs that call `cluster.run`: two lines on stderr, the rest in the log."""

    def waits(self, runner: Runner, problem: str, waited_s: float) -> None:
        log.warning("runner %s waits for its database (%.0fs so far): %s", runner.name, waited_s, problem)

    def announce(self, runner: Runner, beside: SideService | None) -> None:
        url, address = redacted_url(runner.settings.url), runner.transport.address
        lines = [f"coterie runner {runner.name} of cluster {runner.settings.name} on {url}, listening on {address}"]
        lines += [] if beside is None else [f"coterie runner {runner.name}: {beside.announcement}"]
        if runner.settings.log_format == "json":  # a reader of JSON lines wants nothing else
            for line in lines:
                log.info("%s", line)
        else:
            print(*lines, sep="\n", file=sys.stderr, flush=True)  # noqa: T201 once, for the user who started it

    async def follow(self, runner: Runner) -> None:
        """Nothing to do: the runner logs what happens."""

    def drains(self, drain: Drain) -> None:
        limit = format_duration(drain.runner.settings.drain)
        log.info("draining %s (limit %s; a second signal ends it at once)", drain.runner.name, limit)

    def progress(self, drain: Drain) -> None:
        held, given = len(drain.held), len(drain.held) - len(drain.kept)
        log.info("draining %s: %d of %d seats released, %.0fs left", drain.runner.name, given, held, drain.left_s)

    def left(self, drain: Drain) -> None:
        held, given = len(drain.held), len(drain.held) - len(drain.kept)
        log.info("%s left after %.1fs: %d of %d seats released", drain.runner.name, drain.spent_s, given, held)


def _require_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("cluster.run() makes a loop of its own, and one runs here already: use `async with cluster:`")


def configure_logs(settings: Settings) -> None:
    """Configure logging for a program that has not done so itself; one that has is left alone.

    In JSON format the program's own records are shown too, at the levels that it has chosen: all lines must be JSON.
    """
    if not log.hasHandlers():
        as_json = settings.log_format == "json"
        shown = logging.getLogger() if as_json else log
        shown.addHandler(logs.handler(as_json=as_json, runner=name_of(settings)))
        log.setLevel(logging.INFO)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's factory where it is installed (the extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
