"""Serves clients that do not have the program: calls by name run as if the runner's own program made them."""

from __future__ import annotations

import asyncio
import heapq
from itertools import islice
from typing import TYPE_CHECKING, Any

from coterie.entities.calls.by_name_client import (
    ActiveEntities,
    ActiveEntity,
    Invoke,
    Invoked,
    ListActive,
    ListRunning,
    RunningMessages,
    decode_question,
    encode,
)
from coterie.entities.calls.wire import MALFORMED, pack_failure
from coterie.entities.reference import Call
from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable
from coterie.kernel.ids import EntityAddress
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.entities.calls.by_name_client import Question
    from coterie.entities.calls.client import TypedSender
    from coterie.entities.definition import EntityType
    from coterie.entities.host.activation import Resident
    from coterie.entities.host.host import Host
    from coterie.entities.rpc import Rpc
    from coterie.transport.interface import Request

_CALLS_MOST = 1_000
"""Limit of the calls by name in progress, to bound memory. They are for people; programs use references."""
_SHARE = 0.95
"""The call's share of the client's timeout: the call's own error should arrive before the client times out."""


class ByNameServer:
    """Handles requests on the question route.

    Args:
        host: Hosts the entities.
        types: The entity types of this program, by name.
        sender: Returns the sender of a type's calls, on behalf of this runner.

    Promise:
        Arguments are checked by the method's own types before anything is sent. A client that stops waiting ends only
        the wait, not a persisted message.
    """

    def __init__(
        self,
        host: Host,
        types: Mapping[str, EntityType[Any]],
        sender: Callable[[EntityType[Any]], TypedSender],
    ) -> None:
        self._host = host
        self._types = types
        self._sender = sender
        self._tasks = Tasks("inquiries")
        self._calls: dict[Request, asyncio.Task[None]] = {}

    def on_request(self, request: Request) -> None:
        """Answer from memory at once; a call when it has ended."""
        try:
            asked = decode_question(request.body)
        except MALFORMED as error:
            request.fail(*MalformedMessage(what="a question", problem=str(error)).to_wire())
            return
        if isinstance(asked, Invoke):
            self._begin(request, asked)
        else:
            request.reply(self._told(asked))

    def knows(self, entity_type: str, method: str) -> bool:
        """Whether the program of this runner has the method."""
        known = self._types.get(entity_type)
        return known is not None and method in known.rpcs

    async def answer(self, asked: Question, *, within_s: float) -> bytes:
        """The answer to a question of this process itself."""
        return encode(await self._invoke(asked, within_s)) if isinstance(asked, Invoke) else self._told(asked)

    def on_cancel(self, request: Request) -> None:
        """The client no longer waits."""
        task = self._calls.pop(request, None)
        if task is not None:
            task.cancel()

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Ignored: questions are requests."""

    async def stop(self) -> None:
        """Stop the calls in progress."""
        await self._tasks.stop()

    def _told(self, asked: ListActive | ListRunning) -> bytes:
        return encode(self._living(asked) if isinstance(asked, ListActive) else self._at_work(asked.most))

    # Calls by name

    def _begin(self, request: Request, asked: Invoke) -> None:
        if len(self._calls) >= _CALLS_MOST:
            name, target = self._host.name, f"{asked.entity_type}/{asked.entity_id}.{asked.method}"
            problem = f"{_CALLS_MOST:,} calls by name are under way there"
            request.fail(*RunnerUnavailable(runner=name, target=target, problem=problem, sent=False).to_wire())
            return
        self._calls[request] = self._tasks.spawn(self._answer(request, asked), name=f"call {asked.method}")

    async def _answer(self, request: Request, asked: Invoke) -> None:
        try:
            within_s = (request.until_s - asyncio.get_running_loop().time()) * _SHARE
            request.reply(encode(await self._invoke(asked, within_s)))
        except CoterieError as error:
            request.fail(*error.to_wire())
        finally:
            self._calls.pop(request, None)

    def call_of(self, asked: Invoke, *, within_s: float | None = None) -> tuple[Call[Any], TypedSender]:
        """The call that is asked for, its arguments checked, and what sends it.

        Raises:
            UnknownEntity: This program does not have the method.
            MalformedMessage: The arguments do not fit, or the method cannot be called so.
        """
        target = f"{asked.entity_type}/{asked.entity_id}.{asked.method}"
        entity_type = self._types.get(asked.entity_type)
        rpc = None if entity_type is None else entity_type.rpcs.get(asked.method)
        if entity_type is None or rpc is None:
            raise self._host.unknown(target, asked.entity_type)
        _refuse_unfit(asked, rpc, target)
        payload, sender = _payload(asked, rpc), self._sender(entity_type)
        call: Call[Any] = Call(EntityAddress(asked.entity_type, asked.entity_id), rpc, payload, sender, within_s)
        call.mark_sent()
        call.key, call.tags = asked.key, asked.tags
        return call, sender

    async def _invoke(self, asked: Invoke, within_s: float) -> Invoked:
        call, sender = self.call_of(asked, within_s=within_s)
        rpc = call.rpc
        try:
            if not asked.waits:
                message_id = await sender.send(call, at=asked.at, delay_s=asked.delay_s)
                return Invoked(message_id=str(message_id), persisted=rpc.persisted)
            return Invoked(result=rpc.encode_result(await sender.call(call)), persisted=rpc.persisted)
        except CoterieError:
            raise
        except Exception as error:  # noqa: BLE001 declared errors are a result; others are returned too
            return Invoked(failure=pack_failure(error, rpc.errors), persisted=rpc.persisted)

    # Active entities

    def _living(self, asked: ListActive) -> ActiveEntities:
        lives, known = self._host.lives(asked.entity_type), self._types.get(asked.entity_type)
        if asked.entity_id is not None:
            lives = {each: lives[each] for each in (asked.entity_id,) if each in lives}
        busiest = heapq.nlargest(asked.most, lives.values(), key=_calls)
        return ActiveEntities(
            lives=tuple(map(self._life, busiest)), total=len(lives), group=None if known is None else known.group
        )

    def _life(self, resident: Resident) -> ActiveEntity:
        hosted, work = resident.hosted, resident.current if resident.running else None
        is_idle = resident.rested_ns and not resident.running and not resident.is_kept
        idle_s = self._since_s(resident.rested_ns) if is_idle else None
        return ActiveEntity(
            id=resident.id,
            waiting=_calls(resident)[0],
            mailbox=hosted.type.mailbox,
            running=resident.running,
            method=None if work is None else work.method,
            running_s=None if work is None else self._since_s(work.began_ns),
            idle_s=idle_s,
            leaves_s=None if idle_s is None else max(0.0, hosted.max_idle_s - idle_s),
        )

    def _at_work(self, most: int) -> RunningMessages:
        stored = () if self._host.inbox is None else self._host.inbox.works.values()
        begun = (work for work in stored if work.has_begun and work.is_open)
        return RunningMessages(messages={work.message_id: self._since_s(work.began_ns) for work in islice(begun, most)})

    def _since_s(self, began_ns: int) -> float:
        return max(0.0, (self._host.clock.steady_ns() - began_ns) / 1e9)


def _calls(resident: Resident) -> tuple[int, int]:
    """The numbers of calls that wait and that run."""
    return 0 if resident.mailbox is None else len(resident.mailbox), resident.running


def _payload(asked: Invoke, rpc: Rpc) -> bytes:
    try:
        return rpc.arguments.from_json(asked.arguments)
    except MalformedMessage as error:
        hint = error.hint or "the call was not sent"
        raise MalformedMessage(what=error.what, problem=error.problem, hint=hint) from None


def _refuse_unfit(asked: Invoke, rpc: Rpc, target: str) -> None:
    """Refuse what the types of a program would have refused."""
    if rpc.is_stream:
        raise MalformedMessage(what=target, problem="it is a stream, and a call by name has one result")
    scheduled = asked.at is not None or asked.delay_s > 0
    if not rpc.persisted and (scheduled or asked.key is not None):
        given = "run later" if scheduled else "have a key"
        hint = "write persisted=True in its @rpc(…), or leave that out"
        raise MalformedMessage(what=target, problem=f"it is not persisted, and cannot {given}", hint=hint)
