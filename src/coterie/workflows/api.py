"""Starting and inspecting workflows: handles, `cluster.workflows`, and the resolution of deferreds."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from coterie.durable import failure
from coterie.durable.position import named
from coterie.durable.unit import new_life
from coterie.entities.calls.spans import sent, trace_of
from coterie.entities.host.work import handling
from coterie.entities.persisted.outcome import require_small
from coterie.errors import (
    AlreadyResolved,
    DeferredMismatch,
    MalformedMessage,
    PersistenceError,
    WorkflowEnded,
    WorkflowFailed,
    WorkflowInterrupted,
    WorkflowNotFound,
    WorkflowTimeout,
)
from coterie.kernel import spans
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.serialization import schema
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.text import require_text, storable
from coterie.storage.contracts.units import UnitRow, UnitStart, UnitStartResult, UnitStatus, require_same
from coterie.work.tags import tag_of
from coterie.workflows import run_messages
from coterie.workflows.definition import WorkflowType, require_id
from coterie.workflows.history import StepInfo, step_info
from coterie.workflows.recovery import fork, retry
from coterie.workflows.start_options import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.durable.token import TokenParts
    from coterie.storage.contracts.messages import Transaction
    from coterie.workflows.start_options import StartOptions

T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")

log = logging.getLogger("coterie.workflows")

_POLLS_S = (0.005, 0.25)
"""Polling interval for the end of a run: from, to."""
_ERROR_MOST = 4_000
_MOST = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowInfo:
    """A snapshot of one run of a workflow. All instants are the database's."""

    name: str
    id: str
    kind: str
    """`workflow`; or `leader` and `tick`: unfinished durable work of those."""
    status: UnitStatus
    interrupting: bool
    """Whether its interruption was requested."""
    steps: int
    """The number of stored steps."""
    life: int
    """The life of the run: another one after `workflow.again` and `start_workflow(…, again=True)`."""
    version: str
    """The version of the code that began it."""
    started_at: datetime
    changed_at: datetime
    ended_at: datetime | None
    wake_at: datetime | None
    """When a suspended run resumes by itself."""
    starts_at: datetime | None
    """When it is to begin; None: it has begun."""
    times_out_at: datetime | None
    """When its time is over, and it is interrupted."""
    next_at: datetime | None
    """When its next life is to begin, started by `start_workflow(…, debounce=)` while it was under way."""
    tags: Mapping[str, str]
    error: str | None
    stuck: str | None
    """Why it cannot go on: it waits for new code, or until something is in reach, and undoes nothing."""


