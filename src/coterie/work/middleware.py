"""Middleware: functions of the program around each attempt of its work, for authorization, error trackers, sessions.

retry, timeout ─▶ the first one registered ─▶ the second one ─▶ … ─▶ the body
                          │                                            │
commit ◀── checked ◀── returned ◀──────────────────────────────────────┘
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from coterie.kernel.context import ClusterContext, current
from coterie.work.definition import is_async, refusal

if TYPE_CHECKING:
    from coterie.kernel.ids import MessageId

WorkKind = Literal["rpc", "stream", "tick", "step", "compensation", "job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkInfo:
    """What a middleware is around: one attempt of some work. Fields that do not apply are None."""

    kind: WorkKind
    name: str
    """The entity type, cron, workflow, singleton or task."""
    id: str | None = None
    """The id of the entity, the workflow run or the job, the key of the leader's unit, the instant of the tick."""
    method: str | None = None
    """The rpc, or the name of the step."""
    attempt: int = 1
    """From 1."""
    message_id: MessageId[Any] | None = None
    key: str | None = None
    """The idempotency key that the caller gave."""

    @property
    def target(self) -> str:
        """Its name for logs: `Account/alice.deposit`, `nightly/2026-03-01T03:00:00Z`, `checkout/order-7.charge`."""
        named = self.name if self.id is None else f"{self.name}/{self.id}"
        return named if self.method is None else f"{named}.{self.method}"

    @property
    def context(self) -> ClusterContext:
        """What `current()` returns in the body."""
        return current()


CallNext: TypeAlias = Callable[[], Awaitable[Any]]
"""Runs the next middleware, the last time the body, and returns its result or raises its error. To be called once."""
MiddlewareFn: TypeAlias = Callable[[WorkInfo, CallNext], Coroutine[Any, Any, Any]]


class Middleware:
    """The middleware of one program, the outermost first.

    Promise:
        Each is called once per attempt, in the task and context of the body. What it raises is the error of the
        attempt, and what it returns is the result, which is checked and committed like that of the body.
    """

    def __init__(self) -> None:
        self._chain: list[MiddlewareFn] = []

    def __bool__(self) -> bool:
        return bool(self._chain)

    def add(self, fn: Any) -> None:
        """Add one, inside of the others.

        Raises:
            ConfigurationError: It is no async function of two arguments.
        """
        shown = getattr(fn, "__name__", repr(fn))
        hint = f"write async def {shown if shown.isidentifier() else 'around'}(work, call_next)"
        if not is_async(fn):
            raise refusal(f"middleware {shown} is no async function", hint=hint)
        try:
            inspect.signature(fn).bind(None, None)
        except TypeError:
            raise refusal(
                f"middleware {shown} does not take two arguments, the work and call_next", hint=hint
            ) from None
        self._chain.append(fn)

    async def around(self, work: WorkInfo, body: CallNext) -> Any:
        """Run an attempt inside of all of them. Returns what the outermost returns."""
        return await self._next(0, work, body)()

    def _next(self, place: int, work: WorkInfo, body: CallNext) -> CallNext:
        is_called = False

        async def call_next() -> Any:
            nonlocal is_called
            if is_called:
                problem = f"call_next of {work.target} was called twice: an attempt runs once, retry= repeats it"
                raise RuntimeError(problem)
            is_called = True
            if place == len(self._chain):
                return await body()
            return await self._chain[place](work, self._next(place + 1, work, body))

        return call_next
