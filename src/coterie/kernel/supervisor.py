"""Supervision of standing tasks: loops that live as long as a runner, a client or a seat.

    runs ──raises──▶ logged and counted ──a pause that grows──▶ runs again
                            │
                            └── failed MOST times within WITHIN_S ──▶ given up: its seat, or the whole runner

An outage of the database ends by itself, and does not count towards giving up. `Tasks.supervise` starts a standing
task; one `Supervisor` per process knows which of them fail, for health and probes.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import types
from collections import deque
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coterie.errors import PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.random import Random
from coterie.kernel.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterable
    from contextvars import Context

    MakeWork = Callable[[], Coroutine[Any, Any, Any]]

log = logging.getLogger("coterie")

MOST = 7
"""After this many failures within `WITHIN_S` a task is given up. With the pauses below that takes at least 12 s: probes
every few seconds report it before."""
WITHIN_S = 60.0
PAUSES = Retry(attempts=MOST + 1, base="250ms", max="10s")
"""Pauses before a failed task restarts, by the number of its failures within `WITHIN_S`."""
_OURS = (str(Path(__file__).parents[1]), str(Path(asyncio.__file__).parent))
"""Paths of the code into which the simulator may throw errors."""
WELL_S = 10.0
"""A task that has run this long since its last restart does not keep failing."""


class Seated(NamedTuple):
    """The seat that a standing task works for, and how it is given up.

    Args:
        seat: Its name.
        give_up: Releases the seat to another runner; called once, when the task keeps failing; then the task ends.
    """

    seat: str
    give_up: Callable[[], object]


class FailingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A standing task that failed within the last minute. Sent over the wire with field names."""

    name: str
    seat: str = ""
    """The seat that it works for; empty: it is the runner's own."""
    failures: int = 1
    """The number of failures within the last minute."""
    error: str = ""
    """The last error."""
    keeps_failing: bool = False
    """It failed more than once, and has not run well since."""

    def __str__(self) -> str:
        return f"{self.name!r} of {self.seat}" if self.seat else repr(self.name)


class Supervisor:
    """Knows the standing tasks of one process that fail. `Tasks.supervise` registers them.

    Args:
        chance: For the jitter of pauses.
    """

    def __init__(self, chance: Random | None = None) -> None:
        self.chance = chance or Random()
        self._standing: dict[StandingTask, None] = {}
        self._hopeless: Callable[[FailingTask], object] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._context: Context

    def failing(self) -> tuple[FailingTask, ...]:
        """Those that failed within the last minute, in the order of their first failures. Thread-safe."""
        return tuple(failing for each in list(self._standing) if (failing := each.failing()) is not None)

    def on_hopeless(self, end: Callable[[FailingTask], object]) -> None:
        """Call `end` on the current loop, once, when a task that belongs to no seat keeps failing.

        Without it, as in a client, such a task restarts at the longest pause.
        """
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._hopeless = end

    def register(self, task: StandingTask) -> None:
        """A standing task has failed for the first time: track it from now on."""
        self._standing[task] = None

    def forget(self, task: StandingTask) -> None:
        """A standing task has ended."""
        self._standing.pop(task, None)

    def give_up(self, failing: FailingTask) -> None:
        """A task of no seat keeps failing. Thread-safe: the lease is kept in its own thread."""
        end, self._hopeless = self._hopeless, None
        if end is not None:
            self._loop.call_soon_threadsafe(end, failing, context=self._context)