class WorkflowHandle(Generic[T_co]):
    """A handle to a run of a workflow, usable from any process.

    Attributes:
        id: The id of the run.
        life: The life of the run that its start began or found; None: it was not read, or begins with a commit.
    """

    def __init__(
        self,
        id: str,
        kind: WorkflowType,
        acting: Callable[[], Client],
        writing: Callable[[str], Client],
        *,
        life: int | None = None,
    ) -> None:
        self.id = id
        self.life = life
        self._kind = kind
        self._unit = kind.unit(id)
        self._acting = acting
        self._known = ""
        self._writing = writing

    async def result(self, *, timeout: Duration | None = None) -> T_co:
        """Wait for its result.

        Raises:
            WorkflowFailed: It failed.
            WorkflowInterrupted: It was interrupted.
            WorkflowTimeout: It took longer than `timeout`; the run continues.
            WorkflowNotFound: No such run exists, or no longer.
        """
        within_s = seconds_or_none(timeout, what="timeout")
        try:
            async with asyncio.timeout(within_s) as limit:
                return self._result(await self._ended())
        except TimeoutError:
            if not limit.expired():
                raise
            known = self._known or "not known: the database did not answer"
            raise WorkflowTimeout(
                workflow=self._kind.name, id=self.id, waited_s=within_s or 0.0, status=known
            ) from None

    async def _ended(self) -> UnitRow:
        """Wait for the end of the run, and return its row."""
        pause_s, longest_s = _POLLS_S
        while True:
            try:
                row = await self._row()
            except PersistenceError as error:  # the run continues, and so does the wait
                log.info("the status of %s could not be read, and is read again soon: %s", self._unit, error)
            else:
                if row.ended_at is not None and (row.next_life is None or row.held):
                    return row
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, longest_s)

    def _result(self, row: UnitRow) -> T_co:
        if row.status == "interrupted":
            raise WorkflowInterrupted(workflow=self._kind.name, id=self.id, reason=interruption_of(row))
        if row.error is not None:
            error = failure.unpack(row.error)
            problem = failure.text_of(row.error)
            raise WorkflowFailed(workflow=self._kind.name, id=self.id, problem=problem) from error
        value: T_co = self._kind.result.decode(row.value or b"", what=f"result of {self._unit}")
        return value

    async def status(self) -> UnitStatus:
        """The status of the run: running, suspended, done, failed, interrupted.

        Raises:
            WorkflowNotFound: No such run exists, or no longer.
        """
        return (await self._row()).status

    async def send(self, name: str, value: object, /, *, key: str | None = None) -> None:
        """Send a message to the run, which takes it with `workflow.receive(name, type)`. Durable when this returns.

        The run receives the messages of one name in the order in which they were acknowledged, each once. It may begin
        later: a message waits for it for the setting `retention`.

        Args:
            name: The name by which the run receives it.
            value: Plain data, or an instance of a class that it consists of.
            key: Sent again with the same key, it is one message, for the setting `retention`.

        Raises:
            WorkflowEnded: The run is over.
            KeyConflict: Another value was sent with this key.
            MalformedMessage: The value is not plain data, or too large.
        """
        here = self._writing(f"a message to {self._unit}")
        await run_messages.send(here, self._kind.name, self.id, name, value, key=key)

    async def published(self, name: str, type: type[V], /) -> V | None:
        """The last value that the run has published under a name, while it runs and after; None: none yet.

        Raises:
            WorkflowNotFound: No such run exists, or no longer.
            MalformedMessage: The value does not fit the type.
        """
        value: V | None = await run_messages.last(self._acting(), self._kind.name, self.id, name, type)
        return value

    def follow(self, name: str, type: type[V], /, *, after: int = 0) -> AsyncIterator[V]:
        """Each value that the run publishes under a name, once and in order, until the run has ended.

        The last 1,000 values of a name are kept: who comes later, or is slower, misses older ones.

        Args:
            name: The name.
            type: The type of the values.
            after: How many values to leave out, counted from the first that was ever published under this name.

        Raises:
            WorkflowNotFound: No such run exists, or no longer.
            MalformedMessage: A value does not fit the type.
        """
        return run_messages.follow(
            self._acting, self._kind.name, self.id, named(name, "a published value"), type, after=after
        )

    async def steps(self) -> Sequence[StepInfo]:
        """The steps of the run, by branch, in their order. They stay as long as the run: for the setting `retention`.

        Raises:
            WorkflowNotFound: No such run exists, or no longer.
        """
        records = await self._acting().storage.units.records(self._unit)
        if not records:
            await self._row()
        return [step_info(each) for each in records]

    async def interrupt(self) -> None:
        """Request that the run end and run its compensations. Does not wait for that; a run that is over stays as is.

        Raises:
            WorkflowNotFound: No such run exists, or no longer.
        """
        here = self._writing(f"interrupting {self._unit}")
        await self._ask(await here.storage.units.interrupt(self._unit))

    async def retry(self) -> None:
        """Have a run that has failed go on from the step whose error has ended it, in the same life.

        That step runs again, and nothing else that is stored. If it was a child that failed, that one is retried too.

        Raises:
            AlreadyUndone: A compensation has begun, its own or one of that child.
            WorkflowNotFailed: It has not failed.
            WorkflowNotFound: No such run exists, or no longer.
        """
        here = self._writing(f"retrying {self._unit}")
        await retry(here, self._kind.name, self.id, self._unit)

    async def fork(self, *, before: str, id: str) -> WorkflowHandle[T_co]:
        """Start a new run with the steps that this one made before a step: it goes on from there.

        The payload is the same. What was done before the first step of this name outside of branches is copied, with
        the branches that had begun by then. What was waited for is not, nor messages, tokens and running children.

        Args:
            before: The name of the step, which runs in the new run.
            id: The id of the new run.

        Raises:
            ValueError: No such step was reached.
            AlreadyUndone: A compensation of this run has begun.
            KeyConflict: A run of that id exists already.
            WorkflowNotFound: No such run exists, or no longer.
        """
        here = self._writing(f"a fork of {self._unit}")
        seat = self._kind.seat(require_id(id), here.settings.shards)
        life = await fork(
            here, self._kind.name, self.id, before=before, new_id=id, seat=seat, version=self._kind.version
        )
        return WorkflowHandle(id, self._kind, self._acting, self._writing, life=life)

    async def resume(self) -> None:
        """Make a suspended run check now whether it can continue. Has no effect on one that is running.

        Raises:
            WorkflowEnded: It is over: done, failed or interrupted.
            WorkflowNotFound: No such run exists, or no longer.
        """
        here = self._writing(f"resuming {self._unit}")
        row = await here.storage.units.resume(self._unit)
        if row is not None and row.ended_at is not None:
            raise WorkflowEnded(workflow=self._kind.name, id=self.id, status=row.status)
        await self._ask(row)

    async def _ask(self, row: UnitRow | None) -> None:
        if row is None:
            raise self._missing()
        await self._acting().wake(row.seat, about=self._unit, fresh=True)

    async def _row(self) -> UnitRow:
        row = await self._acting().storage.units.get(self._unit)
        if row is None:
            raise self._missing()
        self._known = row.status
        return row

    def _missing(self) -> WorkflowNotFound:
        return WorkflowNotFound(workflow=self._kind.name, id=self.id)

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self._kind.name}/{self.id}>"


