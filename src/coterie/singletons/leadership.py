"""One runner's leadership of one singleton, from grant to loss (`ownership.Occupant`).

begin ──▶ run ⇄ pause ──▶ done          everything up to here is one task, which a loss cancels
  │         │      │        │
  └─────────┴──────┴────────┴──▶ end:   once, bounded: task ended or abandoned, `on_lose_leadership`, last stamp
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from typing import TYPE_CHECKING, Any

from coterie.durable.unit import unit
from coterie.errors import (
    CoterieError,
    LeaderHandoffFailed,
    LeadershipLost,
    PersistenceError,
    SingletonError,
    StateLoadFailed,
)
from coterie.kernel import chaos, metrics
from coterie.kernel.context import enter
from coterie.kernel.retry import Retry
from coterie.kernel.text import said
from coterie.singletons.heartbeat import Heartbeats
from coterie.singletons.leader import Leader
from coterie.singletons.state import LeaderState
from coterie.work.context import context_of, in_span
from coterie.work.limits import is_cancelled, settled
from coterie.work.occupants import GRACE_S
from coterie.work.while_held import AWAY_S

if TYPE_CHECKING:
    from contextvars import Context

    from coterie.durable.steps import DurableWork
    from coterie.ownership.exclusion import Cause
    from coterie.ownership.seats import Tenure
    from coterie.singletons.definition import Hook, Singleton
    from coterie.work.services import Services

log = logging.getLogger("coterie.singletons")

HOOK_S = 5.0
"""How long a hook may take. With the grace it stays below the 10 s in which a leader is replaced (S10)."""
_RESTARTS = Retry(attempts=20, base="200ms", max="30s")
"""Pauses before a body that raised runs again; the last one repeats for as long as it takes."""
_WELL_S = 10.0
"""After this long without an error a body counts as healthy, and its next pause is the first one again."""
_SESSION_S = 0.05
"""Polling interval for the session without which a runner starts nothing [M2]; and the limit of the last stamp."""


class Leadership:
    """A leader at work.

    Args:
        context: The context that the body inherits.
        former: The leadership before this one in this process, if it has not ended yet.

    Promise:
        Once `drain` has returned, or `abandon` was called, nothing more is written under its tenure. Its end takes no
        longer than `GRACE_S` and `HOOK_S`, whatever the body and the hook do.
    """

    def __init__(
        self,
        singleton: Singleton[Any],
        tenure: Tenure,
        services: Services,
        context: Context,
        former: Leadership | None,
    ) -> None:
        self.singleton = singleton
        self.tenure = tenure
        self._services = services
        self._former = former
        self._context = context
        context.run(enter, context_of(tenure, singleton.name))
        self.stamps = Heartbeats(tenure, services, expected_s=singleton.expected_s)
        state = self._state = LeaderState(
            singleton, tenure, services, changed=self.stamps.progress, failed=self._state_failed
        )
        self.leader: Leader[Any] = Leader(
            singleton.name,
            services=services,
            tenure=tenure,
            state=state,
            stamps=self.stamps,
            open_unit=lambda key: unit(services, tenure, singleton=singleton.name, key=key, works=self._works),
        )
        self._works: dict[str, DurableWork] = {}
        self._has_become = False
        self._has_begun = False
        self._work = services.supervise(self._lead, "lead singleton", tenure, context=context)
        self._stamping: asyncio.Task[Any] | None = None
        self._ending: asyncio.Task[Any] | None = None

    # The seat

    async def drain(self) -> None:
        """Stop the body, and run the hook while its writes are still accepted."""
        await asyncio.shield(self._end())

    def abandon(self) -> None:
        """The seat is lost: stop the body. The hook still runs, and writes nothing."""
        self._end()

    async def end(self) -> None:
        """As `drain`."""
        await self.drain()

    def wake(self, unit: str) -> None:
        """A value for a deferred of a unit may have arrived."""
        if unit in self._works:
            self._works[unit].hint()

    # From the grant on

    async def _lead(self) -> None:
        if self._has_become and not self._has_begun:
            self._give_up_half_begun()
            return
        try:
            if not self._has_begun:  # otherwise an unexpected error ended the lead before, not the body
                await self._begin()
        except LeadershipLost as error:
            log.info("singleton %r did not begin: %s", self.singleton.name, error)
            return
        except CoterieError as error:  # includes errors of the hook and of the state; all others are supervised
            if self.tenure.held:  # otherwise this runner was away, which says nothing about the next time
                self._cannot_begin(error)
            return
        if self.singleton.every_s is None:
            await self._run_until_done()
        else:
            await self._run_every(self.singleton.every_s)

    async def _begin(self) -> None:
        if self._former is not None:
            await self._former.end()  # in one process one hook after the other
            self._former = None
        await self._load()
        if self._stamping is None:
            self._stamping = self._services.supervise(
                self.stamps.live, "stamp executions", self.tenure, context=self._context
            )
        hook = self.singleton.on_become_leader
        if chaos.on:
            chaos.saw("leader", f"{self.singleton.name}, epoch {self.tenure.epoch}")
            await chaos.point("singletons.before_become")
        if hook is not None:
            self.tenure.require_held()
            self._has_become = True
            await self._call(hook, "on_become_leader")
        self._has_become = self._has_begun = True
        log.info("singleton %r is led by %s, epoch %d", self.singleton.name, self._services.runner, self.tenure.epoch)

    async def _load(self) -> None:
        """Load the record and the state. Refusals are retried as often as the policy says; an outage ends, or the seat
        is lost.
        """
        retry = self.singleton.retry or self._services.settings.retry
        attempt = 0
        while True:
            try:
                if not self.stamps.has_begun:
                    await self.stamps.begin()
                await self._state.load()
            except PersistenceError as error:
                failure = StateLoadFailed(singleton=self.singleton.name, problem=str(error))
                self._state_failed(failure)
                attempt += error.outcome == "refused"
                pause_s = retry.delay_s(attempt, self._services.chance) if error.outcome == "refused" else AWAY_S
                if pause_s is None:
                    raise failure from error
                await asyncio.sleep(pause_s)
            else:
                return

    def _give_up_half_begun(self) -> None:
        """Release the seat: an unexpected error ended the lead while the hook ran, which runs once in a term."""
        problem = "it was interrupted by an unexpected error while on_become_leader ran"
        log.error("singleton %r is released to other runners: %s", self.singleton.name, problem)
        self._services.resign(self.tenure.seat, cause="failed", error=problem)

    def _cannot_begin(self, error: Exception) -> None:
        """Release the seat: another runner may be able to begin.

        State that this program cannot decode it will not be able to decode later: the seat is refused. A hook that
        failed is retried here, later and later. A hook that got `LeadershipLost` proves nothing against this runner.
        """
        log.error(
            "singleton %r cannot begin on %s, which releases it to other runners: %s",
            self.singleton.name,
            self._services.runner,
            error,
            exc_info=not isinstance(error, CoterieError),
        )
        self.stamps.error(error)
        if isinstance(error.__cause__, LeadershipLost):
            cause: Cause = "resigned"
        else:
            cause = "failed" if isinstance(error, LeaderHandoffFailed) else "refused"
        self._services.resign(self.tenure.seat, cause=cause, error=said(error))

    async def _run_until_done(self) -> None:
        attempt = 0
        while True:
            began_ns = self._services.clock.steady_ns()
            if await self._run_once():
                return
            ran_s = (self._services.clock.steady_ns() - began_ns) / 1e9
            attempt = 1 if ran_s > _WELL_S else attempt + 1
            pause_s = self._pause_s(attempt)
            if pause_s is None:
                log.error(
                    "singleton %r failed %d times in a row on %s, which releases it to other runners for a while",
                    self.singleton.name,
                    attempt,
                    self._services.runner,
                )
                error = self.stamps.meta.last_error or "its body raised"
                self._services.resign(self.tenure.seat, cause="failed", error=error)
                return
            await asyncio.sleep(pause_s)

    def _pause_s(self, attempt: int) -> float | None:
        """The next pause; None: the definition's policy has no attempt left. Without a policy there is always one."""
        if self.singleton.retry is not None:
            return self.singleton.retry.delay_s(attempt, self._services.chance)
        return _RESTARTS.delay_s(min(attempt, _RESTARTS.attempts - 1), self._services.chance)

    async def _run_every(self, every_s: float) -> None:
        retry = self.singleton.retry or self._services.settings.retry
        attempt = 0
        while True:
            pause_s = retry.delay_s(attempt, self._services.chance) if attempt else None
            await asyncio.sleep(self._until_next_s(every_s) if pause_s is None else pause_s)
            if pause_s is None:
                attempt = 0
            attempt = 0 if await self._run_once() else attempt + 1

    def _until_next_s(self, every_s: float) -> float:
        """Seconds until the next run. Missed runs are not made up for: one is due now, the one after on time."""
        ran_ns = self.stamps.ran_ns
        return 0.0 if ran_ns is None else max(0.0, every_s - (self._services.clock.steady_ns() - ran_ns) / 1e9)

    async def _run_once(self) -> bool:
        """Run the body once. Returns: whether it succeeded."""
        while not self.tenure.may_start:  # noqa: ASYNC110 rare, and short
            await asyncio.sleep(_SESSION_S)
        self.stamps.ran()
        name, clock = self.singleton.name, self._services.clock
        metrics.EXECUTIONS.of(name, "singleton").value += 1
        began_ns = clock.steady_ns()
        try:
            if self.singleton.every_s is not None:
                await self.stamps.write_until_stored()  # stored before it begins: no other leader repeats it
            await in_span(self.singleton.body(self.leader), f"singleton.{self.singleton.name}", self.tenure)
        except LeadershipLost as error:
            log.info("singleton %r stopped: %s", self.singleton.name, error)
            return False
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise  # otherwise it awaited something that was cancelled, which is an error like any other
            self.stamps.error(error)
            metrics.SINGLETON_FAILURES.of(name).value += 1
            log.exception("singleton %r raised, and is restarted", self.singleton.name)
            return False
        finally:
            self._state.drop_changes()
            metrics.EXECUTION_DURATION.spread(name, "singleton").see((clock.steady_ns() - began_ns) / 1e9)
        self.stamps.progress()
        return True

    # The end

    def _end(self) -> asyncio.Task[Any]:
        if self._ending is None:
            self._work.cancel()
            self._ending = self._spawn(self._finish(), "end")
        return self._ending

    async def _finish(self) -> None:
        if self._former is not None:  # lost before it began: waiting for its end includes the former's end
            await self._former.end()
        if not await _has_ended(self._work, GRACE_S):
            problem = f"its body ignored its cancellation for {GRACE_S:g}s and is abandoned; what it writes is refused"
            self._report(LeaderHandoffFailed(singleton=self.singleton.name, problem=problem))
        hook = self.singleton.on_lose_leadership
        if hook is not None and self._has_become:
            with contextlib.suppress(SingletonError):
                await self._call(hook, "on_lose_leadership")
        if self._stamping is not None:
            self._stamping.cancel()
        if self.tenure.held and self.stamps.has_begun:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SESSION_S):  # the successor does not wait for it
                    await self.stamps.write()

    async def _call(self, hook: Hook, name: str) -> None:
        """Run a hook within its limit.

        Raises:
            LeaderHandoffFailed: It raised, or did not end.
        """
        task = self._spawn(_awaited(hook, self.leader), name)
        try:
            if not await _has_ended(task, HOOK_S):
                task.cancel()
                problem = f"{name} did not end within {HOOK_S:g}s"
                raise self._report(LeaderHandoffFailed(singleton=self.singleton.name, problem=problem))
        except asyncio.CancelledError:
            task.cancel()
            await _has_ended(task, GRACE_S)
            raise
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            problem = f"{name} raised {said(error)}"
            raise self._report(LeaderHandoffFailed(singleton=self.singleton.name, problem=problem), error) from error

    def _report(self, failure: LeaderHandoffFailed, error: BaseException | None = None) -> LeaderHandoffFailed:
        log.error("%s", failure, exc_info=error)
        self.stamps.error(failure)
        return failure

    def _state_failed(self, error: Exception) -> None:
        metrics.STATE_ERRORS.of(self.singleton.name, "singleton").value += 1
        self.stamps.error(error)

    def _spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        return self._services.tasks.spawn(
            work, name=f"{name} {self.singleton.name}", report=not name.startswith("on_"), context=self._context
        )


async def _awaited(hook: Hook, leader: Leader[Any]) -> None:
    result: Any = hook(leader)
    if inspect.isawaitable(result):
        await result


async def _has_ended(task: asyncio.Task[Any], within_s: float) -> bool:
    """Whether a task has ended within a time. It is not cancelled, and its error is not raised."""
    await settled([task], limit_s=within_s)
    return task.done()
