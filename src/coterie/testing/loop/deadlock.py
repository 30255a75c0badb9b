"""Errors for a run that cannot continue, with what every task waits for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.testing.loop.trace import moment

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from coterie.testing.loop.tasks import SimTask

_SHOWN = 100


class Deadlock(RuntimeError):
    """Nothing can ever run again, and the run is not finished."""


class StepLimit(RuntimeError):
    """The run takes more steps than it may: most likely something spins."""


def deadlock(tasks: Iterable[SimTask[Any]], *, now_ns: int) -> Deadlock:
    """The error that lists what every task waits for."""
    return Deadlock(
        f"nothing can ever run again at {moment(now_ns)}: no callback is ready and no timer is set\n{waits(tasks)}"
    )


def waits(tasks: Iterable[SimTask[Any]]) -> str:
    """One line per unfinished task: node, name, and where it waits."""
    rows = [(_place(task), task.get_name(), _wait(task)) for task in tasks if not task.done()]
    if not rows:
        return "  no task is left"
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"  {node:{widths[0]}}  {name:{widths[1]}}  {wait}" for node, name, wait in rows[:_SHOWN]]
    return "\n".join(lines + ([f"  and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []))


def _place(task: SimTask[Any]) -> str:
    state = task.node.process.state if task.node.state == "runs" else task.node.state
    return task.node.label if state == "runs" else f"{task.node.label} ({state})"


def _wait(task: SimTask[Any]) -> str:
    if getattr(task.get_coro(), "cr_running", False):
        return "runs"
    frames: list[FrameType] = []
    awaited: object = task.get_coro()
    while (inner := _awaited(awaited)) is not None:
        if (frame := _frame(awaited)) is not None:
            frames.append(frame)
        awaited = inner
    return f"{_where(frames)}{_for(task)}"


def _frame(awaitable: object) -> FrameType | None:
    for name in ("cr_frame", "gi_frame", "ag_frame"):
        frame: FrameType | None = getattr(awaitable, name, None)
        if frame is not None:
            return frame
    return None


def _awaited(awaitable: object) -> object:
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        inner: object = getattr(awaitable, name, None)
        if inner is not None:
            return inner
    return None


def _where(frames: list[FrameType]) -> str:
    """The innermost place in code that is not asyncio's, and what it calls there."""
    if not frames:
        return "has not begun"
    inner = frames[-1]
    place = next((each for each in reversed(frames) if not _is_asyncio(each)), inner)
    called = "" if place is inner else f", in {inner.f_code.co_qualname}"
    return f"waits in {place.f_code.co_qualname}, {Path(place.f_code.co_filename).name}:{place.f_lineno}{called}"


def _is_asyncio(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "asyncio"


def _for(task: SimTask[Any]) -> str:
    """The task that this one waits for, if it waits for one."""
    waiter = getattr(task, "_fut_waiter", None)
    return f", for task {waiter.get_name()}" if isinstance(waiter, asyncio.Task) else ""
