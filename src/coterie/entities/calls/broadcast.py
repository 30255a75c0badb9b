"""Broadcasts: call all active entities of a type in the cluster, and collect their replies [F8]."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coterie.entities.calls.wire import (
    MALFORMED,
    MARK,
    Broadcast,
    BroadcastReply,
    decode_broadcast,
    decode_broadcast_reply,
    encode,
    read_failure,
    read_marked,
)
from coterie.entities.host.work import LATER, Work
from coterie.errors import CoterieError, MalformedMessage, PersistenceError, RunnerUnavailable
from coterie.kernel.service import Tasks
from coterie.ownership.directory import peer_of
from coterie.transport.interface import Request, Route
from coterie.transport.protocol import FailureFrame, pack_error, read_error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from coterie.entities.calls.client import CallClient
    from coterie.entities.definition import EntityType
    from coterie.entities.rpc import Rpc
    from coterie.storage.interface import RunnerRow

T = TypeVar("T")

_HANDLERS_SHARE = 0.9
"""The handlers' share of the caller's timeout: a slow handler should be an error of its own, not a silent runner."""


@dataclass
class Replies(Generic[T]):
    """The replies to a broadcast, by entity id."""

    values: dict[str, T] = field(default_factory=dict)
    """The results."""
    errors: dict[str, Exception] = field(default_factory=dict)
    """The errors of handlers, and of calls that were refused."""
    silent: list[str] = field(default_factory=list)
    """The names of runners that did not answer, or not completely: the outcome of their entities is unknown."""


class Broadcasts:
    """Sends broadcasts, and serves incoming ones.

    Args:
        calling: Sends the calls of this process.
    """

    def __init__(self, calling: CallClient) -> None:
        self._calling = calling
        self._tasks = Tasks("broadcasts")
        self._answering: dict[Request, asyncio.Task[None]] = {}

    async def stop(self) -> None:
        """Stop all broadcasts in progress."""
        await self._tasks.stop()

    # Sending

    async def ask(self, rpc: Rpc, entity_type: EntityType[Any], payload: bytes, within_s: float) -> Replies[Any]:
        """Call all active entities, and wait for all replies or until the time is up."""
        trace_id, chain = self._calling.lineage(self._calling.ids.draw())
        broadcast = Broadcast(entity_type.name, rpc.name, payload, within_s, trace_id, chain)
        replies: Replies[Any] = Replies()
        async with asyncio.TaskGroup() as group:
            for runner in await self._runners(entity_type.group):
                group.create_task(self._ask(runner, broadcast, rpc, replies))
        replies.silent.sort()
        return replies

    async def _runners(self, group: str) -> list[RunnerRow]:
        """The runners that may have entities, by the tables now; by the last read if they cannot be read."""
        directory = self._calling.here.directory
        try:
            await directory.refresh()
        except PersistenceError:
            if not directory.runners:
                raise
        return [runner for runner in directory.runners if group in runner.groups]

    async def _ask(self, runner: RunnerRow, broadcast: Broadcast, rpc: Rpc, replies: Replies[Any]) -> None:
        try:
            async with asyncio.timeout(broadcast.within_s):
                async for reply in self._answers(runner, broadcast, rpc):
                    _sort_in(reply, rpc, replies)
        except (CoterieError, TimeoutError):
            replies.silent.append(runner.name)

    async def _answers(self, runner: RunnerRow, broadcast: Broadcast, rpc: Rpc) -> AsyncGenerator[BroadcastReply, None]:
        calling = self._calling
        if runner.id == calling.here.incarnation:
            async for reply in self._here(broadcast):
                yield reply
            return
        items = calling.open_transport().stream(
            peer_of(runner),
            Route.BROADCAST,
            encode(broadcast),
            within_s=broadcast.within_s,
            target=f"a broadcast of {rpc.what}",
        )
        try:
            async for item in items:
                yield decode_broadcast_reply(item)
        finally:
            await items.aclose()

    # Serving

    def on_request(self, request: Request) -> None:
        """Call all active entities of this runner."""
        try:
            broadcast = decode_broadcast(request.body)
        except MALFORMED as error:
            request.fail(*MalformedMessage(what="a broadcast", problem=str(error)).to_wire())
            return
        task = self._tasks.spawn(self._answer(request, broadcast), name=f"{broadcast.entity_type}.{broadcast.method}")
        self._answering[request] = task
        task.add_done_callback(lambda _: self._answering.pop(request, None))

    def on_cancel(self, request: Request) -> None:
        """The caller no longer waits."""
        if (task := self._answering.get(request)) is not None:
            task.cancel()

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Ignored: broadcasts are requests."""

    async def _answer(self, request: Request, broadcast: Broadcast) -> None:
        try:
            async for reply in self._here(broadcast):
                await request.send(encode(reply))
        except RunnerUnavailable:
            return  # the reader is gone
        request.end()

    async def _here(self, broadcast: Broadcast) -> AsyncIterator[BroadcastReply]:
        """The replies of the entities of this process, as they come."""
        host = self._calling.host
        if host is None:
            return
        answers: asyncio.Queue[BroadcastReply | None] = asyncio.Queue()  # bounded by the limit of active entities
        works = [self._work(broadcast, each, answers) for each in host.residents(broadcast.entity_type)]
        for work in works:
            host.deliver(work)
        try:
            for _ in works:
                if (reply := await answers.get()) is not None:
                    yield reply
        finally:
            for work in works:
                if not work.is_answered:
                    host.cancel(work)

    def _work(
        self, broadcast: Broadcast, entity_id: str, answers: asyncio.Queue[BroadcastReply | None]
    ) -> BroadcastCall:
        within_s = broadcast.within_s * _HANDLERS_SHARE
        return BroadcastCall(
            entity_type=broadcast.entity_type,
            entity_id=entity_id,
            method=broadcast.method,
            payload=broadcast.payload,
            deadline_s=asyncio.get_running_loop().time() + within_s,
            within_s=within_s,
            message_id=self._calling.ids.draw(),
            chain=broadcast.chain,
            trace_id=broadcast.trace_id,
            answers=answers,
        )


class BroadcastCall(Work, eq=False):
    """The call of one entity in a broadcast."""

    answers: asyncio.Queue[BroadcastReply | None] = LATER
    is_answered: bool = False

    def reply(self, body: bytes) -> None:
        self._answer(BroadcastReply(self.entity_id, body))

    def refuse(self, error: CoterieError) -> None:
        code, facts = pack_error(error)
        self._answer(BroadcastReply(self.entity_id, b"", code, facts))

    def not_mine(self) -> None:
        """It was deactivated meanwhile, and is no longer active here."""
        self._answer(None)

    def _answer(self, reply: BroadcastReply | None) -> None:
        self.is_answered = True
        self.answers.put_nowait(reply)


def _sort_in(reply: BroadcastReply, rpc: Rpc, replies: Replies[Any]) -> None:
    if reply.code:
        replies.errors[reply.entity_id] = read_error(FailureFrame(0, reply.code, reply.facts))
    elif reply.body[:1] == bytes([MARK]):
        failure = read_marked(reply.body)
        replies.errors[reply.entity_id] = read_failure(failure if isinstance(failure, bytes) else b"", rpc.errors)
    else:
        try:
            replies.values[reply.entity_id] = rpc.decode_result(reply.body)
        except MalformedMessage as error:
            replies.errors[reply.entity_id] = error
