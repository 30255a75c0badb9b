"""Tasks as a program uses them: called, they run here and now; `job` makes a job, which is stored and runs somewhere.

function ──called──▶ runs here and now
    │
    └──job(…)──▶ job ──awaited──────────────▶ stored once, waits for the result
                  ├──given to cluster.send──▶ stored once
                  └──dropped────────────────▶ nothing is stored, and a RuntimeWarning says so
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, overload

from coterie.entities.reference import Sendable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from coterie.entities.reference import Caller
    from coterie.tasks.definition import TaskType
    from coterie.work.transaction import Transaction

T = TypeVar("T")
P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
R_co = TypeVar("R_co", covariant=True)


class Job(Sendable[T_co]):
    """A task with its arguments: awaited, it is stored, run by some runner, and its result returned.

    Args:
        type: The task.
        payload: The encoded arguments.
        sender: Stores it and waits.
    """

    __slots__ = ("type",)

    _kind = "job"

    def __init__(self, type: TaskType, payload: bytes, sender: Caller) -> None:
        super().__init__(payload, sender, None)
        self.type = type

    def __repr__(self) -> str:
        return self.type.name


class Task(Generic[P, V_co, R_co]):
    """A function that can also run durably, somewhere: `cluster.task` makes it.

    Args:
        type: Its definition.
        sender: Stores its jobs.
    """

    name: str
    """Its name in the cluster."""

    def __init__(self, type: TaskType, sender: Caller) -> None:
        functools.update_wrapper(self, type.fn)
        self.name = type.name
        self.type = type
        self._fn: Callable[..., Any] = type.fn
        self._sender = sender

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function, here and now: nothing is stored."""
        result: R_co = self._fn(*args, **kwargs)
        return result

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Job[V_co]:
        """A job of it, to be awaited, or given to `cluster.send`.

        Raises:
            TypeError: The arguments do not fit, as for the function itself.
            MalformedMessage: One does not fit its annotation.
        """
        return Job(self.type, self.type.arguments.encode(args, kwargs), self._sender)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Your own SQL, with `$1` parameters, committed with the end of the job that runs here and what that sends.

        Example:
            ```python
            @cluster.task
            async def charge(order: str, cents: int) -> None:
                async with charge.transaction() as sql:
                    await sql.execute("insert into charges (id, cents) values ($1, $2)", order, cents)
            ```

        Promise:
            Atomic: an attempt that raises, is cancelled or whose runner is lost leaves nothing behind. Several blocks,
            one after another, are one transaction.

        Not promised:
            From its first statement to the end of the body it may take `transaction_limit` (2 s); then it is rolled
            back and `TransactionTimeout` is raised.

        Raises:
            RuntimeError: This is no job of the task.
        """
        from coterie.tasks.worker.attempt import attempt_here  # only runners run jobs

        attempt = attempt_here()
        if attempt is None or attempt.entity_type != self.name:
            raise RuntimeError(f"a transaction of {self!r} belongs to one of its jobs: use it inside of one")
        return attempt.transaction()

    def __repr__(self) -> str:
        return f"task {self.name!r}"


class TaskDecorator(Protocol):
    """What `cluster.task(…)` is: it makes a task of a function."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Task[P, T, T]: ...
