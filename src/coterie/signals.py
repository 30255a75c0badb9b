"""A runner as a whole process, for `cluster.run`: its loop, its signals, its exit code.

first SIGTERM or SIGINT   drain, hand over, leave: exit code 0, or 1 if something could not be given back
second one                end at once: exit code 128 + the signal's number
neither is enough         the stacks of all threads are printed and the process ends: exit code 1
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Self

from coterie.errors import ShuttingDown
from coterie.kernel.durations import format_duration
from coterie.kernel.secret import redacted_url
from coterie.kernel.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.runner import Runner
    from coterie.settings import Settings

log = logging.getLogger("coterie")

GRACE_S = 9.0
"""What ending may take beyond the drain, before it is enforced: 29 s by default, and Kubernetes kills after 30."""
_PROGRESS_S = 1.0
_STDERR = 2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(begin: Callable[[], Runner], settings: Settings) -> None:
    """Run a runner until a signal has ended it, or somebody has stopped it.

    Args:
        begin: Makes the runner; called on the loop.
        settings: Its settings.

    Raises:
        SystemExit: Not everything was given back.
        RuntimeError: Called where a loop runs already, or in another thread than the main one.
    """
    _require_no_loop()
    _be_heard()
    with (
        Signals(limit_s=settings.drain.total_seconds() + GRACE_S) as signals,
        asyncio.Runner(loop_factory=_loop_factory()) as loop,
    ):
        in_order = loop.run(_live(begin, signals))
    if not in_order:
        sys.exit(1)


class Signals:
    """SIGTERM and SIGINT, in the main thread.

    They are Python's own handlers, not those of the loop, which would wait for a loop that is blocked.

    Promise:
        The first one calls back on the loop; from then on the process ends within `limit_s`, whatever hangs. The
        second one ends it at once. In forked children they do what they did before.
    """

    def __init__(self, *, limit_s: float) -> None:
        self.asked = False
        """Whether there was a first one."""
        self._limit_s = limit_s
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
        """Have the loop that runs here call back at the first signal, which may have come already."""
        loop = asyncio.get_running_loop()
        self._call = lambda: loop.call_soon_threadsafe(callback)
        if self.asked:
            callback()

    def _on_signal(self, number: int, _: object) -> None:
        if os.getpid() != self._pid:
            self._as_before(number)
        elif self.asked:
            os.write(_STDERR, b"coterie: a second signal, so it ends at once\n")
            os._exit(128 + number)
        else:
            self.asked = True
            # In a thread that needs no Python: it works even if C code holds everything up [P19].
            faulthandler.dump_traceback_later(self._limit_s, exit=True, file=_STDERR)
            self._call()

    def _as_before(self, number: int) -> None:
        """A forked child has this handler, and neither runner nor loop: let the signal mean what it meant [P13]."""
        signal.signal(number, self._before.get(number) or signal.SIG_DFL)
        os.kill(os.getpid(), number)


async def _live(begin: Callable[[], Runner], signals: Signals) -> bool:
    """The whole life of the process; whether it left in order."""
    runner, tasks = begin(), Tasks("signals")
    drains: list[asyncio.Task[None]] = []
    signals.on_first(lambda: drains.append(tasks.spawn(_drain(runner), name="drain", report=False)))
    try:
        await runner.start()
    except ShuttingDown:
        if not signals.asked:
            raise
    else:
        _announce(runner)
        await runner.gone.wait()
    await runner.stop()
    await asyncio.gather(*drains)
    return not runner.left_behind


async def _drain(runner: Runner) -> None:
    limit = format_duration(runner.settings.drain)
    log.info("draining %s (limit %s; a second signal ends it at once)", runner.name, limit)
    loop, held = asyncio.get_running_loop(), len(runner.seats)
    began_s = loop.time()
    reporting = Tasks("progress")
    reporting.spawn(_report(runner, held, began_s), name="report")
    try:
        await runner.stop()
    finally:
        await reporting.stop()
    given = held - len(runner.left_behind)
    log.info("%s left after %.1fs: %d of %d seats given back", runner.name, loop.time() - began_s, given, held)


async def _report(runner: Runner, held: int, began_s: float) -> None:
    limit_s = runner.settings.drain.total_seconds()
    while True:
        await asyncio.sleep(_PROGRESS_S)
        left_s = max(began_s + limit_s - asyncio.get_running_loop().time(), 0.0)
        given = held - len(runner.seats)
        log.info("draining %s: %d of %d seats given back, %.0fs left", runner.name, given, held, left_s)


def _require_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("cluster.run() makes a loop of its own, and one runs here already: use `async with cluster:`")


def _announce(runner: Runner) -> None:
    url, address = redacted_url(runner.settings.url), runner.transport.address
    print(  # noqa: T201 once, for whoever started it
        f"coterie runner {runner.name} of cluster {runner.settings.name} on {url}, listening on {address}",
        file=sys.stderr,
        flush=True,
    )


def _be_heard() -> None:
    """A program without logging of its own still shows what happens."""
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed, the extra `fast`."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
