"""Brings the frames of jobs to the holder of a queue's seat and to runners, in this process or another.

    sender ─┐                         ┌─▶ holder (`HolderPort`)
            ├─▶ JobExchange ─ frame ──┤                            here: a call; elsewhere: `Route.JOB`
    holder ─┘                         └─▶ worker (`WorkerPort`)

Promise:
    None: every frame is only a hint. What is lost is found in storage, by the sweeps of holders and runners.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from coterie.errors import CoterieError, MalformedMessage
from coterie.kernel.service import Tasks
from coterie.ownership.directory import peer_of
from coterie.tasks.frames import (
    LOOK,
    NOT_MINE,
    Assignment,
    EditJob,
    JobCancel,
    JobQuestion,
    JobsOver,
    JobsSent,
    QueueChanged,
    SlotsQuestion,
    decode,
    decode_slots,
    encode,
)
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.ownership.directory import Directory
    from coterie.storage.contracts.jobs import JobHead
    from coterie.storage.interface import RunnerRow
    from coterie.tasks.frames import Frame, Slots
    from coterie.transport.interface import Request, Transport
    from coterie.transport.requests import Routes

_CONNECT_S = 1.0
"""How long a frame waits for its connection: by then a sweep has found what it says."""
_REFRESH_S = 0.05
"""Between two reads of a directory that was wrong."""
_WAITING_MOST = 1_000
"""Frames that wait for the connection to one runner; further ones are dropped."""


class WorkerPort(Protocol):
    """What runs jobs on this runner."""

    def assign(self, holder: str, frame: Assignment, /) -> None:
        """Jobs were claimed for this runner, by the holder of their seat."""
        ...

    def look(self, frame: JobCancel, /) -> None:
        """Look at the claim of a job now."""
        ...

    def slots(self, holder: str, question: SlotsQuestion, /) -> Slots:
        """What this runner can take. For 5 s it also reports changes to the seat, by `JobsOver` without jobs."""
        ...


class HolderPort(Protocol):
    """What holds seats of queues on this runner. Frames about seats that it does not hold are dropped."""

    def holds(self, seat: str, /) -> bool:
        """Whether it holds a seat."""
        ...

    def sent(self, frame: JobsSent, /) -> None:
        """Jobs were stored, or made ready again."""
        ...

    def over(self, runner: str, frame: JobsOver, /) -> None:
        """Jobs of a runner are over, or what it can take has changed."""
        ...

    def changed(self, frame: QueueChanged, /) -> None:
        """The row of a queue has changed."""
        ...

    def wait(self, question: JobQuestion, answer: Callable[[bytes], None], /) -> None:
        """Call `answer` once: with the reply when the job is over, with `NOT_MINE` or `LOOK`."""
        ...

    def forget(self, question: JobQuestion, answer: Callable[[bytes], None], /) -> None:
        """No caller waits for this answer any more."""
        ...


class EditorPort(Protocol):
    """What sends edited jobs of the program of this runner."""

    async def edit(self, frame: EditJob, /) -> str | None:
        """The id of the new job; None: its task is unknown here."""
        ...


class ExchangingProcess(Protocol):
    """The process whose frames are exchanged: a client or a runner."""

    @property
    def incarnation(self) -> str: ...
    @property
    def directory(self) -> Directory: ...


class JobExchange:
    """Sends and receives the frames of one process.

    Args:
        here: The process.
    """

    def __init__(self, here: ExchangingProcess) -> None:
        self.worker: WorkerPort | None = None
        """Runs jobs; None: this process runs none."""
        self.holder: HolderPort | None = None
        """Holds seats of queues; None: this process holds none."""
        self.editor: EditorPort | None = None
        """Sends edited jobs; None: this process has no tasks."""
        self._here = here
        self._transport: Transport | None = None
        self._tasks = Tasks("jobs/bring")
        self._connecting: dict[str, list[bytes]] = {}
        """Frames that wait for the connection to a runner."""
        self._seeking: dict[str, list[Frame]] = {}
        """Frames that wait until the holder of a seat is known."""
        self._sent: dict[str, list[JobsSent]] = {}
        """What was sent in this turn of the loop, by seat: it goes in one frame."""
        self._is_refreshing = False

    # Lifecycle

    def join(self, transport: Transport, routes: Routes | None = None) -> None:
        """Send frames over this transport from now on; a runner also receives them on its routes."""
        self._transport = transport
        if routes is not None:
            routes.register(Route.JOB, self)

    def part(self) -> None:
        """This runner has lost its membership: frames are dropped until the next `join`."""
        self._transport = None

    async def stop(self) -> None:
        """Drop what waits for a connection, or for a holder."""
        await self._tasks.stop()

    # Notices

    def tell(self, seat: str, frame: Frame) -> None:
        """Send a frame to the holder of a seat, connecting first if need be. It may be lost."""
        if type(frame) is not JobsSent:
            self._tell_holder(seat, frame)
            return
        waiting = self._sent.get(seat)
        if waiting is not None:
            waiting.append(frame)
            return
        self._sent[seat] = [frame]
        if len(self._sent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def tell_runner(self, runner: str, frame: Frame) -> None:
        """Send a frame to a runner by its incarnation. It may be lost."""
        if runner == self._here.incarnation:
            self._receive(runner, frame)
        elif (row := self._here.directory.runner(runner)) is not None:
            self._send(row, encode(frame))

    def _flush(self) -> None:
        sent, self._sent = self._sent, {}
        for seat, frames in sent.items():
            self._tell_holder(seat, frames[0] if len(frames) == 1 else merged(seat, frames))

    def _tell_holder(self, seat: str, frame: Frame) -> None:
        holder = self._here.directory.holder(seat)
        if holder is not None:
            self.tell_runner(holder.id, frame)
        elif seat in self._seeking:
            if len(self._seeking[seat]) < _WAITING_MOST:
                self._seeking[seat].append(frame)
        elif self._transport is not None:
            self._seeking[seat] = [frame]
            self._tasks.spawn(self._seek(seat), name=f"find the holder of {seat}")

    async def _seek(self, seat: str) -> None:
        frames = self._seeking[seat]
        try:
            with contextlib.suppress(CoterieError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    await self._here.directory.refresh()
        finally:
            del self._seeking[seat]
        holder = self._here.directory.holder(seat)
        if holder is not None:
            for frame in frames:
                self.tell_runner(holder.id, frame)

    def _send(self, runner: RunnerRow, body: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        waiting = self._connecting.get(runner.id)
        if waiting is not None:
            if len(waiting) < _WAITING_MOST:
                waiting.append(body)
        elif not transport.notify(peer_of(runner), Route.JOB, body) and not transport.connected(peer_of(runner)):
            self._connecting[runner.id] = [body]
            self._tasks.spawn(self._connect(transport, runner), name=f"connect to {runner.id}")

    async def _connect(self, transport: Transport, runner: RunnerRow) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                await transport.connect(peer_of(runner))
        except (CoterieError, TimeoutError):
            self._refresh()
        finally:
            waiting = self._connecting.pop(runner.id)
        for body in waiting:
            transport.notify(peer_of(runner), Route.JOB, body)

    def _refresh(self) -> None:
        """The directory was wrong: read it again, soon."""
        if self._transport is not None and not self._is_refreshing:
            self._is_refreshing = True
            self._tasks.spawn(self._read_directory(), name="refresh")

    async def _read_directory(self) -> None:
        try:
            with contextlib.suppress(CoterieError, TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    await self._here.directory.refresh()
            await asyncio.sleep(_REFRESH_S)
        finally:
            self._is_refreshing = False

    # Requests

    async def ask_holder(self, seat: str, question: JobQuestion, *, within_s: float) -> bytes:
        """Ask the holder of a seat for the end of a job.

        Returns:
            The reply as stored; `NOT_MINE`: the seat has no holder, or another one; `LOOK`: read storage. What is not
            answered within the time is `LOOK`, too.
        """
        directory, transport = self._here.directory, self._transport
        holder = directory.holder(seat)
        if holder is None or transport is None:
            self._refresh()
            return NOT_MINE
        if holder.id == self._here.incarnation:
            return NOT_MINE if self.holder is None else await self._wait_here(self.holder, question, within_s=within_s)
        target = f"the end of job {question.id}"
        try:
            answer = await transport.request(
                peer_of(holder), Route.JOB, encode(question), within_s=within_s, target=target
            )
        except CoterieError as error:
            answer = LOOK if getattr(error, "sent", True) else NOT_MINE
        if answer.startswith(NOT_MINE):
            self._refresh()
        return answer

    async def ask_slots(self, runner: str, question: SlotsQuestion, *, within_s: float) -> Slots | None:
        """Ask a runner what it can take. None: it did not answer, or runs no jobs."""
        if runner == self._here.incarnation:
            return None if self.worker is None else self.worker.slots(runner, question)
        row, transport = self._here.directory.runner(runner), self._transport
        if row is None or transport is None:
            return None
        try:
            body = await transport.request(
                peer_of(row), Route.JOB, encode(question), within_s=within_s, target="what a runner can take"
            )
        except CoterieError:
            return None
        return decode_slots(body)

    async def _wait_here(self, holder: HolderPort, question: JobQuestion, *, within_s: float) -> bytes:
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answer(body: bytes) -> None:
            if not future.done():
                future.set_result(body)

        holder.wait(question, answer)
        try:
            async with asyncio.timeout(within_s):
                return await future
        except TimeoutError:
            return LOOK
        finally:
            if not future.done() or future.cancelled():
                holder.forget(question, answer)

    # What peers send (`transport.interface.RequestHandler`)

    def on_request(self, request: Request) -> None:
        """Answer a question: now, or when the job is over."""
        frame = decode(request.body)
        if isinstance(frame, JobQuestion):
            if self.holder is None:
                request.reply(NOT_MINE)
            else:
                self.holder.wait(frame, request.reply)
        elif isinstance(frame, SlotsQuestion):
            request.reply(b"" if self.worker is None else encode(self.worker.slots(request.peer, frame)))
        elif isinstance(frame, EditJob):
            self._tasks.spawn(self._edit(request, frame), name=f"edit {frame.id}")
        else:
            request.fail(*MalformedMessage(what="a question about jobs", problem="it is unknown here").to_wire())

    async def _edit(self, request: Request, frame: EditJob) -> None:
        try:
            sent = None if self.editor is None else await self.editor.edit(frame)
        except CoterieError as error:
            request.fail(*error.to_wire())
        else:
            request.reply((sent or "").encode())

    def on_cancel(self, request: Request) -> None:
        """No caller waits for the answer any more."""
        frame = decode(request.body)
        if isinstance(frame, JobQuestion) and self.holder is not None:
            self.holder.forget(frame, request.reply)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Pass a frame on."""
        del route, headers
        frame = decode(body)
        if isinstance(frame, JobsSent) and not (self.holder is not None and self.holder.holds(frame.seat)):
            self._pass_on(peer, frame)
        elif frame is not None:
            self._receive(peer, frame)

    def _pass_on(self, sender: str, frame: JobsSent) -> None:
        """A client took us for the holder of a seat: it learns of a move only when it asks."""
        directory = self._here.directory
        holder = directory.holder(frame.seat)
        if holder is not None and holder.id != self._here.incarnation and directory.runner(sender) is None:
            self.tell_runner(holder.id, frame)

    def _receive(self, sender: str, frame: Frame) -> None:
        holder, worker = self.holder, self.worker
        match frame:
            case Assignment() if worker is not None:
                worker.assign(sender, frame)
            case JobsOver() if holder is not None:
                holder.over(sender, frame)
            case JobsSent() if holder is not None:
                holder.sent(frame)
            case JobCancel() if worker is not None:
                worker.look(frame)
            case QueueChanged() if holder is not None:
                holder.changed(frame)
            case _:  # a question, which is no notice; or this process is not what the sender took it for
                pass


def merged(seat: str, frames: list[JobsSent]) -> JobsSent:
    """Several hints as one."""
    heads: list[JobHead] = []
    for each in frames:
        heads += each.heads
    waits = [each.due_in_s for each in frames if each.due_in_s is not None]
    return JobsSent(seat, tuple(heads), min(waits, default=None))