class StandingTask:
    """One loop under supervision: `run` is what its task executes. Made by `Tasks.supervise` only.

    Args:
        make: Makes the work for each restart.
        name: What it is; a label of the metric, so it contains no ids and no names of seats.
        supervisor: Tracks its failures.
        seated: The seat that it works for; None: it is the runner's own.
    """

    def __init__(self, make: MakeWork, *, name: str, supervisor: Supervisor, seated: Seated | None = None) -> None:
        self._make = make
        self._name = name
        self._supervisor = supervisor
        self._seated = seated
        self._failed_at_s: deque[float] = deque(maxlen=MOST)
        self._outages = 0  # in a row
        self._error = ""
        self._began_s: float | None = None
        self._now_s: Callable[[], float] = lambda: 0.0

    async def run(self) -> None:
        """Run the work until it returns, is cancelled, or is given up."""
        task = asyncio.current_task()
        assert task is not None
        self._now_s = asyncio.get_running_loop().time
        try:
            while True:
                self._began_s = self._now_s()
                try:
                    work = self._make()
                    await (_work_that_may_fail(work, self._name) if chaos.on else work)
                except asyncio.CancelledError as error:
                    if task.cancelling():
                        raise
                    pause_s = self._failed(error)  # it awaited something that was cancelled: an error like any other
                except Exception as error:  # noqa: BLE001 that is what it is for
                    pause_s = self._failed(error)
                else:
                    return
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
        finally:
            self._supervisor.forget(self)

    def failing(self) -> FailingTask | None:
        """Its failures; None: it has not failed within the last minute."""
        now_s, failed_at_s = self._now_s(), list(self._failed_at_s)
        failures = len(recent(failed_at_s, now_s))
        if not failures:
            return None
        return FailingTask(
            name=self._name,
            seat="" if self._seated is None else self._seated.seat,
            failures=failures,
            error=self._error,
            keeps_failing=keeps_failing(failures, ran_s=None if self._began_s is None else now_s - self._began_s),
        )

    def _failed(self, error: BaseException) -> float | None:
        """Count a failure. Returns: the pause before the restart; None: it is given up."""
        now_s = self._now_s()
        ran_s = 0.0 if self._began_s is None else now_s - self._began_s
        self._began_s = None
        metrics.TASK_FAILURES.of(self._name).value += 1
        if is_outage(error):
            self._outages = 1 if ran_s >= WELL_S else self._outages + 1
            pause_s = self._pause_s(self._outages)
            log.warning("standing task %s waits %.1f s for the database: %s", self, pause_s, error)
            return pause_s
        self._error = f"{type(error).__name__}: {error}"
        self._failed_at_s.append(now_s)
        self._supervisor.register(self)
        failing = self.failing()
        assert failing is not None, "it has just failed"
        pause_s = self._pause_s(failing.failures)
        if is_hopeless(failing.failures):
            return self._give_up(failing, error, pause_s)
        log.error("standing task %s failed and starts again in %.1f s: %r", self, pause_s, error, exc_info=error)
        return pause_s

    def _pause_s(self, failures: int) -> float:
        return PAUSES.delay_s(min(failures, MOST), self._supervisor.chance) or 0.0

    def _give_up(self, failing: FailingTask, error: BaseException, pause_s: float) -> float | None:
        times = f"{failing.failures} times within {WITHIN_S:g} s"
        if self._seated is None:
            log.error("standing task %s failed %s: %r", self, times, error, exc_info=error)
            self._supervisor.give_up(failing)
            return pause_s  # the runner may need it to leave in order
        log.error("standing task %s failed %s, its seat is given up: %r", self, times, error, exc_info=error)
        self._seated.give_up()
        return None

    def __str__(self) -> str:
        return f"{self._name!r}" if self._seated is None else f"{self._name!r} of {self._seated.seat}"


# Decisions


def recent(failed_at_s: Iterable[float], now_s: float) -> list[float]:
    """The failures that still count: those of the last `WITHIN_S`."""
    return [at_s for at_s in failed_at_s if now_s - at_s < WITHIN_S]


def is_hopeless(failures: int) -> bool:
    """Whether a task with this many failures within `WITHIN_S` is given up."""
    return failures >= MOST


def is_outage(error: BaseException) -> bool:
    """Whether the database could not be reached, which ends by itself and says nothing about the task."""
    return isinstance(error, PersistenceError) and error.outcome != "refused"


def keeps_failing(failures: int, *, ran_s: float | None) -> bool:
    """Whether a task keeps failing just now.

    Args:
        failures: Within `WITHIN_S`.
        ran_s: How long it has run since its last restart; None: it waits to restart.
    """
    return failures > 1 and (ran_s is None or ran_s < WELL_S)


@types.coroutine
def _work_that_may_fail(work: Coroutine[Any, Any, Any], name: str) -> Generator[Any, Any, Any]:
    """Await work into which the simulator may throw an error wherever it resumes after a wait."""
    step: Callable[[], Any] = functools.partial(work.send, None)
    while True:
        try:
            waits_for = step()
        except StopIteration as ended:
            return ended.value
        try:
            given = yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 a cancellation: the work's to deal with
            step = functools.partial(work.throw, error)
            continue
        thrown = chaos.failure(name) if _may_raise(work) else None
        step = functools.partial(work.send, given) if thrown is None else functools.partial(work.throw, thrown)


def _may_raise(work: Any) -> bool:
    """Whether an error may be thrown where the work waits.

    Not in code of the program, which has its own tests; and not where a lock was just handed over: no task would own
    it, which no error of ours can cause.
    """
    while (code := getattr(work, "cr_code", None)) is not None:
        if code.co_name == "acquire" or not code.co_filename.startswith(_OURS):
            return False
        work = work.cr_await
    return True
