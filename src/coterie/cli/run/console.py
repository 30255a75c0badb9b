"""The output of `coterie run` on stderr: the announcement, a line for each event, the drain."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from coterie.cli.output import instant, lasting, safe
from coterie.cli.run import events
from coterie.kernel.clock import SystemClock, steady_s, to_datetime
from coterie.observe.logs import JsonLine, TextLine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.run.events import Event

_TIP = "one runner is a cluster too; start another in a second terminal"
_TIP_OF_SEVERAL = "Ctrl-C drains all of them; a worker that dies is started again"
_WIDE = 26
_SAID_EVERY_S = 5.0
"""Interval of progress lines where the output is not a terminal."""


class Console:
    """Prints the events of one runner, or of several workers.

    Args:
        workers: Their number; 0: the runner is this process.
        as_json: Whether each line is a JSON object, as in the workers' logs; a worker's `ProgramLoaded` can set it.
    """

    def __init__(self, *, workers: int = 0, as_json: bool = False) -> None:
        self._workers = workers
        self._as_json = as_json
        self._is_terminal = sys.stderr.isatty()
        self._star = "★" if (sys.stderr.encoding or "").lower().replace("-", "") == "utf8" else "*"
        self._has_announced = False
        self._drains: dict[str, events.RunnerDraining] = {}
        self._lefts: dict[str, events.RunnerLeft] = {}
        self._is_draining = False
        self._open = False  # whether a line is shown that may be redrawn
        self._next_s = 0.0
        self._waiting_s = 0.0

    def on_event(self, event: Event) -> None:
        """Print an event for people."""
        match event:
            case events.Waits():
                self._say_waiting(event)
            case events.ProgramLoaded():
                self._as_json = event.log_format == "json"
                self._announce(event)
            case events.RunnerJoined():
                at = f", {event.served}" if event.served and self._workers else ""
                self.line(f"joined, {event.shards} shards owned{at}", who=event.runner)
            case events.ShardsOwned():
                if not self._is_draining:
                    self.line(f"{event.shards} shards owned", who=event.runner)
            case events.LeadershipBegan():
                self.line(f"{self._star} {event.singleton}: leader, epoch {event.epoch}", who=event.runner)
            case events.LeadershipEnded():
                if not self._is_draining:
                    self.line(f"{event.singleton}: no longer leader", who=event.runner)
            case events.RunnerDraining():
                self._drains[event.runner] = event
                if not self._workers:
                    self.begin_drain(event.left_s)
                self._show_drain()
            case events.RunnerLeft():
                self._lefts[event.runner] = event
                self._drains[event.runner] = _over(event)
                if not self._workers:
                    self.end_drain(event.took_s)

    def line(self, text: str, *, who: str = "") -> None:
        """Print one line, with the time."""
        self._close()
        if self._as_json:
            print(_as_json(text, who), file=sys.stderr, flush=True)
            return
        name = f"{who}  " if who and self._workers else ""
        print(f"{self._time()}  {safe(name + text)}", file=sys.stderr, flush=True)

    def _say_waiting(self, event: events.Waits) -> None:
        """Workers wait for the same database: only the first event is printed."""
        if steady_s() < self._waiting_s:
            return
        self._waiting_s = steady_s() + _SAID_EVERY_S
        how = f"still waiting after {lasting(event.waited_s)}" if event.waited_s >= 1 else "waiting for it"
        self.line(f"! {event.problem}: {how} (--no-wait refuses instead)")

    def _announce(self, found: events.ProgramLoaded) -> None:
        if self._has_announced:
            return
        self._has_announced = True
        if self._as_json:
            for line in announcement(found, workers=self._workers):
                if line:
                    self.line(" ".join(line.split()))
            return
        for line in announcement(found, workers=self._workers):
            print(safe(line, keep=""), file=sys.stderr)
        print(file=sys.stderr, flush=True)

    def begin_drain(self, limit_s: float) -> None:
        """Print that the drain begins, once."""
        if self._is_draining:
            return
        self._is_draining = True
        self._next_s = steady_s() + (0.0 if self._is_terminal else _SAID_EVERY_S)
        text = f"draining (limit {lasting(limit_s)}; press again to stop at once)"
        if self._is_terminal and not self._as_json:
            print(f"  {text}", file=sys.stderr, flush=True)  # behind the ^C that the terminal shows
        else:
            self.line(text)

    def end_drain(self, took_s: float, *, failed: Sequence[str] = ()) -> None:
        """Print how the drain ended, and reset its state."""
        self._put(left_line(list(self._lefts.values()), took_s, failed=failed))
        self._close()
        self._is_draining = False
        self._drains, self._lefts = {}, {}

    def _show_drain(self) -> None:
        if not self._is_draining or steady_s() < self._next_s:
            return
        self._next_s = steady_s() + (0.0 if self._is_terminal else _SAID_EVERY_S)
        if any(each.given or each.calls for each in self._drains.values()):
            self._put(drain_line(list(self._drains.values())))

    def _put(self, text: str) -> None:
        if not self._is_terminal or self._as_json:
            self.line(text)
            return
        print(f"\r\x1b[K    {safe(text)}", end="", file=sys.stderr, flush=True)
        self._open = True

    def _close(self) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)
        self._open = False

    def _time(self) -> str:
        now = _now()
        return f"{now.astimezone():%H:%M:%S}" if self._is_terminal else instant(now)


_LINES = TextLine("%(message)s", fields=False)


class ConsoleOptions(logging.Handler):
    """Prints warnings of coterie, for programs without a logging configuration."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print it as a line among the others."""
        mark = "!" if record.levelno < logging.ERROR else "error:"
        self._console.line(f"{mark} {self.format(record)}")

    def format(self, record: logging.LogRecord) -> str:
        """The message on one line, then the traceback, so that neither looks like another event."""
        return _LINES.format(record)


