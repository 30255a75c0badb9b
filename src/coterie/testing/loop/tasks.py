"""The loop's own tasks, futures and handles: cheap, and with hashes that repeat.

asyncio keeps tasks in sets: `TaskGroup` cancels its children in the order of one, `asyncio.wait` returns two. By
default that order follows memory addresses, which differ from run to run; here it follows the order of creation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.loop.nodes import Node

T = TypeVar("T")


class SimTask(asyncio.Task[T], Generic[T]):
    """A task that knows its node, and whose hash is its number."""

    __slots__ = ("_serial", "node")

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        *,
        loop: SimLoop,
        serial: int,
        node: Node,
        name: object,
        context: Context | None,
    ) -> None:
        # Before the rest: asyncio's own initialiser hashes the task to register it.
        self._serial = serial
        self.node = node
        super().__init__(work, loop=loop, name=f"task-{serial}" if name is None else str(name), context=context)

    def __hash__(self) -> int:
        return self._serial


class SimFuture(asyncio.Future[T], Generic[T]):
    """A future whose hash is its number."""

    __slots__ = ("_serial",)

    def __init__(self, *, loop: SimLoop, serial: int) -> None:
        self._serial = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._serial


class SimHandle(asyncio.Handle):
    """A callback, the context to run it in, and the node it belongs to.

    The attributes are those of `asyncio.Handle`, set here directly: its initialiser costs more than all the rest
    of a step.
    """

    __slots__ = ("node",)
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context
    _loop: SimLoop
    _repr: str | None
    _source_traceback: None

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: SimLoop, context: Context, node: Node
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._loop = loop
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self.node = node


class SimTimer(asyncio.TimerHandle):
    """A callback for later. The loop's heap orders timers by instant and number, not by comparing these."""

    __slots__ = ("node", "task")
    _callback: Callable[..., object]
    _args: tuple[Any, ...]
    _context: Context
    _loop: SimLoop
    _repr: str | None
    _source_traceback: None
    _when: float
    _scheduled: bool

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: Context,
        node: Node,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self._loop = loop
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = True
        self.node = node
        self.task = asyncio.current_task(loop)
        """The task that waits for it; None: no task does."""


AnyHandle = SimHandle | SimTimer


def label_of(callback: object) -> str:
    """A name for a callback that is the same in every run: without addresses or numbers of the process."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return owner.get_name()
    name = getattr(callback, "__qualname__", None)
    if name is not None:
        return str(name)
    inner = getattr(callback, "func", None)  # functools.partial
    return type(callback).__qualname__ if inner is None else label_of(inner)
