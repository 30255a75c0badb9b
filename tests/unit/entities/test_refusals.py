"""Definitions that cannot work are refused when the program is loaded, with what to write instead (F1, F2)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import new_class
from typing import TYPE_CHECKING, Any, TypedDict

import pytest

from coterie.entities.definition import define
from coterie.entities.entity import Entity
from coterie.entities.rpc import rpc
from coterie.errors import ConfigurationError
from coterie.kernel.serialization.codec import ACCEPTED
from tests.unit.entities.account_entity import Balance

if TYPE_CHECKING:
    from decimal import Decimal  # noqa: TC004 missing at run time: that is what is tested


class Bare(Entity):
    pass


class Parent(Entity):
    @rpc
    async def size(self) -> int:
        return 0


class Required:
    def __init__(self, cents: int) -> None:
        self.cents = cents


@dataclass
class Needs:
    cents: int


class Typed(TypedDict):
    cents: int


def generator_method() -> None:
    class A(Entity):
        @rpc
        def go(self) -> Any:
            yield 1


def no_parameter_annotation() -> None:
    class A(Entity):
        @rpc
        async def go(self, x) -> None: ...  # type: ignore[no-untyped-def] # that is the point

    define(A)


def no_result_annotation() -> None:
    class A(Entity):
        @rpc
        async def go(self):  # type: ignore[no-untyped-def] # that is the point
            ...

    define(A)


def only_for_checkers() -> None:
    class A(Entity):
        @rpc
        async def go(self, price: Decimal) -> None: ...

    define(A)


def unreadable() -> None:
    class A(Entity):
        @rpc
        async def go(self, price: int) -> None: ...

    A.go.__annotations__["price"] = "list["
    define(A)


def several() -> None:
    class A(Entity):
        @rpc
        async def go(self, *numbers: int) -> None: ...

    define(A)


def keywords() -> None:
    class A(Entity):
        @rpc
        async def go(self, **options: int) -> None: ...

    define(A)


def no_self() -> None:
    class A(Entity):
        @rpc
        async def go() -> None: ...  # type: ignore[misc] # that is the point

    define(A)


def static() -> None:
    class A(Entity):
        @staticmethod
        @rpc
        async def go(x: int) -> None: ...

    define(A)


def not_data() -> None:
    class A(Entity):
        @rpc
        async def go(self, x: list[complex]) -> None: ...

    define(A)


def result_not_data() -> None:
    class A(Entity):
        @rpc
        async def go(self) -> Callable[[], None]:
            return lambda: None

    define(A)


def default_misfit() -> None:
    class A(Entity):
        @rpc
        async def go(self, x: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013 that is the point

    define(A)


def own_init() -> None:
    class A(Entity):
        def __init__(self) -> None: ...

    define(A)


def plain_hook() -> None:
    class A(Entity):
        def on_activate(self) -> None: ...  # type: ignore[override] # that is the point

    define(A)


def key_of_nothing() -> None:
    class A(Entity):
        @rpc(persisted=True, key=("order_id", "cents"))
        async def go(self, order_id: str) -> None: ...

    define(A)


def key_of_a_float() -> None:
    class A(Entity):
        @rpc(persisted=True, key=("order_id", "price"))
        async def go(self, order_id: str, price: float | None) -> None: ...

    define(A)


def key_volatile() -> None:
    class A(Entity):
        @rpc(key="order_id")
        async def go(self, order_id: str) -> None: ...

    define(A)


def persisted_stream() -> None:
    class A(Entity):
        @rpc(persisted=True)
        async def go(self) -> AsyncIterator[int]:
            yield 1

    define(A)


def stream_annotated_as_item() -> None:
    class A(Entity):
        @rpc
        async def go(self) -> int:  # type: ignore[misc] # that is the point
            yield 1

    define(A)


def rpc_option() -> None:
    rpc(persist=True)  # type: ignore[call-overload] # that is the point


def rpc_positional() -> None:
    rpc("order_id")  # type: ignore[call-overload] # that is the point


def rpc_timeout() -> None:
    class A(Entity):
        @rpc(timeout="30")
        async def go(self) -> None: ...

    define(A)


def private() -> None:
    class A(Entity):
        @rpc
        async def _go(self) -> None: ...

    define(A)


def reserved() -> None:
    class A(Entity):
        @rpc
        async def on_activate(self) -> None: ...

    define(A)


def lost() -> None:
    class A(Parent):
        async def size(self) -> int:
            return 1

    define(A)


def with_state(kind: Any, **options: Any) -> Callable[[], object]:
    return lambda: define(new_class("A", (Entity[kind],)), **options)


def bare(**options: Any) -> Callable[[], object]:
    return lambda: define(Bare, **options)


REFUSED: dict[str, tuple[Callable[[], object], str, str]] = {
    "a generator": (
        generator_method,
        "A.go is a generator, and a stream is an async one",
        "write async def go(…)",
    ),
    "a parameter without annotation": (
        no_parameter_annotation,
        "A.go: parameter x has no annotation",
        "write x: int, or Any if it can be anything",
    ),
    "a result without annotation": (
        no_result_annotation,
        "A.go: its result has no annotation",
        "write -> int, or -> None, or Any if it can be anything",
    ),
    "a type that only checkers see": (
        only_for_checkers,
        "A.go: its annotations cannot be read: name 'Decimal' is not defined",
        "annotations are needed when the program runs: import their types outside of `if TYPE_CHECKING`",
    ),
    "an annotation that is no code": (
        unreadable,
        "A.go: its annotations cannot be read: SyntaxError: Forward reference must be an expression -- got 'list['",
        "",
    ),
    "*args": (
        several,
        "A.go takes *numbers, which has no type of its own for each argument",
        "name the parameters, or take one list or map: numbers: list[int]",
    ),
    "**kwargs": (
        keywords,
        "A.go takes **options, which has no type of its own for each argument",
        "name the parameters, or take one list or map: options: list[int]",
    ),
    "no self": (
        no_self,
        "A.go takes no self",
        "an rpc is a method of an entity: write self as its first parameter",
    ),
    "a static method": (static, "A.go is an rpc and a staticmethod", "an rpc is a method with self"),
    "a parameter that is not data": (
        not_data,
        "A.go: parameter x: values of type list[complex] cannot be stored or sent: complex is not data",
        ACCEPTED,
    ),
    "a default that does not fit": (
        default_misfit,
        "A.go: the default of parameter x does not fit its annotation: it is nothing, expected a whole number",
        "",
    ),
    "an __init__ of one's own [m12]": (
        own_init,
        "A has an __init__ of its own, and entities are made by the runner, by id alone",
        "prepare what it needs in async def on_activate(self)",
    ),
    "a plain hook": (
        plain_hook,
        "A.on_activate is a plain function, and it is awaited",
        "write async def on_activate(self)",
    ),
    "a key that names no parameter [m9]": (
        key_of_nothing,
        "A.go: key is ('order_id', 'cents'), and that names no parameter",
        "its parameters are order_id",
    ),
    "a key that is never told apart safely [m9]": (
        key_of_a_float,
        "A.go: parameter price is of type float | None, which makes no key",
        "a key is made of text, whole numbers, UUIDs, instants, dates or an Enum of those",
    ),
    "a key of a volatile rpc": (
        key_volatile,
        "A.go has a key and is not persisted",
        "write persisted=True too: keys are kept in the database",
    ),
    "a persisted stream": (
        persisted_stream,
        "A.go is an async generator, which cannot be persisted for now",
        "leave out persisted=True",
    ),
    "a stream annotated as its item": (
        stream_annotated_as_item,
        "A.go is an async generator, and its result is not annotated as one",
        "write -> AsyncIterator[…] with the type of what it yields",
    ),
    "an option of rpc that does not exist": (
        rpc_option,
        '@rpc has no option "persist"',
        'did you mean "persisted"? there are persisted, key, errors, timeout, retry',
    ),
    "an option of rpc without its name": (
        rpc_positional,
        "@rpc stands before 'order_id', which is no method",
        'write options by name, as in @rpc(timeout="5s"), and put @rpc nearest to an `async def` with self',
    ),
    "a timeout without unit": (
        rpc_timeout,
        'timeout of A.go is "30": a duration needs a unit',
        'write "30s" (also: 250ms, 10m, 1h30m)',
    ),
    "a private rpc": (private, "A._go is an rpc with a private name", "name it go: rpcs are for everybody"),
    "an rpc with a name of ours": (
        reserved,
        "A.on_activate is an rpc, and that name is part of every entity",
        "give it another name",
    ),
    "an rpc overridden by none": (
        lost,
        "A.size overrides an rpc of Parent, and is none itself",
        "write @rpc before size in A too",
    ),
    "a class that is no entity": (
        lambda: define(int),  # type: ignore[type-var] # that is the point
        "int does not derive from Entity",
        "write class int(Entity), with its rpcs in it",
    ),
    "an option that does not exist": (
        bare(max_idel="5m"),
        'the entity Bare has no option "max_idel"',
        'did you mean "max_idle"? there are name, group, mailbox, concurrency, max_idle, retry, version, migrations',
    ),
    "a name with a slash": (
        bare(name="a/b"),
        "name of an entity is 'a/b': entity type 'a/b' has a \"/\", which divides type and id",
        "",
    ),
    "an empty name": (bare(name=""), "name of an entity is '': an entity type cannot be empty", ""),
    "a group that is no name": (
        bare(group="a b"),
        'group of Bare is "a b": expected 1-64 of letters, digits, "_", "." and "-"',
        "",
    ),
    "a mailbox without room (F2)": (
        bare(mailbox=0),
        "mailbox of Bare is 0: expected a whole number from 1 to 1000000",
        "",
    ),
    "no concurrency": (
        bare(concurrency=0),
        "concurrency of Bare is 0: expected a whole number from 1 to 10000",
        "",
    ),
    "a max_idle without unit": (
        bare(max_idle="5"),
        'max_idle of Bare is "5": a duration needs a unit',
        'write "5s" (also: 250ms, 10m, 1h30m)',
    ),
    "a retry that is none": (
        bare(retry=3),
        "retry of Bare is 3, expected a Retry",
        "write Retry(attempts=5), or Retry.never",
    ),
    "a version without state": (
        bare(version=2),
        "Bare has a version or migrations, and no state",
        "write class Bare(Entity[…])",
    ),
    "state and concurrency [M7]": (
        with_state(Balance, concurrency=2),
        "A has state and concurrency 2: one handler would save what another has half done",
        "leave out concurrency, or keep what it needs outside of its state",
    ),
    "a state without initial value": (
        with_state(Needs),
        "A cannot begin with Needs(): Needs.__init__() missing 1 required positional argument: 'cents'",
        "give all fields of Needs a default, or override initial_state",
    ),
    "a map whose initial value does not fit": (
        with_state(Typed),
        "A cannot begin with Typed(): cents is missing",
        "give all fields of Typed a default, or override initial_state",
    ),
    "a state that is not data": (
        with_state(Required),
        "A: its state: values of type Required cannot be stored or sent: Required is not data",
        ACCEPTED,
    ),
    "a migration that is missing": (
        with_state(Balance, version=2),
        "state of A is version 2, but has no migration from 1",
        "add migrations={1: …}: a function from that version's map to the next's",
    ),
}


@pytest.mark.parametrize("title", REFUSED)
def test_a_definition_that_cannot_work_is_refused_with_what_to_write_instead(title: str) -> None:
    make, message, hint = REFUSED[title]
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_result_that_is_not_data_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^A\.go: its result: values of type Callable"):
        result_not_data()
