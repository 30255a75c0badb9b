"""Sends calls to the owners of entities and returns their answers.

    find the shard's owner ──▶ here: the host ────────────────┐
        ▲        │                                            ▼
        │        └──▶ elsewhere: one frame, one reply ──▶ result, the handler's error, or an error of ours
        │                                                     │
        └── wait for news ◀── not mine, not sent, no owner ◀──┘         until the call's deadline

Promise:
    A handler runs at most once for a call [D8]: it is sent again only if it provably did not reach a handler, and then
    under the same message id. Each call ends by its deadline and a tick, with a result or a typed error.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Any, Protocol

from coterie.entities.calls.broadcast import Broadcasts
from coterie.entities.calls.local import DetachedCall, LocalCall, LocalPipe, LocalStream, accept
from coterie.entities.calls.router import RoutedShard, Router, error_for_caller, may_run_elsewhere
from coterie.entities.calls.server import CallServer
from coterie.entities.calls.spans import facts_of, read, sent, trace_of
from coterie.entities.calls.wire import MARK, NOT_MINE, Chain, Envelope, NotMine, encode, read_failure, read_marked
from coterie.entities.host.work import handling
from coterie.entities.persisted.receiver import Receiver
from coterie.entities.persisted.sender import PersistedSender
from coterie.errors import (
    ConfigurationError,
    CoterieError,
    EntityNotAssigned,
    RunnerUnavailable,
    SendTimeout,
    UnknownEntity,
)
from coterie.kernel import metrics, spans
from coterie.kernel.context import context_here, trace_here
from coterie.kernel.ids import MessageId
from coterie.kernel.service import State
from coterie.transport.interface import Route, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
    from datetime import datetime

    from coterie.client import Client
    from coterie.entities.calls.by_name_server import ByNameServer
    from coterie.entities.definition import EntityType
    from coterie.entities.host.host import Host
    from coterie.entities.persisted.commit_watcher import CommitWatcher
    from coterie.entities.reference import Call, Stream
    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.ownership.directory import Directory
    from coterie.settings import Settings
    from coterie.storage.interface import Storage
    from coterie.transport import interface
    from coterie.transport.requests import Routes

    Lineage = tuple[str | None, Chain]
    Items = interface.ItemStream | LocalPipe | AsyncGenerator[bytes, None]

_handled_here = handling.get
_SEQUENCE_BITS = 16
_RANDOM_BITS = 64
_IDS_PER_READING = 256
_WATCH_S = 1.0
"""How often a client checks whether waiting calls require a refresh of the routing table."""
_FAREWELL_S = 1.0
"""How long the last answers of a runner that left the cluster may take to arrive."""


class CallerProcess(Protocol):
    """The process that calls: a client or a runner."""

    @property
    def settings(self) -> Settings: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def directory(self) -> Directory: ...
    @property
    def state(self) -> State: ...
    @property
    def commits(self) -> CommitWatcher: ...


class CallIds:
    """Draws the message ids of volatile calls: of the same form as `MessageIds`, at a tenth of the cost.

    The random half is drawn once per sender, and the clock is read now and then: ids count up in between. Two senders
    never draw the same id, and one sender never draws an id twice.
    """

    def __init__(self, clock: Clock, chance: Random) -> None:
        self._wall_ns = clock.wall_ns
        sender = f"{chance.bits(_RANDOM_BITS):016x}"
        self._ends = [f"{number:02x}{sender}" for number in range(_IDS_PER_READING)]
        self.draw = self._ids().__next__
        """A new id, greater than all before."""

    def _ids(self) -> Iterator[str]:
        reading = 0
        while True:
            reading = max(reading + 1, (self._wall_ns() // 1_000_000 << _SEQUENCE_BITS) // _IDS_PER_READING)
            begin = f"{reading:014x}"
            for end in self._ends:
                yield begin + end


class CallClient:
    """Sends the calls of one process; on a runner, also serves incoming calls.

    Args:
        here: The process.
        clock: Its clock.
        chance: Its randomness.
        storage: Stores its persisted calls.
    """

    def __init__(self, here: CallerProcess, *, clock: Clock, chance: Random, storage: Storage) -> None:
        self.here, self.clock, self.chance = here, clock, chance
        self.ids = CallIds(clock, chance)
        lease_s = here.settings.lease_ttl.total_seconds()
        self.routing = Router(here, shards=here.settings.shards, lease_s=lease_s)
        here.directory.on_gone(self._drop)
        self.host: Host | None = None
        self.broadcasts = Broadcasts(self)
        self.persisted = PersistedSender(self, storage)
        self.transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        self.time: Callable[[], float] = _no_loop
        """The loop's clock."""
        self.create_future: Callable[[], asyncio.Future[Any]] = _future
        self._draw = self.ids.draw
        self._default_s = here.settings.call_timeout.total_seconds()
        self._server: CallServer | None = None
        self._receiver: Receiver | None = None
        self.by_name: ByNameServer | None = None
        """Answers questions by name; None: this process has no entities."""
        self._types: Mapping[str, EntityType[Any]] = {}

    # Lifecycle

    def serve(self, host: Host, types: Mapping[str, EntityType[Any]], by_name: ByNameServer) -> None:
        """Serve the entities of this runner with this host, and clients without its program with `by_name`."""
        self.host, self._types, self.by_name = host, types, by_name
        self._server = CallServer(host, known=self._known)
        self._receiver = Receiver(host)

    def part(self) -> None:
        """This runner has lost its membership: calls wait until the next `join`."""
        self.transport = None

    def join(self, transport: Transport, routes: Routes | None = None) -> None:
        """Send calls over this transport from now on; a runner also serves requests on its routes."""
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self.time, self.create_future = self._loop.time, self._loop.create_future
        self.routing.keeps_itself = routes is None
        if routes is not None and self._server is not None:
            routes.register(Route.CALL, self._server)
            routes.register(Route.BROADCAST, self.broadcasts)
        if routes is not None and self._receiver is not None:
            routes.register(Route.MESSAGE, self._receiver)
        if routes is not None and self.by_name is not None:
            routes.register(Route.QUESTION, self.by_name)

    async def watch(self) -> None:
        """In a client: refresh the routing table while calls wait, so that they notice a replaced runner."""
        while True:
            await asyncio.sleep(_WATCH_S)
            transport = self.transport
            if transport is not None and transport.is_waited_for and self.time() > self.routing.fresh_until_s:
                self.routing.refresh_soon()

    def _drop(self, runner: str) -> None:
        """A runner is no longer a member: calls that wait for it fail soon, not at their deadline.

        Not at once: a runner that shuts down deregisters before its last answers have arrived.
        """
        if self.transport is not None:
            self._loop.call_later(_FAREWELL_S, self.transport.drop, runner, "it is no member of the cluster any more")

    async def stop(self) -> None:
        """Stop everything that is in progress here."""
        await self.broadcasts.stop()
        if self.by_name is not None:
            await self.by_name.stop()
        if self.host is not None:
            await self.host.stop()
        if self._server is not None:
            await self._server.stop()
        if self._receiver is not None:
            await self._receiver.stop()
        await self.persisted.stop()
        await self.routing.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether this process is stopping."""
        return self.here.state in (State.STOPPING, State.STOPPED)

    # Calls

    def within_s(self, declared_s: float | None) -> float:
        """The timeout of a call."""
        return self._default_s if declared_s is None else declared_s

    async def call(self, call: Call[Any], entity_type: EntityType[Any]) -> Any:
        """Send a call and wait for its result. The hot path: rare cases are in `_again`."""
        rpc, name, entity_id = call.rpc, entity_type.name, call.address.id
        within_s = left_s = self._default_s if call.timeout_s is None else call.timeout_s
        draw, time = self._draw, self.time  # found once: they are no methods, and cost twice as much to call
        outer = _handled_here()
        trace_id, chain = (None, ()) if outer is None else (outer.trace_id, outer.onward())
        if outer is None and context_here(None) is not None:
            trace_id = trace_here()
        if spans.on:
            trace_id = trace_of(outer)
        envelope = Envelope(name, entity_id, rpc.name, call.payload, draw(), within_s, trace_id, chain)
        routing, now_s = self.routing, time()
        shard = routing.find(name, entity_id, entity_type.group)
        until_s = now_s + within_s
        if now_s > routing.fresh_until_s:
            await routing.refresh(within_s=within_s)
            routing.resolve(shard)
            left_s = until_s - time()
        trip = None
        while True:
            peer = shard.peer  # the shard is shared: it may have another owner when the answer comes
            try:
                if peer is not None:
                    transport = self.transport or self.open_transport()
                    answer = await transport.request(peer, Route.CALL, encode(envelope), within_s=left_s, target=call)
                elif shard.is_mine and (host := self.host) is not None:
                    work = LocalCall.from_envelope(envelope, until_s)
                    future = work.answer = self._loop.create_future()  # from here on as in `call_nearby`
                    host.deliver(work)
                    try:
                        answer = await future
                    except asyncio.CancelledError:
                        host.cancel(work)
                        raise
                else:
                    answer = NOT_MINE
            except CoterieError as error:
                trouble: bytes | CoterieError = error
            else:
                if answer[0] != MARK:
                    return rpc.result.decode(answer, rpc.result_what)
                trouble = answer
            trip = trip or Trip(call, shard, until_s, within_s)
            trip.asked = self.here.incarnation if peer is None else peer.incarnation
            left_s = await self._again(trip, trouble)

    async def send(self, call: Call[Any], entity_type: EntityType[Any]) -> str:
        """Send a call without waiting for its result. Returns its message id once a runner has accepted it."""
        trip = await self._trip(call, entity_type)
        message_id = self.ids.draw()
        envelope = self._envelope(trip, message_id, discards=True)
        while True:
            shard = trip.shard
            trip.asked = self.here.incarnation if shard.peer is None else shard.peer.incarnation
            try:
                if shard.peer is not None:
                    transport, left_s = self.open_transport(), trip.left_s
                    answer = await transport.request(
                        shard.peer, Route.CALL, encode(envelope), within_s=left_s, target=call
                    )
                elif shard.is_mine and self.host is not None:
                    answer = accept(self.host, DetachedCall.from_envelope(envelope, trip.until_s))
                else:
                    answer = NOT_MINE
            except CoterieError as error:
                trouble: bytes | CoterieError = error
            else:
                if answer[0] != MARK:
                    return message_id
                trouble = answer
            await self._again(trip, trouble)

    async def stream(self, stream: Stream[Any], entity_type: EntityType[Any]) -> AsyncGenerator[Any, None]:
        """The items of a stream. Like a call until the first item; after that it is never retried."""
        trip = await self._trip(stream, entity_type)
        envelope = self._envelope(trip, self.ids.draw())
        while True:
            async with AsyncExitStack() as stack:
                try:
                    items = self._items(stream, trip, envelope)
                    await stack.enter_async_context(aclosing(items))
                    body = await anext(items, None)
                except CoterieError as error:
                    trouble: bytes | CoterieError = error
                else:
                    if body is None or body[0] != MARK:
                        while body is not None:
                            yield stream.rpc.decode_result(body)
                            body = await self._next(items, trip)
                        return
                    trouble = body
            await self._again(trip, trouble)

    def lineage(self, message_id: str) -> Lineage:
        """The trace of a call made here, and the chain of its callers. The first call of a trace names it."""
        outer = handling.get()
        return trace_of(outer) or message_id, () if outer is None else outer.onward()

    # Attempts

    def _envelope(self, trip: Trip, message_id: str, *, discards: bool = False) -> Envelope:
        what, (trace_id, chain) = trip.what, self.lineage(message_id)
        return Envelope(
            what.address.type,
            what.address.id,
            what.rpc.name,
            what.payload,
            message_id,
            trip.within_s,
            trace_id,
            chain,
            discards=discards,
        )

    async def _trip(self, what: Call[Any] | Stream[Any], entity_type: EntityType[Any]) -> Trip:
        within_s, now_s = self.within_s(what.timeout_s), self.time()
        if now_s > self.routing.fresh_until_s:
            await self.routing.refresh(within_s=within_s)
        shard = self.routing.find(entity_type.name, what.address.id, entity_type.group)
        return Trip(what, shard, now_s + within_s, within_s)

    async def _again(self, trip: Trip, trouble: bytes | CoterieError) -> float:
        """Wait until another attempt may succeed. Returns the time left.

        Raises:
            Exception: No other attempt is made: the handler's error, or an error of ours.
        """
        if isinstance(trouble, bytes):
            if self._knows_newer_owner(trip, trouble) and trip.left_s > 0:
                return self._onward(trip)
            error: CoterieError = EntityNotAssigned(entity=str(trip.what.address), shard=str(trip.shard.id))
            if self.is_stopping and not self._others(trip, than=self.here.incarnation):
                raise _counted(trip, error) from None
        else:
            error = self._error_for_caller(trip, trouble)
            if not may_run_elsewhere(trouble):
                if isinstance(error, SendTimeout | RunnerUnavailable):
                    self.routing.refresh_soon()
                raise _counted(trip, error) from None
        await self.routing.wait_for_change(within_s=trip.left_s)
        if trip.left_s <= 0 or (isinstance(trouble, UnknownEntity) and not self._others(trip, than=trip.asked)):
            raise _counted(trip, error) from None
        return self._onward(trip)

    def _onward(self, trip: Trip) -> float:
        """Prepare another attempt. Returns the time left."""
        metrics.SENT_AGAIN.of(trip.what.address.type).value += 1
        self.routing.resolve(trip.shard)
        return trip.left_s

    def _knows_newer_owner(self, trip: Trip, answer: bytes) -> bool:
        """Whether a runner that does not hold the shard knows a newer owner. Raises the error of a handler."""
        marked = read_marked(answer)
        if isinstance(marked, bytes):
            raise read_failure(marked, trip.what.rpc.errors) from None
        if marked.shards not in (0, self.here.settings.shards):
            raise ConfigurationError(
                problem=f"shards is {self.here.settings.shards} here, and {marked.shards} in this cluster",
                hint=f"set shards to {marked.shards}",
            )
        return marked.seat == trip.shard.seat and self.routing.learn(trip.shard, marked.holder, marked.epoch)

    def _error_for_caller(self, trip: Trip, error: CoterieError) -> CoterieError:
        return error_for_caller(
            error,
            what=repr(trip.what),
            runner=self.routing.name_of(trip.asked),
            waited_s=trip.within_s,
            stopping=self.is_stopping,
        )

    def _others(self, trip: Trip, *, than: str) -> bool:
        return bool(self.routing.others(trip.shard.id.group, than=than))

    def open_transport(self) -> Transport:
        """The transport. Raises a "not sent" error while there is none because this runner lost its membership."""
        if self.transport is not None:
            return self.transport
        raise RunnerUnavailable(runner="", target="", problem="this process has no connections just now", sent=False)

    def _known(self, entity_type: str, entity_id: str) -> NotMine:
        """The answer to callers that take this runner for the owner."""
        shards = self.here.settings.shards
        known = self._types.get(entity_type)
        if known is None:
            return NotMine(shards=shards)
        seat = self.routing.find(entity_type, entity_id, known.group).seat
        holder = self.here.directory.holder(seat)
        return NotMine(seat, "" if holder is None else holder.id, self.here.directory.epoch(seat), shards)

    # Streams

    def _items(self, stream: Stream[Any], trip: Trip, envelope: Envelope) -> Items:
        shard = trip.shard
        trip.asked = self.here.incarnation if shard.peer is None else shard.peer.incarnation
        if shard.peer is not None:
            transport, within_s = self.open_transport(), trip.within_s
            return transport.stream(shard.peer, Route.CALL, encode(envelope), within_s=within_s, target=stream)
        if shard.is_mine and self.host is not None:
            return LocalPipe(self.host, LocalStream.from_envelope(envelope, trip.until_s))
        return _nobody()

    async def _next(self, items: Items, trip: Trip) -> bytes | None:
        try:
            body = await anext(items, None)
        except CoterieError as error:
            raise self._error_for_caller(trip, error) from None
        if body is not None and body[0] == MARK:
            self._knows_newer_owner(trip, body)
        return body


class TypedSender:
    """Sends the calls of references to one entity type, through the client or runner that currently acts."""

    __slots__ = ("_acting", "entity_type")

    def __init__(self, entity_type: EntityType[Any], acting: Callable[[], Client]) -> None:
        self.entity_type = entity_type
        self._acting = acting

    def call(self, call: Call[Any], /) -> Coroutine[Any, Any, Any]:
        """Send a call and wait for its result."""
        calling = self._acting().calling
        call_it = calling.persisted.call if call.rpc.persisted else calling.call
        if spans.on:
            return sent("cluster.call", "CLIENT", facts_of(call), call_it, call, self.entity_type)
        return call_it(call, self.entity_type)

    async def send(self, call: Call[Any], *, at: datetime | None, delay_s: float) -> MessageId[Any]:
        """Send a call without waiting for its result."""
        if spans.on:
            message_id = await sent("cluster.send", "PRODUCER", facts_of(call), self._send, call, at, delay_s)
            return MessageId(message_id)
        return await self._send(call, at, delay_s)

    async def _send(self, call: Call[Any], at: datetime | None, delay_s: float) -> MessageId[Any]:
        calling = self._acting().calling
        if call.rpc.persisted:
            return await calling.persisted.send(call, self.entity_type, at=at, delay_s=delay_s)
        return MessageId(await calling.send(call, self.entity_type))

    def stream(self, stream: Stream[Any], /) -> Any:
        """Request the items of a stream."""
        items = self._acting().calling.stream(stream, self.entity_type)
        return read(stream, items) if spans.on else items


class Trip:
    """The state of one call over its attempts."""

    __slots__ = ("asked", "shard", "until_s", "what", "within_s")

    def __init__(self, what: Call[Any] | Stream[Any], shard: RoutedShard, until_s: float, within_s: float) -> None:
        self.what = what
        self.asked = ""
        """The runner of the last attempt."""
        self.shard = shard
        self.until_s = until_s
        self.within_s = within_s

    @property
    def left_s(self) -> float:
        """The time left."""
        return self.until_s - asyncio.get_running_loop().time()


def _counted(trip: Trip, error: CoterieError) -> CoterieError:
    metrics.SENT_FAILED.of(trip.what.address.type, error.code).value += 1
    return error


def _no_loop() -> float:
    """Used until `join`: then the loop is known."""
    return asyncio.get_running_loop().time()


def _future() -> asyncio.Future[Any]:
    """Used until `join`."""
    return asyncio.get_running_loop().create_future()


async def _nobody() -> AsyncGenerator[bytes, None]:
    yield NOT_MINE
