"""Calls by name, for clients that do not have the entity classes (the CLI), and their wire types.

A client can call a method, list active entities and list running messages; a runner that has the classes answers. All
fields cross by name: later versions may add fields, with a default.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from coterie.entities.calls.router import error_for_caller, may_run_elsewhere
from coterie.entities.calls.wire import Name, read_failure
from coterie.errors import CoterieError, MessageExpired, RunnerUnavailable
from coterie.kernel.ids import EntityAddress, Seat, ShardId, shard_number
from coterie.kernel.serialization.codec import PLAIN
from coterie.ownership.directory import peer_of
from coterie.transport.interface import Route
from coterie.work.tags import Tag  # noqa: TC001 msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.client import Client
    from coterie.kernel.serialization.codec import Codec
    from coterie.storage.interface import RunnerRow


Most = Annotated[int, Meta(ge=0, le=10_000)]


class Invoke(Struct, tag="invoke", frozen=True, kw_only=True):
    """Call a method, or send the call, as the runner's own program would. The answer is an `Invoked`."""

    entity_type: Name
    entity_id: Name
    method: Name
    arguments: bytes
    """A JSON map by parameter name."""
    key: str | None = None
    waits: bool = True
    """Whether to wait for the result; otherwise the call is only sent."""
    at: datetime | None = None
    delay_s: float = 0.0
    tags: tuple[Tag, ...] = ()


class Invoked(Struct, frozen=True, kw_only=True):
    """The answer to `Invoke`."""

    result: bytes = b""
    """The encoded result; empty if it was only sent, or failed."""
    failure: bytes = b""
    """The error it raised, see `wire.pack_failure`."""
    message_id: str = ""
    """The id of the message that was sent."""
    persisted: bool = False


class ListActive(Struct, tag="residents", frozen=True, kw_only=True):
    """List active entities, the busiest first. The answer is an `ActiveEntities`."""

    entity_type: Name
    entity_id: str | None = None
    """Only this entity."""
    most: Most = 1_000


class ActiveEntity(Struct, frozen=True, kw_only=True):
    """An active entity of a runner."""

    id: str
    waiting: int
    """Calls in its mailbox."""
    mailbox: int
    """The limit of its mailbox."""
    running: int
    method: str | None = None
    """The method that started last, while a call runs."""
    running_s: float | None = None
    idle_s: float | None = None
    """For how long it has been idle; None if it is busy, or kept alive."""
    leaves_s: float | None = None
    """When it is deactivated, if no call arrives."""


class ActiveEntities(Struct, frozen=True, kw_only=True):
    """The answer to `ListActive`."""

    lives: tuple[ActiveEntity, ...]
    total: int
    """The number of active entities, including those beyond the limit."""
    group: str | None = None
    """The shard group of the type; None if the runner's program does not have the type."""


class ListRunning(Struct, tag="running", frozen=True, kw_only=True):
    """List the persisted messages that are running. The answer is a `RunningMessages`."""

    most: Most = 1_000


class RunningMessages(Struct, frozen=True, kw_only=True):
    """The answer to `ListRunning`."""

    messages: dict[str, float]
    """For how long each has run, by message id."""


Question: TypeAlias = Invoke | ListActive | ListRunning

encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder[Question](Question).decode
decode_invoked = msgspec.msgpack.Decoder(Invoked).decode
decode_living = msgspec.msgpack.Decoder(ActiveEntities).decode
decode_at_work = msgspec.msgpack.Decoder(RunningMessages).decode


_WITHIN_S = 1.0
"""The timeout of requests that a runner answers from memory."""
_FRESH_S = 1.0
"""The maximum age of the list of runners for a call."""


class EntityLocation(NamedTuple):
    """The active entities of all runners."""

    lives: Sequence[tuple[str, ActiveEntity]]
    """Each with the name of its runner."""
    total: int
    group: str | None
    """The shard group of the type; None if no runner that answered knows the type."""
    silent: Sequence[str]
    """The names of runners that did not answer."""


class RunningMessage(NamedTuple):
    """The persisted messages that are running."""

    messages: Mapping[str, tuple[str, float]]
    """By id: the name of the runner, and for how long in seconds."""
    silent: Sequence[str]


@dataclass(frozen=True, slots=True)
class PlainReply:
    """Reads a reply as plain values."""

    result_what: str
    result: Codec[Any] = PLAIN
    errors: dict[str, type[Exception]] = field(default_factory=dict)