def log_to_console(console: Console) -> None:
    """Print warnings, unless the program has configured logging."""
    log = logging.getLogger("coterie")
    if not log.hasHandlers():
        log.addHandler(ConsoleOptions(console))


def announcement(found: events.ProgramLoaded, *, workers: int = 0) -> list[str]:
    """The program, its definitions and its settings, printed before anything happens."""
    who = f"{workers} workers" if workers > 1 else f"runner {found.runner}"
    served = "off" if found.served is None else f"{found.served}/" if found.has_page else f"{found.served}/health"
    about = "http_listen is off" if found.served is None else "probes /live /ready /startup, metrics /metrics"
    moved = "" if found.moved_from is None else f" (port {found.moved_from} is taken)"
    rows = [
        ("app", found.app, found.defines),
        ("database", found.database, found.database_from),
        ("page" if found.has_page else "health", served, about + moved),
    ]
    wide = max(_WIDE, *(len(value) + 2 for _, value, _ in rows))
    lines = [f"  {name:<11}{value:<{wide}}{note}" for name, value, note in rows]
    tip = _TIP if workers < 2 else _TIP_OF_SEVERAL
    head = f"coterie {version('coterie')} · {who} · cluster {found.cluster}"
    return [head, "", *lines, f"  {'tip':<11}{tip}"]


def drain_line(drains: Sequence[events.RunnerDraining]) -> str:
    """The progress of all drains."""
    calls = sum(each.calls for each in drains)
    oldest_s = max((each.oldest_s for each in drains), default=0.0)
    given, shards = sum(each.given for each in drains), sum(each.shards for each in drains)
    flight = f"{calls} calls in flight" + (f", oldest {lasting(oldest_s)}" if calls and oldest_s else "")
    left_s = max((each.left_s for each in drains), default=0.0)
    return f"readiness is off · {given} of {shards} shards handed over · {flight} · {left_s:.0f}s left"


def left_line(lefts: Sequence[events.RunnerLeft], took_s: float, *, failed: Sequence[str] = ()) -> str:
    """The results of all drains."""
    given, shards = sum(each.given for each in lefts), sum(each.shards for each in lefts)
    returned = sum(each.returned for each in lefts)
    if given == shards and not failed:
        handed = f"{given} shards handed over, {returned} messages returned to storage"
        return f"left cleanly in {lasting(took_s)}: {handed}"
    kept = f"; {shards - given} are taken over when the lease has expired" if given < shards else ""
    exits = f"; {', '.join(failed)}" if failed else ""
    return f"left after {lasting(took_s)}: {given} of {shards} shards handed over{kept}{exits}"


def _as_json(text: str, who: str) -> str:
    record = logging.LogRecord("coterie.run", logging.INFO, __file__, 0, text, None, None)
    return JsonLine(who).format(record)


def _over(left: events.RunnerLeft) -> events.RunnerDraining:
    return events.RunnerDraining(
        runner=left.runner, shards=left.shards, given=left.given, calls=0, oldest_s=0.0, left_s=0.0
    )


def _now() -> datetime:
    return to_datetime(SystemClock().wall_ns())