class Workflows:
    """`cluster.workflows`: the runs of workflows.

    Args:
        acting: Returns the runner or client through which it acts.
    """

    def __init__(self, acting: Callable[[], Client]) -> None:
        self._acting = acting

    async def list(
        self,
        *,
        status: UnitStatus | None = None,
        name: str | None = None,
        tag: tuple[str, str] | None = None,
        older_than: Duration | None = None,
        limit: int = 100,
    ) -> Sequence[WorkflowInfo]:
        """List runs, the most recently changed first.

        Args:
            status: Only runs with this status.
            name: Only runs of this workflow.
            tag: Only runs with this tag: a name and a value, as in `("order", "7")`.
            older_than: Only runs that began longer ago.
            limit: The maximum number of runs.
        """
        if not 0 <= limit <= _MOST:
            raise ValueError(f"limit is {limit}, expected 0 to {_MOST}")
        if name is not None:
            require_text(name, what="name of a workflow")
        older_s = seconds_or_none(older_than, what="older_than")
        given = None if tag is None else tag_of(tag)
        rows = await self._acting().storage.units.list(status=status, name=name, older_s=older_s, most=limit, tag=given)
        return [info_of(row) for row in rows]


async def start(
    here: Client,
    kind: WorkflowType,
    payload: Any,
    id: str,
    *,
    parent: str | None = None,
    waited_as: str = "",
    options: StartOptions = AT_ONCE,
) -> UnitStartResult:
    """Store a run, and wake the runner that will run it.

    Raises:
        KeyConflict: A run of this id exists with another payload.
        MalformedMessage: The payload does not fit, or is too large.
    """
    started: UnitStartResult = await _in_span(_start, here, kind, payload, id, parent, waited_as, options)
    return started


async def start_within(
    transaction: Transaction,
    here: Client,
    kind: WorkflowType,
    payload: Any,
    id: str,
    *,
    options: StartOptions = AT_ONCE,
) -> None:
    """Store a run with the commit of a transaction, then wake the runner that will run it.

    Raises:
        KeyConflict: A run of this id exists with another payload. If one is stored before the commit, the commit
            raises this.
        MalformedMessage: The payload does not fit, or is too large.
    """

    async def enlist(here: Client, kind: WorkflowType, payload: Any, id: str) -> None:
        unit = options.of(new_unit(here, kind, payload, id))
        there = await here.storage.units.get(unit.unit)
        if there is not None:
            require_same(unit, there.digest)
        transaction.start(
            unit, then=lambda: here.tasks.spawn(here.wake(unit.seat, about=unit.unit), name=f"wake {unit.unit}")
        )

    await _in_span(enlist, here, kind, payload, id)


async def _in_span(work: Callable[..., Coroutine[Any, Any, Any]], here: Client, kind: WorkflowType, *given: Any) -> Any:
    """Await `work`, in a span if tracing is on. The first of `given` is the payload, the second the id."""
    if not spans.on:
        return await work(here, kind, *given)
    facts = {"coterie.workflow": kind.name, "coterie.workflow_id": given[1]}
    return await sent("cluster.start_workflow", "PRODUCER", facts, work, here, kind, *given)


