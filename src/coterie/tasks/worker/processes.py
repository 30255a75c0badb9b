"""The pool of processes: bodies of tasks with `pool="process"` run there, one in each at a time.

    a body ─▶ an idle process, or a new one ─▶ its result
                     │
                     ├── cancelled: told by `current().cancelled`, ended after a grace
                     └── it crashed: the attempt has failed, the next one gets a new process

Processes begin anew (they are no forks), import the task's module by its name, and exchange bytes of the codec.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Protocol

from coterie.entities.persisted.outcome import read_reply
from coterie.errors import RemoteError, ShuttingDown
from coterie.kernel.context import report_progress
from coterie.kernel.retry import Discard, Snooze
from coterie.kernel.service import Tasks
from coterie.tasks.worker.body_frames import (
    HEAD_BYTES,
    BodyEnded,
    BodyProgress,
    CancelBody,
    RunBody,
    decode,
    pack,
    place_of,
)
from coterie.work.definition import refusal
from coterie.work.limits import settled
from coterie.work.occupants import GRACE_S

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable

    from coterie.settings import Settings
    from coterie.tasks.definition import TaskType
    from coterie.tasks.worker.attempt import JobAttempt

is_body_process = False
"""Whether this process runs bodies for a runner."""

_BEGIN = (
    "import json, sys; fileno = int(sys.argv[1]); sys.path[:], sys.argv[:] = map(json.loads, sys.argv[2:]); "
    "from coterie.tasks.worker.body_process import main; main(fileno)"
)
"""With the path and the arguments of this process: a program may read those when it is imported."""


class BodyProcesses(Protocol):
    """Where the bodies of tasks with `pool="process"` run."""

    async def run(self, task: TaskType, payload: bytes, attempt: JobAttempt, /) -> Any:
        """Run a body with these arguments. Returns its result, or raises its error.

        Promise:
            When it returns or raises, also if it is cancelled, the body has ended.
        """
        ...

    async def stop(self) -> None:
        """End all processes."""
        ...


class ErrorInProcess(RemoteError):
    """What a body in a process has raised."""

    is_retried: bool
    """Whether the policy of its task retries errors of its class."""


class BodyProcessDied(Exception):
    """A process has ended in the middle of a body. No exception of the program, so that its class decides nothing."""

    is_retried = True


def refuse_in_body_process(what: str) -> None:
    """Raise in a process of the pool: importing the program must not begin to run it."""
    if is_body_process:
        raise refusal(
            f'{what} is started where a task with pool="process" is run, when that imports the program',
            hint='write `if __name__ == "__main__":` before what starts it',
        )


class ProcessPool:
    """The processes of one runner. They start when they are needed, and stay until it stops.

    Args:
        settings: Of the runner. How many bodies run at once is decided by the slots of jobs.
    """

    def __init__(self, settings: Settings) -> None:
        self._most_bytes = settings.frame_limit
        self._tasks = Tasks("processes")
        self._idle: list[BodyProcess] = []
        self._all: dict[BodyProcess, None] = {}
        self._is_stopped = False

    async def run(self, task: TaskType, payload: bytes, attempt: JobAttempt, /) -> Any:
        """See `BodyProcesses.run`."""
        if self._is_stopped:
            raise ShuttingDown(what="the processes of tasks")
        place = place_of(task.fn, what=task.what)
        body = RunBody(
            place, task.name, payload, attempt.message_id, attempt.attempt, attempt.runner, attempt.key,
            attempt.trace_id,
        )  # fmt: skip
        process = self._rested() or await self._started()
        try:
            ended = await process.run(body)
        finally:
            if process.has_ended:
                self._all.pop(process, None)
            else:
                self._idle.append(process)
        return result_of(ended, task)

    async def stop(self) -> None:
        """End all processes."""
        self._is_stopped = True
        for process in self._all:
            process.close()
        await settled([process.listening for process in self._all], limit_s=GRACE_S)
        for process in self._all:
            process.kill()
        await settled([process.listening for process in self._all], limit_s=GRACE_S)
        await self._tasks.stop()

    def _rested(self) -> BodyProcess | None:
        """A process that is idle, and has not ended meanwhile."""
        while self._idle:
            process = self._idle.pop()
            if not process.has_ended:
                return process
            self._all.pop(process, None)
        return None

    async def _started(self) -> BodyProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            given = str(theirs.fileno()), json.dumps(sys.path), json.dumps(sys.argv)
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _BEGIN, *given, pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        made = BodyProcess(process, reader, writer, self._tasks)
        self._all[made] = None
        return made


class BodyProcess:
    """One process of the pool.

    Args:
        process: It.
        reader: What it sends.
        writer: Leads to it.
        tasks: Runs what listens to it.
    """

    def __init__(
        self, process: Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: Tasks
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._over: asyncio.Future[BodyEnded | None] | None = None
        """The end of the body that runs; None as its result: the process has ended."""
        self._report: Callable[[float, float | None, str], None] | None = None
        self.has_ended = False
        self.listening = tasks.spawn(self._listen(), name="listen to a process")

    async def run(self, body: RunBody) -> BodyEnded:
        """Run a body to its end. If this is cancelled, that is told, and the process ended after a grace."""
        loop = asyncio.get_running_loop()
        over = self._over = loop.create_future()
        self._report = report_progress()
        if self.has_ended:
            over.set_result(None)
        else:
            self._writer.write(pack(body))
        cancelled: asyncio.CancelledError | None = None
        killing: asyncio.TimerHandle | None = None
        while not over.done():
            try:
                await settled([over])
            except asyncio.CancelledError as error:
                if cancelled is None:
                    self._writer.write(pack(CancelBody()))
                    killing = loop.call_later(GRACE_S, self.kill)
                cancelled = cancelled or error
        if killing is not None:
            killing.cancel()
        self._over = self._report = None
        ended: BodyEnded | None = over.result()
        if cancelled is not None:
            raise cancelled
        if ended is None:
            raise BodyProcessDied(f"the process that ran it ended before it did: {self._how()}")
        return ended

    def close(self) -> None:
        """Let it end: whatever it runs does not count any more."""
        self._writer.close()

    def kill(self) -> None:
        """End it now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _listen(self) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    size = int.from_bytes(await self._reader.readexactly(HEAD_BYTES), "big")
                    frame = decode(await self._reader.readexactly(size))
                    if isinstance(frame, BodyProgress) and self._report is not None:
                        self._report(frame.done, frame.total, frame.note)
                    elif isinstance(frame, BodyEnded):
                        self._tell(frame)
            self.close()  # if it has only closed its end
            await self._process.wait()
        finally:
            self.has_ended = True
            self._tell(None)

    def _tell(self, ended: BodyEnded | None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(ended)

    def _how(self) -> str:
        code = self._process.returncode or 0
        if code >= 0:
            return f"exit code {code}"
        return f"signal {-code} ({signal.Signals(-code).name})" if -code in set(signal.Signals) else f"signal {-code}"


def result_of(ended: BodyEnded, task: TaskType) -> Any:
    """The result of a body that has ended in a process; raises its error."""
    match ended.how:
        case "returned" | "declared":
            return read_reply(ended.reply, task)
        case "snoozed":
            raise Snooze(ended.delay_s)
        case "discarded":
            raise Discard(ended.text)
    error = ErrorInProcess(
        type_name=ended.type_name, problem=ended.text, remote_traceback=ended.traceback, is_retried=ended.is_retried
    )
    raise error
