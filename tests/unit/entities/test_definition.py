"""From classes to entity types: what is read from them, and what is refused when the program is loaded (F1, F2)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pytest

from coterie.entities.definition import define
from coterie.entities.entity import Entity, activated, state_type_of
from coterie.entities.rpc import rpc
from coterie.kernel.retry import Retry
from tests.unit.entities.account_entity import ACCOUNT, Account, Balance, Loopback, Overdrawn

if TYPE_CHECKING:
    from collections.abc import Callable

S = TypeVar("S")
T = TypeVar("T")


class Ledger(Entity[S], Generic[T, S]):
    @rpc
    async def size(self) -> int:
        return 0


class Shop(Ledger[str, Balance]):
    pass


class Branch(Shop):
    @rpc
    async def size(self) -> int:
        return 1 + await super().size()


class Bare(Entity):
    pass


class Open(Ledger[int, S]):
    pass


class Mixed(Generic[T], Entity[dict[str, int]]):
    pass


@pytest.mark.parametrize(
    ("cls", "state"),
    [
        (Account, Balance),
        (Bare, NoneType),
        (Shop, Balance),
        (Branch, Balance),
        (Open, NoneType),
        (Mixed, dict[str, int]),
        (Entity, NoneType),
    ],
)
def test_the_type_of_the_state_is_found_through_all_bases(cls: type[Entity[Any]], state: Any) -> None:
    assert state_type_of(cls) == state


def test_what_is_not_said_takes_the_documented_defaults() -> None:
    assert (ACCOUNT.name, ACCOUNT.cls, ACCOUNT.group) == ("Account", Account, "default")
    assert (ACCOUNT.mailbox, ACCOUNT.concurrency, ACCOUNT.max_idle_s, ACCOUNT.retry) == (1000, 1, None, None)


def test_options_are_read() -> None:
    found = define(
        Bare, name="bare", group="gpu", mailbox=5, concurrency=3, max_idle=timedelta(minutes=1), retry=Retry.never
    )
    assert (found.name, found.group, found.mailbox, found.concurrency) == ("bare", "gpu", 5, 3)
    assert (found.max_idle_s, found.retry, found.state, found.rpcs) == (60.0, Retry.never, None, {})


def test_an_rpc_knows_what_was_declared() -> None:
    charge, count = ACCOUNT.rpcs["charge"], ACCOUNT.rpcs["count"]
    assert (charge.what, charge.fn, charge.arguments.names) == (
        "Account.charge",
        Account.charge,
        ("order_id", "cents", "note"),
    )
    assert (charge.persisted, charge.key, charge.timeout_s, charge.is_stream) == (True, ("order_id",), 5.0, False)
    assert charge.errors == {"Overdrawn": Overdrawn}
    assert (count.is_stream, count.result.type, count.persisted, count.key) == (True, int, False, ())


def test_the_state_is_stored_with_version_and_migrations() -> None:
    found = define(Account, version=2, migrations={1: lambda old: {"cents": old["euros"] * 100}})
    assert found.state is not None
    assert found.state.decode(b"\x92\x01\x81\xa5euros\x05") == Balance(500)


def test_inherited_rpcs_are_rpcs_and_overriding_ones_win() -> None:
    assert define(Shop).rpcs["size"].fn is Ledger.size
    assert define(Branch).rpcs["size"].fn is Branch.size


async def test_decorators_with_wraps_may_stand_on_either_side() -> None:
    def twice(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    class Wrapped(Entity):
        @rpc
        @twice
        async def below(self, x: int) -> int:
            return x

        @twice
        @rpc
        async def above(self, x: int) -> int:
            return x

    found = define(Wrapped)
    ref = found.ref("a", Loopback(found))
    assert (await ref.below(1), await ref.above(2)) == (1, 2)


async def test_classes_inside_of_a_function_may_name_what_is_local_there() -> None:
    @dataclass
    class Local:
        x: int

    class Here(Entity):
        @dataclass
        class Nested:
            y: int

        @rpc
        async def swap(self, local: Local) -> Nested:
            return self.Nested(local.x)

    found = define(Here)
    assert await found.ref("a", Loopback(found)).swap(Local(3)) == Here.Nested(3)


async def test_an_entity_has_its_id_and_an_initial_state() -> None:
    class Named(Entity[Balance]):
        def initial_state(self) -> Balance:
            return Balance(len(self.id))

    loopback: Any = Loopback(define(Named))
    named = activated(Named, "alice", loopback)
    assert (named.id, named.initial_state(), activated(Bare, "x", loopback).initial_state()) == (
        "alice",
        Balance(5),
        None,
    )
    assert activated(Bare, "x", loopback).state is None


async def test_an_entity_asks_its_activation() -> None:
    class Life:
        cluster = "the cluster"
        asked: list[Any] = []  # noqa: RUF012

        def keep_alive(self, *, on: bool) -> None:
            self.asked.append(on)

        async def resource(self, name: str, factory: Any) -> Any:
            return name, factory

    entity: Any = activated(Bare, "x", Life())  # type: ignore[arg-type] # a stand-in
    entity.keep_alive()
    entity.keep_alive(False)
    assert (entity.cluster, Life.asked) == ("the cluster", [True, False])
    assert await entity.resource("db", list) == ("db", list)


class Chargeable(Protocol):
    async def charge(self) -> None: ...


def test_an_entity_may_implement_a_protocol() -> None:
    class Till(Entity, Chargeable):
        @rpc
        async def charge(self) -> None: ...

    assert list(define(Till).rpcs) == ["charge"]


def test_one_class_may_be_defined_more_than_once() -> None:
    assert define(Account, name="a").rpcs["charge"].what == "a.charge"
    assert define(Account, name="b").rpcs["charge"].what == "b.charge"
