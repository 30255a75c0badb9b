"""Entities for the tests, and a sender that runs their handlers in this process, over bytes in both directions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coterie.entities.calls.wire import pack_failure, read_failure
from coterie.entities.definition import define
from coterie.entities.entity import Entity, activated
from coterie.entities.rpc import rpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine

    from coterie.entities.definition import EntityType
    from coterie.entities.reference import Call, Stream


@dataclass
class Balance:
    cents: int = 0


@dataclass
class Item:
    name: str
    tags: list[str] = field(default_factory=list)


class Overdrawn(Exception):
    """Plain, as most errors are."""


class Account(Entity[Balance]):
    @rpc
    async def balance(self) -> int:
        return self.state.cents

    @rpc(persisted=True, key="order_id", errors=[Overdrawn], timeout="5s")
    async def charge(self, order_id: str, cents: int = 100, *, note: str = "") -> int:
        """Take money."""
        if cents > self.state.cents:
            raise Overdrawn(order_id, cents)
        self.state.cents -= cents
        return self.state.cents

    @rpc
    async def buy(self, items: list[Item]) -> list[Item]:
        items.append(Item("gift"))
        return items

    @rpc
    async def explode(self) -> None:
        raise ZeroDivisionError("division by zero")

    @rpc
    async def lie(self) -> int:
        return "five"  # type: ignore[return-value] # that is the point

    @rpc
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number

    async def helper(self) -> int:
        return 1


class Loopback:
    """Sends calls to entities in this process, as a runner would."""

    def __init__(self, entity_type: EntityType[Any]) -> None:
        self.entity_type = entity_type
        self.seen: list[Call[Any]] = []
        self.entities: dict[str, Any] = {}
        self.closed = 0

    def call(self, call: Call[Any], /) -> Coroutine[Any, Any, Any]:
        self.seen.append(call)
        return self._call(call)

    async def _call(self, call: Call[Any]) -> Any:
        entity = self.entity(call.address.id)
        args, kwargs = call.rpc.arguments.decode(call.payload)
        try:
            reply = call.rpc.encode_result(await call.rpc.fn(entity, *args, **kwargs))
        except Exception as error:
            raise read_failure(pack_failure(error, call.rpc.errors), call.rpc.errors) from None
        return call.rpc.decode_result(reply)

    async def stream(self, stream: Stream[Any], /) -> AsyncGenerator[Any, None]:
        args, kwargs = stream.rpc.arguments.decode(stream.payload)
        try:
            async for item in stream.rpc.fn(self.entity(stream.address.id), *args, **kwargs):
                yield stream.rpc.decode_result(stream.rpc.encode_result(item))
        finally:
            self.closed += 1

    def entity(self, id: str) -> Any:
        if id not in self.entities:
            made = activated(self.entity_type.cls, id, self)  # type: ignore[arg-type] # nobody asks it for anything
            made.state = made.initial_state()
            self.entities[id] = made
        return self.entities[id]


ACCOUNT = define(Account)


def account(id: str = "alice", *, timeout_s: float | None = None) -> tuple[Account, Loopback]:
    """A reference, and the sender that it uses."""
    sender = Loopback(ACCOUNT)
    return ACCOUNT.ref(id, sender, timeout_s=timeout_s), sender