class CallsByName:
    """Calls entities by name, and lists active entities.

    Args:
        here: The process that asks. A client needs runners, which have the classes.

    Promise:
        A call runs at most once: another runner is tried only if no handler can have run. Keys are made, and arguments
        are checked, as by a caller that has the class.
    """

    def __init__(self, here: Client) -> None:
        self._here = here

    async def call(
        self,
        entity: EntityAddress,
        method: str,
        arguments: bytes,
        *,
        within_s: float,
        key: str | None = None,
        group: str | None = None,
    ) -> Any:
        """Call a method. Returns its result as plain values.

        Args:
            entity: The entity.
            method: The name of the method.
            arguments: A JSON map by parameter name.
            within_s: How long to wait.
            key: The idempotency key of the call; for persisted rpcs.
            group: Only runners of this group are asked.

        Raises:
            RemoteError: The handler's error, declared or not: this process has no class for it.
            MalformedMessage: The arguments do not fit.
            UnknownEntity: No runner knows the method.
            RunnerUnavailable: There is no runner to ask (not `sent`), or it was lost: then the call may have run.
            SendTimeout: It took longer.
        """
        asked = Invoke(entity_type=entity.type, entity_id=entity.id, method=method, arguments=arguments, key=key)
        answer = await self._invoke(asked, within_s=within_s, group=group)
        return PLAIN.decode(answer.result)

    async def send(
        self,
        entity: EntityAddress,
        method: str,
        arguments: bytes,
        *,
        within_s: float,
        key: str | None = None,
        at: datetime | None = None,
        delay_s: float = 0.0,
        tags: tuple[Tag, ...] = (),
        group: str | None = None,
    ) -> Invoked:
        """Send a call without waiting for its result. See `call`."""
        asked = Invoke(
            entity_type=entity.type,
            entity_id=entity.id,
            method=method,
            arguments=arguments,
            key=key,
            waits=False,
            at=at,
            delay_s=delay_s,
            tags=tags,
        )
        return await self._invoke(asked, within_s=within_s, group=group)

    async def result(
        self, message_id: str, *, within_s: float, readable: Callable[[str, str], bool] = lambda *_: True
    ) -> Any:
        """Wait for the reply to a message. Returns it as plain values.

        Args:
            message_id: The id of the message.
            within_s: How long to wait.
            readable: Whether messages of this entity type and method may be read.

        Raises:
            RemoteError: The handler's declared error.
            SendTimeout: It has not ended yet.
            MessageExpired: It does not exist, or may not be read.
        """

        def plain(entity_type: str, method: str) -> PlainReply:
            if not readable(entity_type, method):
                raise MessageExpired(message_id=message_id)
            return PlainReply(f"result of {entity_type}.{method}")

        return await self._here.calling.persisted.result(message_id, within_s=within_s, rpc_of=plain)

    async def residents(self, entity_type: str, entity_id: str | None = None, *, most: int = 1_000) -> EntityLocation:
        """The active entities of a type on all runners, or one of them."""
        answers = await self._ask_all(ListActive(entity_type=entity_type, entity_id=entity_id, most=most))
        replies = [(name, decode_living(body)) for name, body in answers if body is not None]
        lives = [(name, life) for name, living in replies for life in living.lives]
        group = next((living.group for _, living in replies if living.group is not None), None)
        return EntityLocation(lives, sum(living.total for _, living in replies), group, _silent(answers))

    async def running(self, *, most: int = 1_000) -> RunningMessage:
        """The persisted messages that are running, and where."""
        answers = await self._ask_all(ListRunning(most=most))
        replies = [(name, decode_at_work(body).messages) for name, body in answers if body is not None]
        found = {each: (name, seconds) for name, messages in replies for each, seconds in messages.items()}
        return RunningMessage(found, _silent(answers))

    async def _invoke(self, asked: Invoke, *, within_s: float, group: str | None) -> Invoked:
        by_name = self._here.calling.by_name
        if group is None and by_name is not None and by_name.knows(asked.entity_type, asked.method):
            return _opened(await by_name.answer(asked, within_s=within_s))
        target = f"{asked.entity_type}/{asked.entity_id}.{asked.method}"
        now_s = asyncio.get_running_loop().time()
        until_s = now_s + within_s
        if now_s - self._here.directory.read_s > _FRESH_S:
            await self._here.directory.refresh()
        trouble: CoterieError | None = None
        for runner in self._candidates(asked, group):
            left_s = max(0.0, until_s - asyncio.get_running_loop().time())
            try:
                body = await self._ask(runner, asked, within_s=left_s, target=target)
            except CoterieError as error:
                trouble = error_for_caller(error, what=target, runner=runner.name, waited_s=within_s, stopping=False)
                if not may_run_elsewhere(error):
                    raise trouble from None
            else:
                return _opened(body)
        raise trouble or no_runner(target, group)

    def _candidates(self, asked: Invoke, group: str | None) -> list[RunnerRow]:
        """The runners to try in order: the likely holder of the shard first, then the others that may know the type."""
        directory = self._here.directory
        number = shard_number(asked.entity_type, asked.entity_id, self._here.settings.shards)
        holder = directory.holder(Seat.shard(ShardId(group or "default", number)))
        able = [each for each in directory.runners if group is None or group in each.groups]
        return sorted(able, key=lambda each: (each is not holder, each.leaving, each.name, each.id))

    async def _ask(self, runner: RunnerRow, asked: Question, *, within_s: float, target: str) -> bytes:
        by_name = self._here.calling.by_name
        if runner.id == self._here.incarnation and by_name is not None:
            return await by_name.answer(asked, within_s=within_s)
        transport = self._here.transport
        body = await transport.request(peer_of(runner), Route.QUESTION, encode(asked), within_s=within_s, target=target)
        return bytes(body)

    async def _ask_all(self, asked: Question) -> list[tuple[str, bytes | None]]:
        """The answer of each runner, by name; None if it did not answer in time."""

        async def ask(runner: RunnerRow) -> tuple[str, bytes | None]:
            try:
                target = f"a question to {runner.name}"
                return runner.name, await self._ask(runner, asked, within_s=_WITHIN_S, target=target)
            except CoterieError:
                return runner.name, None

        runners = sorted(await self._here.runners(), key=lambda each: (each.name, each.id))
        return await asyncio.gather(*map(ask, runners))


def _opened(body: bytes) -> Invoked:
    """The answer; raises the error of the handler."""
    answer = decode_invoked(body)
    if answer.failure:
        raise read_failure(answer.failure, {})
    return answer


def _silent(answers: Sequence[tuple[str, bytes | None]]) -> list[str]:
    return [name for name, body in answers if body is None]


def no_runner(target: str, group: str | None) -> RunnerUnavailable:
    """The error of a call for which no runner could be asked."""
    problem = "no runner is up" if group is None else f"no runner of group {group} is up"
    hint = "coterie run starts one"
    return RunnerUnavailable(runner="", target=target, problem=problem, sent=False, hint=hint)