async def _start(
    here: Client, kind: WorkflowType, payload: Any, id: str, parent: str | None, waited_as: str, options: StartOptions
) -> UnitStartResult:
    unit = options.of(new_unit(here, kind, payload, id, parent=parent, waited_as=waited_as))
    started = await here.storage.units.start(unit)
    require_same(unit, started.row.digest)
    if started.row.status == "running" or started.row.starts_at is not None:
        await here.wake(started.row.seat, about=started.row.unit)
    return started


def new_unit(
    here: Client, kind: WorkflowType, payload: Any, id: str, *, parent: str | None = None, waited_as: str = ""
) -> UnitStart:
    """A run that is to be stored.

    Raises:
        MalformedMessage: The payload does not fit, or is too large.
    """
    what = f"payload of workflow {kind.name!r}"
    data = kind.payload.checked(payload, what=what)
    require_small(data, what=what, most_bytes=here.settings.frame_limit)
    trace = trace_of(handling.get())  # not in the digest: the same start from another trace is the same start
    return UnitStart(
        unit=kind.unit(require_id(id)),
        name=kind.name,
        id=id,
        seat=kind.seat(id, here.settings.shards),
        payload=spans.stamped(data, trace),
        digest=kind.payload.canonical(payload, what=what),
        version=kind.version,
        parent=parent,
        waited_as=waited_as,
        life=new_life(here.calling.chance),
    )


async def settle(here: Client, token: str, *, value: Any = None, error: str | None = None) -> None:
    """Resolve or reject a deferred.

    Raises:
        MalformedToken: It is not a token of this cluster.
        MalformedMessage: The value is not plain data, or too large.
        DeferredMismatch: The value is not of the deferred's type.
        AlreadyResolved: It has a value already, or its work is over and will not read one.
    """
    found = here.tokens.read(token)
    data = None if error is not None else _fitting(found, value, most_bytes=here.settings.frame_limit)
    why = None if error is None else storable(error[:_ERROR_MOST])
    result = await here.storage.units.resolve(found.unit, found.name, life=found.life, value=data, error=why)
    if result.told != "resolved":
        raise AlreadyResolved(unit=found.unit, name=found.name, is_over=result.told == "over")
    if result.wake is not None:
        await here.wake(result.wake, about=found.unit, fresh=True)  # its seat may have moved during a long wait


def _fitting(token: TokenParts, value: Any, *, most_bytes: int) -> bytes:
    """Encode a value for storage, if it is of the type in the token."""
    what = f"value of deferred {token.name!r}"
    data = PLAIN.checked(value, what=what)
    require_small(data, what=what, most_bytes=most_bytes)
    try:
        schema.codec_of(token.takes).decode(data, what=what)
    except MalformedMessage as error:
        expected = schema.name_of(token.takes)
        raise DeferredMismatch(unit=token.unit, name=token.name, expected=expected, problem=error.problem) from error
    return data


def interruption_of(row: UnitRow) -> str:
    """Why a run was interrupted; empty: somebody has asked."""
    return ": its time was over" if row.interrupted_for == "timeout" else ""


def info_of(row: UnitRow) -> WorkflowInfo:
    """The run of a row."""
    error = None if row.error is None else failure.text_of(row.error)
    if row.status == "interrupted" and row.interrupted_for:
        error = f"interrupted{interruption_of(row)}"
    return WorkflowInfo(
        name=row.name,
        id=row.id,
        kind=row.kind,
        status=row.status,
        interrupting=row.interrupting,
        steps=row.steps,
        life=row.life,
        version=row.version,
        started_at=row.started_at,
        changed_at=row.changed_at,
        ended_at=row.ended_at,
        wake_at=row.wake_at,
        starts_at=row.starts_at,
        times_out_at=row.times_out_at,
        next_at=row.next_at,
        tags=msgspec.json.decode(row.tags, type=dict[str, str]) if row.tags else {},
        error=error,
        stuck=stuck_of(row),
    )


def stuck_of(row: UnitRow) -> str | None:
    """Why a run cannot go on; None: it waits for something durable, runs, or is over."""
    return row.stuck.decode() if row.stuck is not None and row.status == "suspended" else None


def handle_of(
    kind: WorkflowType,
    id: str,
    acting: Callable[[], Client],
    writing: Callable[[str], Client],
    *,
    life: int | None = None,
) -> WorkflowHandle[Any]:
    """The handle of a run, whether the run exists or not."""
    return WorkflowHandle(require_id(id), kind, acting, writing, life=life)
