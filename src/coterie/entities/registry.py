"""The entity types of a program, and how its runners host them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from coterie.entities.calls.by_name_server import ByNameServer
from coterie.entities.calls.client import TypedSender
from coterie.entities.calls.spans import sent
from coterie.entities.definition import EntityOptions, EntityType, define
from coterie.entities.host.host import Host
from coterie.kernel import spans
from coterie.kernel.text import require_text
from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.cluster import Cluster
    from coterie.entities.calls.broadcast import Replies
    from coterie.entities.entity import E, Entity
    from coterie.entities.reference import Call
    from coterie.entities.rpc import Rpc
    from coterie.kernel.ids import MessageId
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy
    from coterie.runner import Runner


class EntityRegistry:
    """The entity types of one program; provides the occupants of shard seats (`runner.Workplace`).

    Args:
        cluster: The value of `self.cluster` in entities.
        acting: Returns the client or runner that currently makes the calls.
    """

    kind = "shard"

    def __init__(self, cluster: Cluster, acting: Callable[[], Client]) -> None:
        self.types: dict[str, EntityType[Any]] = {}
        self._by_class: dict[type, EntityType[Any]] = {}
        self._senders: dict[str, TypedSender] = {}
        self._cluster = cluster
        self._acting = acting

    def add(self, cls: type[E], options: EntityOptions) -> None:
        """Define an entity type.

        Raises:
            ConfigurationError: The definition is invalid, or its name is taken.
        """
        entity_type = define(cls, **options)
        taken = self.types.get(entity_type.name)
        if taken is not None:
            raise refusal(
                f"there are two entities of the name {entity_type.name}: {taken.cls.__qualname__} in "
                f"{taken.cls.__module__} and {cls.__qualname__} in {cls.__module__}",
                hint="give one of them name=",
            )
        self.types[entity_type.name] = entity_type
        self._by_class[cls] = entity_type
        self._senders[entity_type.name] = TypedSender(entity_type, self._acting)

    def of(self, cls: type[E]) -> EntityType[E]:
        """The entity type of a class.

        Raises:
            TypeError: It is not an entity of this cluster.
        """
        found = self._by_class.get(cls)
        if found is None:
            raise TypeError(
                f"{getattr(cls, '__name__', cls)} is no entity of this cluster: write @cluster.entity before the class"
            )
        return cast("EntityType[E]", found)

    def ref(self, cls: type[E], id: str, *, timeout_s: float | None) -> E:
        """A reference to an entity."""
        entity_type = self.of(cls)
        return entity_type.ref(id, self._senders[entity_type.name], timeout_s=timeout_s)

    def call(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        """Send a call that is marked as sent, and wait for its result."""
        return self._sender(call).call(call)

    def send(self, call: Call[Any], *, at: datetime | None, delay_s: float) -> Coroutine[Any, Any, MessageId[Any]]:
        """Send a call that is marked as sent, without waiting for its result."""
        return self._sender(call).send(call, at=at, delay_s=delay_s)

    async def send_many(
        self, calls: Sequence[Call[Any]], *, at: datetime | None, delay_s: float
    ) -> list[MessageId[Any]]:
        """Send persisted calls that are marked as sent, without waiting for their results."""
        typed = [(call, self._sender(call).entity_type) for call in calls]
        send = self._acting().calling.persisted.send_many
        if spans.on:
            facts = {"coterie.messages": str(len(calls))}
            ids: list[MessageId[Any]] = await sent("cluster.send_many", "PRODUCER", facts, send, typed, at, delay_s)
            return ids
        return await send(typed, at, delay_s)

    async def result(self, message_id: str, *, timeout_s: float | None) -> Any:
        """The reply to a message."""
        calling = self._acting().calling
        within_s = calling.within_s(timeout_s)
        return await calling.persisted.result(message_id, within_s=within_s, rpc_of=self._rpc)

    async def reset(self, cls: type[Entity[Any]], id: str) -> int:
        """Make dead messages of an entity pending, and those that wait for a retry due now. Returns their number."""
        here, entity_type = self._acting(), self.of(cls)
        require_text(id, what="entity id")
        count = await here.storage.messages.revive(entity_type=entity_type.name, entity_id=id)
        here.calling.persisted.hint(here.calling.routing.find(entity_type.name, id, entity_type.group).seat)
        return count

    def type_of(self, call: Call[Any]) -> EntityType[Any]:
        """The entity type that a call is for."""
        return self._sender(call).entity_type

    def _sender(self, call: Call[Any]) -> TypedSender:
        sender = self._senders.get(call.address.type)
        if sender is None:
            raise TypeError(f"{call!r} was made by another cluster: this one has no entity {call.address.type}")
        return sender

    def _rpc(self, entity_type: str, method: str) -> Rpc:
        known = self.named(entity_type).rpcs.get(method)
        if known is None:
            raise ValueError(f"this program knows no rpc {method!r} of {entity_type}: its result cannot be read here")
        return known

    async def broadcast(
        self, method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Replies[Any]:
        """Call all active entities of the method's type."""
        entity_type, rpc = self.method(method)
        if rpc.is_stream:
            raise TypeError(f"{rpc.what} is a stream, and a broadcast takes one reply of each")
        calling = self._acting().calling
        payload = rpc.arguments.encode(args, kwargs)
        asked = (rpc, entity_type, payload, calling.within_s(rpc.timeout_s))
        if spans.on:
            facts = {"coterie.entity_type": entity_type.name, "coterie.rpc": rpc.name}
            replies: Replies[Any] = await sent("cluster.broadcast", "CLIENT", facts, calling.broadcasts.ask, *asked)
            return replies
        return await calling.broadcasts.ask(*asked)

    def named(self, entity: type[Entity[Any]] | str) -> EntityType[Any]:
        """An entity type by its class or its name."""
        if not isinstance(entity, str):
            return self.of(entity)
        found = self.types.get(entity)
        if found is None:
            raise ValueError(f"this program knows no entity {entity!r}: there are {', '.join(self.types) or 'none'}")
        return found

    def method(self, fn: Callable[..., Any]) -> tuple[EntityType[Any], Rpc]:
        """The rpc of a method that is written as `Account.balance`.

        Raises:
            TypeError: It is not an rpc of this cluster, or several entities inherited it.
        """
        found = [
            (entity_type, rpc)
            for entity_type in self.types.values()
            for rpc in entity_type.rpcs.values()
            if rpc.fn is fn
        ]
        shown = getattr(fn, "__qualname__", repr(fn))
        if not found:
            raise TypeError(f"{shown} is no rpc of an entity of this cluster: write it as in Account.balance")
        if len(found) > 1:
            names = ", ".join(entity_type.name for entity_type, _ in found)
            raise TypeError(f"{shown} is an rpc of {names}, which inherited it: override it in the one that is meant")
        return found[0]

    # Seats

    def definitions(self) -> Sequence[Definition]:
        """No definitions: every runner knows all shards."""
        return ()

    def occupants(self, runner: Runner) -> Occupy:
        """Host the entities of a runner's shards."""
        calling = runner.calling
        host = Host(
            self.types,
            cluster=self._cluster,
            settings=runner.settings,
            clock=calling.clock,
            chance=calling.chance,
            name=runner.name,
            storage=runner.storage,
            hand_over=calling.persisted.hand_over,
            supervisor=runner.supervisor,
            threads=runner.threads,
            middleware=runner.middleware,
        )
        host.on_job = runner.job_sender.hint
        by_name = ByNameServer(host, self.types, lambda entity_type: TypedSender(entity_type, lambda: runner))
        calling.serve(host, self.types, by_name)
        return host.occupy
