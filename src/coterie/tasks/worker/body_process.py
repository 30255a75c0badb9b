"""What runs in a process of the pool: it reads which body to run, imports the function, runs it and says how it ended.

main thread:    import ─▶ body ─▶ its end is sent ─▶ the next one
second thread:  reads: a body, a cancellation; at the end of the runner it ends the process at once
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import sys
import threading  # noqa: TID251 the process has no loop: one thread reads while the other one runs a body
from contextlib import suppress
from contextvars import copy_context
from importlib.machinery import SourceFileLoader
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from coterie.entities.calls.wire import described
from coterie.errors import CoterieError
from coterie.kernel.context import Cancellation, ClusterContext, enter, enter_progress, enter_thread
from coterie.kernel.ids import MessageId
from coterie.kernel.retry import Discard, Snooze
from coterie.tasks.task import Task
from coterie.tasks.worker import processes
from coterie.tasks.worker.body_frames import HEAD_BYTES, BodyEnded, BodyProgress, CancelBody, RunBody, decode, pack

if TYPE_CHECKING:
    from types import ModuleType

    from coterie.tasks.definition import TaskType
    from coterie.tasks.worker.body_frames import BodyFrame, BodyPlace

_MAIN = "__mp_main__"
"""The name under which a program that was started as a file is imported, as `multiprocessing` does."""
_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    """Run bodies until the other end of the socket is closed."""
    processes.is_body_process = True
    BodyRunner(socket.socket(fileno=descriptor)).run()


class BodyRunner:
    """Runs bodies, one after another.

    Args:
        wire: Leads to the runner.
    """

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire
        self._sending = threading.Lock()  # bodies may report progress from threads of their own
        self._bodies: SimpleQueue[RunBody] = SimpleQueue()
        self._cancellation = Cancellation()
        self._found: dict[tuple[BodyPlace, str], TaskType] = {}

    def run(self) -> None:
        """Run until the process is ended."""
        for each in (signal.SIGINT, signal.SIGTERM):  # meant for the runner, which lets bodies end
            signal.signal(each, _ignore)
        _end_with_parent()
        threading.Thread(target=self._read, name="coterie-body-reader", daemon=True).start()
        while True:
            ended = self._ended(self._bodies.get())
            for stream in (sys.stdout, sys.stderr):  # else what a body prints would wait for a full buffer
                with suppress(OSError, ValueError):
                    stream.flush()
            self._send(ended)

    def _ended(self, body: RunBody) -> BodyEnded:
        """Run a body to its end."""
        context = copy_context()
        try:
            task = self._task(body)
        except BaseException as error:  # noqa: BLE001 what the program's module raises
            return _failed(error, is_retried=True)
        try:
            return context.run(self._returned, body, task)
        except Snooze as snooze:
            return BodyEnded("snoozed", delay_s=snooze.delay_s)
        except Discard as discard:
            return BodyEnded("discarded", text=discard.why)
        except BaseException as error:  # noqa: BLE001 it is the error of the attempt, SystemExit too
            declared = task.encode_failure(error)
            if declared is not None:
                return BodyEnded("declared", declared)
            return _failed(error, is_retried=task.retry.retries(error))

    def _returned(self, body: RunBody, task: TaskType) -> BodyEnded:
        enter_thread(self._cancellation)
        enter_progress(self._progress)
        enter(
            ClusterContext(
                runner_id=body.runner,
                name=body.task,
                message_id=MessageId(body.job),
                key=body.key,
                attempt=body.attempt,
                trace_id=body.trace_id,
            )
        )
        args, kwargs = task.decode(body.payload)
        return BodyEnded("returned", task.encode_reply(task.fn(*args, **kwargs)))

    def _progress(self, done: float, total: float | None, note: str) -> None:
        self._send(BodyProgress(done, total, note))

    def _task(self, body: RunBody) -> TaskType:
        found = self._found.get((body.place, body.task))
        if found is None:
            found = self._found[body.place, body.task] = _task_of(_module_of(body.place), body.task)
        return found

    # The wire

    def _send(self, frame: BodyFrame) -> None:
        with self._sending:
            self._wire.sendall(pack(frame))

    def _read(self) -> None:
        try:
            while True:
                frame = decode(self._receive(int.from_bytes(self._receive(HEAD_BYTES), "big")))
                if isinstance(frame, RunBody):
                    self._cancellation = Cancellation()
                    self._bodies.put(frame)
                elif isinstance(frame, CancelBody):
                    self._cancellation.is_set = True
        finally:
            os._exit(1)  # the runner is gone, or has closed the socket: nothing of the body counts any more

    def _receive(self, size: int) -> bytes:
        parts = []
        while size:
            part = self._wire.recv(min(size, 2**20))
            if not part:
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _failed(error: BaseException, *, is_retried: bool) -> BodyEnded:
    name, _, rest = described(error).partition(": ")
    text, _, traceback = rest.partition("\n")
    problem = error.message if isinstance(error, CoterieError) else text
    return BodyEnded("failed", text=problem, type_name=name, traceback=traceback, is_retried=is_retried)


def _module_of(place: BodyPlace) -> ModuleType:
    """The module of a task, imported once."""
    name = place.module or _MAIN
    if name in sys.modules:
        return sys.modules[name]
    if place.module and (not place.file or importlib.util.find_spec(name) is not None):
        return importlib.import_module(name)  # noqa: TID251 the user's program
    loader = SourceFileLoader(name, place.file)
    spec = importlib.util.spec_from_file_location(name, place.file, loader=loader)
    assert spec is not None, "it has a loader"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _task_of(module: ModuleType, name: str) -> TaskType:
    for value in vars(module).values():
        if isinstance(value, Task) and value.type.name == name:
            return value.type
    raise LookupError(
        f'module {module.__name__} has no task {name!r} at its top level: a task with pool="process" is found there by '
        "its module and its name; define it where its function is"
    )


def _ignore(_: int, __: Any) -> None:
    """A signal to the whole group of processes."""


def _end_with_parent() -> None:
    """Let the kernel end this process with the runner, even if a body holds the interpreter (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
