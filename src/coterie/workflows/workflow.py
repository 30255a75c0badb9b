"""The `Workflow` handle that is passed to the body of a workflow."""

from __future__ import annotations

from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    overload,
)

import msgspec

from coterie.durable import failure, steps
from coterie.durable.position import Place, named
from coterie.durable.unit import Steps
from coterie.errors import WorkflowFailed, WorkflowInterrupted
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.storage.contracts.units import ParentEnded, UnitRow, UnitStartResult
from coterie.tasks.task import Task
from coterie.workflows.definition import require_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable

    from coterie.cluster import Cluster
    from coterie.kernel.retry import Retry
    from coterie.tasks.task import Job
    from coterie.workflows.api import WorkflowHandle
    from coterie.workflows.job_maps import JobMaps

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
V = TypeVar("V")
A_contra = TypeVar("A_contra", contravariant=True)
V_co = TypeVar("V_co", covariant=True)


class ItemTask(Protocol[A_contra, V_co]):
    """A task whose jobs take one item: a `Task`, for `map`."""

    def job(self, item: A_contra, /) -> Job[V_co]:
        """The job of an item."""
        ...


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What a parent learns about the end of its child."""

    status: str
    value: bytes | None
    error: bytes | None


class Compensation(NamedTuple):
    """A registered compensation: undoes a step if the workflow fails or is interrupted."""

    place: Place
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Again:
    """What `again` returns: the body ends this life of its run, and the next begins with this payload."""

    __slots__ = ("payload",)

    def __init__(self, payload: Any) -> None:
        self.payload = payload


class Registered:
    """Returned by `compensate`, which is done already; it may be awaited all the same."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class Workflow(Steps):
    """One run of a workflow.

    Attributes:
        id: The id under which it was started.
        cluster: The cluster; use it inside steps, since code between steps runs again.
    """

    def __init__(
        self,
        id: str,
        *,
        cluster: Cluster,
        work: JobMaps,
        start_child: Callable[[Any, Any, str, str], Awaitable[UnitStartResult]],
        name_of: Callable[[Any], str],
        undo: list[Compensation],
        ending: list[Again],
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(work)
        self._work: JobMaps = work
        self.id = id
        self.cluster = cluster
        self._start_child = start_child
        self._name_of = name_of
        self._undo = undo
        self._ending = ending
        self._retry = retry
        self._timeout_s = timeout_s

    def options(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> Self:
        """The same run, with options for its steps: `await workflow.options(retry=Retry(attempts=5)).step(…)`.

        Args:
            retry: The retry policy of a step that raises.
            timeout: The time limit of one attempt.
        """
        return type(self)(
            self.id,
            cluster=self.cluster,
            work=self._work,
            start_child=self._start_child,
            name_of=self._name_of,
            undo=self._undo,
            ending=self._ending,
            retry=retry or self._retry,
            timeout_s=seconds_or_none(timeout, what="timeout") or self._timeout_s,
        )

    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """See `Steps.step`; with the options of this workflow."""
        return self._work.step(name, fn, args, kwargs, retry=self._retry, timeout_s=self._timeout_s)

    def compensate(self, name: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Registered:
        """Register a compensation: it runs if the workflow fails or is interrupted, the last one first.

        Each runs at least once, and is recorded like a step. If it raises, the error is recorded and the others run.
        """
        steps.require_function(name, fn, verb="compensate")
        place = self._work.places.next_compensation(named(name, "a compensation"), steps.digest(args, kwargs))
        self._undo.append(Compensation(place, fn, args, kwargs))
        return Registered()

    def receive(self, name: str, type: type[T], /, *, timeout: Duration | None = None) -> Coroutine[Any, Any, T]:
        """Wait for the next message of a name that `handle.send` sends to this run, across restarts.

        Messages of one name come in the order in which they were acknowledged to their senders, each once.

        Args:
            name: The name.
            type: The type of the message.
            timeout: The longest wait, measured from the first call.

        Raises:
            ReceiveTimeout: No message was acknowledged in time. What comes later waits for the next `receive`.
            MalformedMessage: The message does not fit the type. It is received, and will not come again.
        """
        timeout_s = seconds_or_none(timeout, what=f"timeout of message {name!r}")
        return self._work.receive(name, type, timeout_s)

    def publish(self, name: str, value: object, /) -> Coroutine[Any, Any, None]:
        """Publish a value under a name, once in all runs of the body: `handle.published` and `handle.follow` read it.

        Raises:
            MalformedMessage: It is not plain data, or too large.
        """
        return self._work.publish(name, value)

    @overload
    def map(
        self, task: ItemTask[A, T], items: Iterable[A], /, *, name: str | None = None
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(
        self, fn: Callable[[A], Awaitable[T]], items: Iterable[A], /, *, limit: int = 50, name: str | None = None
    ) -> Coroutine[Any, Any, list[T]]: ...
    @overload
    def map(
        self, fn: Callable[[A], T], items: Iterable[A], /, *, limit: int = 50, name: str | None = None
    ) -> Coroutine[Any, Any, list[T]]: ...
    def map(
        self, fn: Any, items: Iterable[Any], /, *, limit: int | None = None, name: str | None = None
    ) -> Coroutine[Any, Any, list[Any]]:
        """Run a function as a step for each item, some at a time, and return the results in the order of the items.

        If an item fails, after its retries, no further one begins, those that run are cancelled, and its error is
        raised; in later runs of the body the same one.

        A task runs as a job for each item, on any runner, with the limits of its queue and the retries of the task;
        meanwhile the run is suspended.

        Args:
            fn: A function of one item, as for `step`; or a task.
            items: The items: the same in each run of the body.
            limit: How many run at a time, 50 unless told. Jobs have the limits of their queue.
            name: The name of the steps; the function's unless told.

        Raises:
            ValueError: The limit or the name is invalid, or there are too many items.
            TypeError: A task was given a limit; it is no function; an item does not fit the task.
            StepDiverged: The code diverges from what is stored.
        """
        given = list(items)
        if isinstance(fn, Task):
            if limit is not None:
                raise TypeError(f"map of {fn!r} got limit={limit!r}: the limits of jobs are those of the task's queue")
            return self._work.map_jobs(fn.type, given, name=name)
        limit = 50 if limit is None else limit
        return self._work.map(fn, given, limit=limit, name=name, retry=self._retry, timeout_s=self._timeout_s)

    def first(
        self, a: Awaitable[T], b: Awaitable[V], /, *, name: str | None = None
    ) -> Coroutine[Any, Any, tuple[Literal[0], T] | tuple[Literal[1], V]]:
        """Wait for the first of two, and return which one it was with its result; its error is raised.

        Who has won is stored. The other one begins nothing new and is cancelled; its compensations stay registered, and
        what it has received is given back, for the next `receive`.

        Args:
            a: What is awaited: a step, a sleep, a message, or a coroutine with several of them.
            b: The other one.
            name: A name for it in the history.
        """
        raced: Coroutine[Any, Any, Any] = self._work.first(a, b, name=name)
        return raced

    def again(self, payload: Any) -> NoReturn:
        """End this life of the run and begin the next under the same id: `return workflow.again(payload)`.

        One commit does both. The next life begins with `payload`, without the steps, deferreds and compensations of
        this one, so that a run can go on for years. Whoever waits for its result waits for that of the last life.

        Example:
            ```python
            @cluster.workflow
            async def subscription(workflow: Workflow, month: int) -> int:
                await workflow.step("charge", charge, month)
                await workflow.sleep("30d", name="a month")
                return month if month == 12 else workflow.again(month + 1)
            ```
        """
        self._ending.append(next_life := Again(payload))
        return next_life  # type: ignore[misc] # a checker lets `return` of it stand in place of any result

    def patched(self, name: str) -> bool:
        """Whether a code change applies to this run: False for runs that were past this place before the change.

        `if workflow.patched("new tax"): … else: …`: keep the old code for as long as there are old runs.
        """
        return self._work.patch(name)

    def child(
        self, workflow: Callable[Concatenate[Workflow, A, ...], Coroutine[Any, Any, T]], payload: A, *, id: str
    ) -> Coroutine[Any, Any, T]:
        """Start another workflow, and wait for its result. If a run of this id exists already, wait for that.

        If this run fails or is interrupted, the children that it has started are interrupted.

        Raises:
            ValueError: The id is invalid.
            TypeError: The function is not a workflow of this cluster.
            KeyConflict: A run of this id exists with another payload.
            WorkflowFailed: The child failed.
            WorkflowInterrupted: The child was interrupted.
        """
        name, former = self._name_of(workflow), getattr(workflow, "__name__", "workflow")
        place = self._work.places.next_child(f"{name}/{require_id(id)}", formerly=f"{former}/{id}")
        return self._child(place, name, workflow, payload, id)

    def start(
        self,
        workflow: Callable[Concatenate[Workflow, A, ...], Coroutine[Any, Any, T]],
        payload: A,
        *,
        id: str,
        on_parent_end: Literal["interrupt", "leave"] = "interrupt",
    ) -> Coroutine[Any, Any, WorkflowHandle[T]]:
        """Start another workflow, and go on when it is stored. If a run of this id exists already, give its handle.

        Args:
            workflow: The workflow.
            payload: Its payload.
            id: Its id.
            on_parent_end: What happens to it when this run fails or is interrupted: it is interrupted too, and its
                compensations run; or it is left alone. When this run succeeds, it goes on in any case.

        Raises:
            ValueError: The id or an option is invalid.
            TypeError: The function is not a workflow of this cluster.
            KeyConflict: A run of this id exists with another payload.
        """
        if on_parent_end not in ("interrupt", "leave"):
            raise ValueError(f'on_parent_end is {on_parent_end!r}, expected "interrupt" or "leave"')
        name = self._name_of(workflow)
        place = self._work.places.next_place("start", f"{name}/{require_id(id)}")
        waited_as = waited_as_of(name, id) if on_parent_end == "interrupt" else ""
        return self._started(place, partial(self._start, workflow, payload, id, waited_as), workflow, id)

    async def _started(
        self, place: Place, start: Callable[[], Awaitable[Any]], workflow: Any, id: str
    ) -> WorkflowHandle[Any]:
        await self._work.once(place, start)
        return self.cluster.workflow_handle(workflow, id)

    async def _child(self, place: Place, name: str, workflow: Any, payload: Any, id: str) -> Any:
        row = await self._work.begin_waiting(place)
        data = row.value if row.done else await self._outcome(place, workflow, payload, id)
        outcome = msgspec.msgpack.decode(data or b"", type=Outcome)
        if outcome.status == "done":
            return steps.decoded(workflow, outcome.value or b"", what=f"result of {name}/{id}")
        if outcome.status == "interrupted":
            raise await self._work.after_others(WorkflowInterrupted(workflow=name, id=id), place)
        problem = "" if outcome.error is None else failure.text_of(outcome.error)
        raise await self._work.after_others(WorkflowFailed(workflow=name, id=id, problem=problem), place)

    async def _outcome(self, place: Place, workflow: Any, payload: Any, id: str) -> bytes | None:
        """The outcome of a child, which is started unless the outcome is known: its row may be deleted by now."""
        waited_as = waited_as_of(place.name.removesuffix(f"/{id}"), id)
        found = self._work.value_of(waited_as)
        if found is None:
            await self._work.may_go_on()
            with self._work.at_work():
                child = await self._start(workflow, payload, id, waited_as)
            if child.parent != self._work.unit or child.ended_at is not None:  # its end is not reported to this run
                return await self._work.poll(place, lambda: self._read_outcome(workflow, payload, id, waited_as))
            found = await self._work.wait_value(waited_as)
        return found.value

    async def _read_outcome(self, workflow: Any, payload: Any, id: str, waited_as: str) -> bytes | None:
        child = await self._start(workflow, payload, id, waited_as)
        return None if child.ended_at is None else outcome_of(child)

    async def _start(self, workflow: Any, payload: Any, id: str, waited_as: str) -> UnitRow:
        try:
            return (await self._start_child(workflow, payload, id, waited_as)).row
        except ParentEnded:  # another runner has ended this run
            raise self._work.lost() from None

    def __repr__(self) -> str:
        return f"<Workflow {self._work.unit}>"


def waited_as_of(name: str, id: str) -> str:
    """The name under which the end of a child is reported to its parent."""
    return f"child:{id}:{name}"


def outcome_of(row: UnitRow) -> bytes:
    """The outcome of an ended child, as reported to its parent."""
    return msgspec.msgpack.encode(Outcome(row.status, row.value, row.error))
