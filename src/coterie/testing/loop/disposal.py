"""The end of a run: pending coroutines are discarded without running another line of them.

When Python collects a coroutine it closes it first, which runs its `finally` and `except` blocks. For the tasks of a
crashed node that would be wrong, and for all others a visible effect of a run that is over, at a moment that no seed
repeats. So every line that such a block would run raises before it runs: by `sys.monitoring` where available (3.12),
else by a trace function that leaves each frame as it is entered.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import types
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_STDLIB = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 compared with code objects, which have texts
_SITE = f"{os.sep}site-packages{os.sep}"


class _Over(BaseException):
    """Raised to leave a frame that must not run."""


def discard(works: Iterable[Any]) -> None:
    """Close coroutines, in order, silently, and without running the rest of them."""
    unraisable = sys.unraisablehook
    sys.unraisablehook = _ignore
    try:
        if sys.version_info >= (3, 12):
            _close_unseen(works)
        else:
            _close_frames(works)
    finally:
        sys.unraisablehook = unraisable


def _ignore(unraisable: object) -> None:
    """Ignore what discarded frames raise."""


if sys.version_info >= (3, 12):

    def _close_unseen(works: Iterable[Any]) -> None:
        with _no_line_runs():
            for work in works:
                with contextlib.suppress(BaseException):
                    work.close()

    @contextlib.contextmanager
    def _no_line_runs() -> Iterator[None]:
        watch = sys.monitoring
        tool = next(each for each in (4, 3, 5, 2) if watch.get_tool(each) is None)
        watch.use_tool_id(tool, "coterie.testing")
        events = watch.events.LINE | watch.events.PY_START | watch.events.PY_THROW
        for event in (watch.events.LINE, watch.events.PY_START, watch.events.PY_THROW):
            watch.register_callback(tool, event, _leave)
        watch.set_events(tool, events)
        try:
            yield
        finally:
            watch.set_events(tool, 0)
            watch.free_tool_id(tool)


def _leave(code: types.CodeType, *_: object) -> None:
    # The standard library's own handlers do no harm, since the loop accepts nothing any more; and its weak references
    # must be released, or asyncio's registry of tasks fills with dead ones.
    name = code.co_filename
    if name != __file__ and (_SITE in name or not name.startswith((_STDLIB, "<frozen"))):
        raise _Over


def _close_frames(works: Iterable[Any]) -> None:
    for work in works:
        for each in reversed(_suspended(work)):
            _close_frame(each)


def _close_frame(suspended: Any) -> None:
    frame = getattr(suspended, "cr_frame", None) or getattr(suspended, "gi_frame", None)
    close = getattr(suspended, "close", None)
    if frame is None:  # a step of an async generator: closing it would leave the generator as it is
        frame = next((each.ag_frame for each in gc.get_referents(suspended) if _is_running(each)), None)
        close = partial(suspended.throw, GeneratorExit()) if hasattr(suspended, "throw") else None
    if frame is None or close is None:
        return
    tracer = sys.gettrace()
    sys.settrace(partial(_leave_frame, frame.f_code))
    try:
        with contextlib.suppress(BaseException):
            close()
    finally:
        sys.settrace(tracer)


def _leave_frame(code: types.CodeType, frame: types.FrameType, *_: object) -> None:
    if frame.f_code is code:
        raise _Over  # at the entry of a frame this leaves it at once, past all its handlers


def _is_running(thing: object) -> bool:
    return isinstance(thing, types.AsyncGeneratorType) and thing.ag_frame is not None


def _suspended(work: object) -> list[object]:
    """Everything suspended inside `work`, outermost first: what it awaits, and its open context managers."""
    found: list[object] = []
    seen: set[int] = set()
    queue: deque[object] = deque([work])
    while queue:
        thing = queue.popleft()
        if id(thing) not in seen:
            seen.add(id(thing))
            if not isinstance(thing, _HOLDERS):
                found.append(thing)
            queue.extend(each for each in gc.get_referents(thing) if isinstance(each, _FOLLOWED))
    return found


async def _generator() -> Any:
    yield  # pragma: no cover


_made = _generator()
_step, _aclose = _made.__anext__(), _made.aclose()
_WAITING = (types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType, type(_step), type(_aclose))
_step.close()
_aclose.close()
# The objects that hold them: the `__exit__` of an open `with`, exit stacks, and the wrapper that `__await__` returns.
_HOLDERS = (
    types.MethodType,
    contextlib._GeneratorContextManager,
    contextlib._AsyncGeneratorContextManager,
    contextlib.ExitStack,
    contextlib.AsyncExitStack,
    deque,
    tuple,
)
_FOLLOWED = (*_WAITING, *_HOLDERS)
