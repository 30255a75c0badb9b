"""One workflow run in memory, from its load to its end or its suspension.

load ──▶ body ──returns──▶ done; or the next life begins, if it returned `again(…)`
          │ ▲ ──raises───▶ its compensations run ──▶ failed
          │ │ ──interrupted────────── the same ──▶ interrupted
          │ │ ──diverges from what is stored, is wrong itself (`stuck_on`), or could not reach a receiver──▶ stuck:
          │ │                                   suspended, and tried again later, or by another holder of its shard
          ▼ │
       waits for something durable, and does nothing else ──▶ suspended: in no runner's memory
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import json

from coterie.durable import failure
from coterie.durable.steps import TRANSIENT, StepCall
from coterie.durable.unit import new_life
from coterie.entities.persisted.outcome import require_small
from coterie.errors import LeadershipLost, MalformedMessage, PersistenceError, StepDiverged
from coterie.kernel import chaos, metrics, spans
from coterie.kernel.context import enter
from coterie.kernel.text import said, storable
from coterie.storage.contracts.units import (
    NextLife,
    Stuck,
    UnitEnd,
    UnitEnding,
    UnitEndResult,
    UnitRow,
    UnitSnapshot,
    UnitStartResult,
)
from coterie.work.context import context_of, in_span
from coterie.work.limits import set_within, settled
from coterie.work.occupants import GRACE_S
from coterie.work.while_held import AWAY_S, while_held
from coterie.workflows.job_maps import JobMaps
from coterie.workflows.workflow import Again, Compensation, Outcome, Workflow

if TYPE_CHECKING:
    from coterie.ownership.seats import Tenure
    from coterie.workflows.definition import WorkflowType
    from coterie.workflows.registry import HeldWorkflows

log = logging.getLogger("coterie.workflows")

IDLE_S = 0.2
"""How long a run that waits stays in memory, in case what it waits for comes at once."""
_SHORT_S = 1.0
"""What is due sooner than this is waited for in memory."""
_LATER_S = 10.0
"""After how long a run that could not continue is retried; twice as long after each further time."""
_LATEST_S = 600.0
_REASON_MOST = 1_000
_AGAIN_S = 1.0
"""After how long a run that was left to another runner is retried, if no other runner has taken the seat."""


class Execution:
    """A workflow run that runs here.

    Promise:
        Its end is written once, under the fence. If anything else stops it, it will run again, from what is stored.
    """

    def __init__(self, kind: WorkflowType, row: UnitRow, tenure: Tenure, held: HeldWorkflows) -> None:
        self._kind = kind
        self._row = row
        _, self._trace = spans.unstamped(row.payload)
        self._tenure = tenure
        self._held = held
        self._services = held.services
        self._undo: list[Compensation] = []
        self._ending: list[Again] = []
        self._body: asyncio.Task[Any] | None = None
        self._moved = asyncio.Event()
        self._is_interrupted = False
        self._is_concluding = False
        self._released = asyncio.Event()
        self._work = JobMaps(
            row.unit,
            held.services,
            tenure,
            open=self._load,
            life=row.life,
            retry=kind.retry,
            sender=held.job_sender,
        )
        self._work.on_quiet = self._moved.set
        self._work.on_halt = self._cancel_body

    async def run(self) -> None:
        """Run it until it ends or is suspended."""
        try:
            name = f"workflow.{self._kind.name}"
            await in_span(self._run(), name, self._tenure, trace=self._trace, workflow_id=self._row.id)
        except LeadershipLost as error:
            log.info("%s continues on another runner: %s", self._row.unit, error)
            if self._tenure.held:  # as far as we know: without a pause it would restart at once, perhaps endlessly
                await self._stop_body()
                await set_within(self._released, _AGAIN_S)
        except Exception:
            log.exception("%s was ended by an unexpected error, and runs again from its stored steps", self._row.unit)
            await self._stop_body()
            await set_within(self._released, _AGAIN_S)
        finally:
            await self._stop_body()

    def hint(self) -> None:
        """There is news: a value, or a request to interrupt it."""
        self._work.hint()
        self._services.tasks.spawn(self._read_interruption(), name=f"read {self._row.unit}", report=False)

    def release(self) -> None:
        """Start no new steps: it stops as soon as running steps are stored, and another runner continues it."""
        self._released.set()
        self._work.stop_at_frontier = True
        self._moved.set()

    def interrupt(self) -> None:
        """Make it end, unless it is ending already."""
        if self._is_interrupted or self._is_concluding:
            return
        self._is_interrupted = self._work.stop_at_frontier = True
        self._moved.set()
        # Not at once: a run that has just begun has not registered its compensations yet. Steps that run are cut short.
        asyncio.get_running_loop().call_later(IDLE_S, self._cancel_body)

    def _cancel_body(self) -> None:
        body = self._body
        if body is None or body.done() or self._is_concluding:
            return
        self._work.closed = True
        self._work.halted = self._work.halted or asyncio.CancelledError("it was cancelled")
        if body is not asyncio.current_task():
            body.cancel()

    async def _read_interruption(self) -> None:
        with contextlib.suppress(PersistenceError):
            row = await self._services.units.get(self._row.unit)
            if row is not None and row.interrupting:
                self.interrupt()

    async def _load(self) -> UnitSnapshot | None:
        return await self._services.units.load(self._tenure.claim, self._row.unit)

    async def _run(self) -> None:
        loaded = await self._work.opened()
        if loaded.row.status != "running":
            return
        self._row = loaded.row  # another life may have begun since it was taken
        if loaded.row.interrupting and loaded.row.starts_at is not None:  # it was to begin later, and never does
            await self._end("interrupted")
            return
        if loaded.row.interrupting:
            self.interrupt()
        trace_id = spans.id_of(spans.here()) if spans.on else None
        enter(context_of(self._tenure, self._kind.name, trace_id=trace_id))
        body = self._body = self._services.tasks.spawn(self._call_body(), name=self._row.unit, report=False)
        body.add_done_callback(self._body_ended)
        while not body.done():
            if await self._wait_or_suspend(body):
                return
        await self._conclude(body)

    def _body_ended(self, body: asyncio.Task[Any]) -> None:
        _ = body.cancelled() or body.exception()  # marks the error as retrieved, in case we are cancelled too
        self._moved.set()

    async def _call_body(self) -> Any:
        try:
            data, _ = spans.unstamped(self._row.payload)
            payload = self._kind.payload.decode(data, what=f"payload of {self._row.unit}")
        except MalformedMessage as error:  # it fitted where it was started: that was other code
            found = f"{self._kind.name}, whose payload is another one now ({error.problem})"
            raise StepDiverged(unit=self._row.unit, found=found, stored=self._kind.name) from error
        self._work.places.begin()
        workflow = Workflow(
            self._row.id,
            cluster=self._services.cluster,
            work=self._work,
            start_child=self._start_child,
            name_of=lambda fn: self._held.registry.of(fn).name,
            undo=self._undo,
            ending=self._ending,
        )
        return await self._kind.body(workflow, payload)

    async def _start_child(self, workflow: Any, payload: Any, id: str, waited_as: str) -> UnitStartResult:
        """Start a child unless it exists; its end is reported to this run."""
        parent = self._row.unit
        start = partial(self._held.start_child, workflow, payload, id, parent=parent, waited_as=waited_as)
        return await while_held(self._work.require_may_write, start, what=parent, log=log)

    # Suspension

    async def _wait_or_suspend(self, body: asyncio.Task[Any]) -> bool:
        """Wait until the body ends or only waits. Returns: whether the run was suspended."""
        await self._moved.wait()
        self._moved.clear()
        await settled([body], limit_s=IDLE_S)
        if body.done() or not self._work.is_quiet:
            return False
        if self._work.stop_at_frontier:
            self._cancel_body()
            return False
        wake_s = self._wake_s()
        if wake_s is None or wake_s > _SHORT_S:
            return await self._suspend(wake_s)
        self._moved.set()
        return False

    def _wake_s(self) -> float | None:
        """Seconds until the first wait is due; None: no wait has a due time."""
        dues = [self._services.dial.until_s(each.due_at) for each in self._work.waits if each.due_at is not None]
        return min(dues, default=None)

    async def _suspend(self, wake_s: float | None, *, stuck: Stuck | None = None) -> bool:
        waits = sorted({each.deferred for each in self._work.waits if each.deferred is not None})
        inboxes = sorted({each.inbox for each in self._work.waits if each.inbox is not None})
        turns = self._work.turns
        if chaos.on:
            await chaos.point("workflows.before_suspend")
        try:
            result = await self._services.units.suspend(
                self._tenure.claim,
                self._row.unit,
                waits=waits,
                inboxes=inboxes,
                wake_s=None if wake_s is None else max(wake_s, 0.0),
                stuck=stuck,
            )
        except PersistenceError as error:
            log.info("%s could not be suspended and stays in memory: %s", self._row.unit, error)
            await asyncio.sleep(AWAY_S)
            self._moved.set()
            return False
        if result == "ready":
            self.hint()
            self._moved.set()
            return False
        if result == "suspended":
            if self._work.turns == turns:
                if stuck is None:
                    self._count("suspended")
                if self._work.waits_for_jobs:
                    self._held.watch_jobs()
                return True
            # A branch continued meanwhile, independently of what the others wait for: undo the suspension.
            await self._work.retry_write(partial(self._services.units.resume, self._row.unit))
            self._moved.set()
            return False
        raise self._tenure.lost()

    # The end

    async def _conclude(self, body: asyncio.Task[Any]) -> None:
        self._is_concluding = True
        error = self._work.halted
        if error is None:
            error = RuntimeError("it was cancelled, by itself") if body.cancelled() else body.exception()
        if error is None and self._is_interrupted:  # even if it could finish: compensations may have run already
            error = asyncio.CancelledError("it was interrupted")
        await self._work.end_branches()
        self._work.require_held()
        if error is None:
            try:
                next_life, value = self._results(body.result())
            except Exception as malformed:  # noqa: BLE001 it is the result that is wrong
                error = malformed
            else:
                await (self._begin_again(next_life) if next_life is not None else self._end("done", value=value))
                return
        if isinstance(error, LeadershipLost):
            raise error
        try:
            if isinstance(error, asyncio.CancelledError):
                if self._is_interrupted:
                    await self._compensate()
                    await self._end("interrupted")
            elif _may_change(error):
                await self._retry_later(error)
            elif self._is_wrong_code(error):
                if self._is_interrupted:
                    await self._compensate()
                    await self._end("interrupted")
                else:
                    await self._retry_later(error)
            else:
                log.warning("%s failed: %r", self._row.unit, error, exc_info=error)
                if spans.on:
                    spans.failed(error)
                await self._fail(error)
        except StepDiverged as diverged:
            await self._retry_later(diverged)

    async def _fail(self, error: BaseException) -> None:
        """End it as failed; a run that is to be held undoes nothing, until somebody decides that it shall."""
        steps = json.encode([[each.branch, each.position, each.kind, each.name] for each in failure.places_of(error)])
        is_held = self._kind.on_failure == "hold"
        if is_held and self._is_interrupted:
            await self._compensate()
            await self._end("interrupted")
            return
        if not is_held:
            await self._compensate()
        await self._end("failed", error=failure.pack(error), held=is_held, failed_steps=steps.decode())

    def _results(self, result: Any) -> tuple[NextLife | None, bytes | None]:
        """What the body returned: the next life of the run, or the encoded result.

        Raises:
            MalformedMessage: It does not fit, or is too large.
            RuntimeError: `again` was called, and the body returned something else.
        """
        most_bytes = self._services.settings.frame_limit
        if not self._ending:
            what = f"result of {self._row.unit}"
            value = self._kind.result.checked(result, what=what)
            require_small(value, what=what, most_bytes=most_bytes)
            return None, value
        if result is not self._ending[-1]:
            raise RuntimeError(f"again(…) was called by {self._row.unit}, which returned something else: return it")
        what = f"payload of {self._row.unit}"
        data = self._kind.payload.checked(result.payload, what=what)
        require_small(data, what=what, most_bytes=most_bytes)
        return NextLife(
            claim=self._tenure.claim,
            unit=self._row.unit,
            life=self._row.life,
            next=new_life(self._services.chance),
            payload=spans.stamped(data, self._trace),
            version=self._kind.version,
        ), None

    async def _begin_again(self, next_life: NextLife) -> None:
        result = await while_held(
            self._work.require_held, partial(self._services.units.renew, next_life), what=self._row.unit, log=log
        )
        if result == "fenced":
            raise self._tenure.lost()
        self._work.cancel_jobs()
        self._count("again")

    async def _retry_later(self, error: BaseException) -> None:
        times = self._row.stuck_times
        later_s = min(_LATER_S * 2 ** min(times, 10), _LATEST_S)
        what = "%s is stuck and is tried again in %gs, or by the next holder of its shard: %s"
        log.error(what, self._row.unit, later_s, said(error), exc_info=None if _may_change(error) else error)
        self._count("stuck")
        if spans.on:
            spans.failed(error)
        reason = storable(said(error)[:_REASON_MOST]).encode()
        if not await self._suspend(
            later_s, stuck=Stuck(reason, times + 1)
        ):  # interruption requested: storage wants it to run, which it cannot
            await set_within(self._released, _LATER_S)

    def _is_wrong_code(self, error: BaseException) -> bool:
        """Whether the body itself has raised one of `stuck_on`, which other code may not."""
        if isinstance(error, BaseExceptionGroup):
            return any(map(self._is_wrong_code, error.exceptions))
        return isinstance(error, self._kind.stuck_on) and not failure.is_of_step(error)

    async def _compensate(self) -> None:
        """Run the compensations, the last one first. Failures are recorded, and the others still run."""
        for each in reversed(self._undo):
            if self._released.is_set():
                raise asyncio.CancelledError("it continues on another runner")
            try:
                await self._work.run(
                    StepCall(each.place, each.fn, each.args, each.kwargs, self._kind.retry, keep=False)
                )
            except (LeadershipLost, StepDiverged):
                raise
            except Exception as error:  # noqa: BLE001 it is recorded
                log.error("compensation %r of %s failed: %s", each.place.name, self._row.unit, error)

    async def _end(
        self,
        status: UnitEnding,
        *,
        value: bytes | None = None,
        error: bytes | None = None,
        held: bool = False,
        failed_steps: str = "",
    ) -> None:
        outcome = msgspec.msgpack.encode(Outcome(status, value, error)) if self._row.parent else b""
        parent, waited_as = self._row.parent, self._row.waited_as
        write = UnitEnd(
            self._tenure.claim,
            self._row.unit,
            status,
            value,
            error,
            outcome,
            parent,
            waited_as,
            life=self._row.life,
            retries=self._row.retries,
            held=held,
            failed_steps=failed_steps,
        )
        result = await while_held(
            self._work.require_held, partial(self._try_to_end, write), what=self._row.unit, log=log
        )
        if result.told == "fenced":
            raise self._tenure.lost()
        self._count(status)
        if not held:
            self._work.cancel_jobs()
        if result.wake is not None and self._row.parent is not None:
            self._held.send_hint(result.wake, self._row.parent)
        if status != "done" and not held and self._work.places.has_children:
            self._held.interrupt_children(self._tenure.seat)

    async def _try_to_end(self, write: UnitEnd) -> UnitEndResult:
        if chaos.on:
            await chaos.point("workflows.before_end")
        return await self._services.units.end(write)

    def _count(self, outcome: str) -> None:
        metrics.WORKFLOWS.of(self._kind.name, outcome).value += 1
        if spans.on:
            spans.note("coterie.outcome", outcome)

    async def _stop_body(self) -> None:
        self._work.closed = True  # code in `finally` blocks starts no new steps either
        if self._body is not None and not self._body.done():
            self._body.cancel()
            await settled([self._body], limit_s=GRACE_S)
            if not self._body.done():
                log.error("%s ignored its cancellation for %gs and is abandoned", self._row.unit, GRACE_S)


def _may_change(error: BaseException) -> bool:
    """Whether an error is not a result: the code diverged, or a receiver could not be reached."""
    reasons = (StepDiverged, *TRANSIENT)
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(reasons) is not None
    return isinstance(error, reasons)
