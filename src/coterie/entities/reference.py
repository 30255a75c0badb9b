"""References, and the calls and streams that their methods return.

    built ──await, create_task, gather, TaskGroup──▶ sent once, waits for the reply
      ├────given to cluster.send or cluster.call───▶ sent once by those
      └────dropped─────────────────────────────────▶ nothing is sent, and a RuntimeWarning says so

`cluster.ref` returns a reference. It is typed as the entity, and has its rpcs and its id, and nothing else [m11]. A
call is a real coroutine. Its arguments are encoded when it is built: wrong ones are refused in the line that has them,
before anything is sent, and later changes to the passed objects do not reach the entity.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Generator
from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar

from coterie.kernel.ids import EntityAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.entities.rpc import Rpc
    from coterie.work.tags import Tag


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Caller(Protocol):
    """Sends calls and jobs, and waits for their results."""

    def call(self, call: Any, /) -> Coroutine[Any, Any, Any]:
        """Send a call and wait for its result."""
        ...


class Sender(Protocol):
    """Sends calls: the cluster."""

    def call(self, call: Call[T], /) -> Coroutine[Any, Any, T]:
        """Send a call and wait for its result."""
        ...

    def stream(self, stream: Stream[T], /) -> AsyncGenerator[T, None]:
        """Request the items of a stream."""
        ...


class Sendable(Coroutine[Any, Any, T_co]):
    """A call of an rpc or a job, to be awaited or sent once [M14].

    Args:
        payload: The encoded arguments.
        sender: Sends it and waits.
        timeout_s: How long to wait for the reply; None: the setting's default.

    Promise:
        Awaiting it twice raises an error, and does not send it twice. Cancelled before it starts, it sends nothing.
    """

    __slots__ = ("_inner", "_is_sent", "_sender", "key", "payload", "tags", "timeout_s")

    _kind: ClassVar[str]
    """What it is, for errors."""

    def __init__(self, payload: bytes, sender: Caller, timeout_s: float | None) -> None:
        self.payload = payload
        self.timeout_s = timeout_s
        self.key: str | None = None
        self.tags: tuple[Tag, ...] = ()
        self._sender = sender
        self._inner: Coroutine[Any, Any, T_co] | None = None
        self._is_sent = False

    def mark_sent(self) -> None:
        """Mark this as sent by the caller of this method. Allowed once.

        Raises:
            RuntimeError: It was sent before.
        """
        if self._is_sent:
            raise RuntimeError(
                f"{self._kind} {self!r} was awaited, sent or closed before: build a new one for each request"
            )
        self._is_sent = True

    def __await__(self) -> Generator[Any, Any, T_co]:
        if self._is_sent:
            self.mark_sent()  # raises
        self._is_sent = True
        return self._sender.call(self).__await__()

    def send(self, value: Any, /) -> Any:
        """For the event loop: a task steps its coroutine with this."""
        if self._inner is None:
            self.mark_sent()
            self._inner = self._sender.call(self)
        return self._inner.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """For the event loop: a task is cancelled with this."""
        if self._inner is None:
            self.mark_sent()
            raise typ if val is None else val
        return self._inner.throw(typ) if val is tb is None else self._inner.throw(typ, val, tb)

    def close(self) -> None:
        """Close it. If it was not sent yet, it never will be."""
        self._is_sent = True
        if self._inner is not None:
            self._inner.close()

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] # it is never set
        """For asyncio, which shows it in the name of a task."""
        return repr(self)

    def __del__(self) -> None:
        if not self._is_sent and not sys.is_finalizing():
            warnings.warn(f"{self._kind} {self!r} was never awaited", RuntimeWarning, stacklevel=2, source=self)


class Call(Sendable[T_co]):
    """One call of an rpc.

    Args:
        address: The entity.
        rpc: The method.
        payload: The encoded arguments.
        sender: Sends the call.
        timeout_s: How long to wait for the reply; None: the setting's default.
    """

    __slots__ = ("address", "rpc")

    _kind = "call"

    def __init__(
        self, address: EntityAddress, rpc: Rpc, payload: bytes, sender: Caller, timeout_s: float | None
    ) -> None:
        self.address = address
        self.rpc = rpc
        # As `Sendable.__init__`, which would take a quarter of the time that a call is made in.
        self.payload = payload
        self.timeout_s = timeout_s
        self.key: str | None = None
        self.tags: tuple[Tag, ...] = ()
        self._sender = sender
        self._inner: Coroutine[Any, Any, T_co] | None = None
        self._is_sent = False

    def __repr__(self) -> str:
        return f"{self.address}.{self.rpc.name}"


class Stream(AsyncIterator[T_co]):
    """The items that an rpc yields, requested with the first `__anext__`: `async for`, once.

    A reader that stops before the end must call `aclose` (`contextlib.aclosing` does).
    """

    __slots__ = ("_items", "_sender", "address", "payload", "rpc", "timeout_s")

    def __init__(
        self, address: EntityAddress, rpc: Rpc, payload: bytes, sender: Sender, timeout_s: float | None
    ) -> None:
        self.address = address
        self.rpc = rpc
        self.payload = payload
        self.timeout_s = timeout_s
        self._sender = sender
        self._items: AsyncGenerator[T_co, None] | None = None

    def __anext__(self) -> Awaitable[T_co]:
        if self._items is None:
            self._items = self._sender.stream(self)
        return self._items.__anext__()

    async def aclose(self) -> None:
        """Stop reading. The handler is cancelled."""
        if self._items is None:
            self._items = _nothing()
        await self._items.aclose()

    def __repr__(self) -> str:
        return f"{self.address}.{self.rpc.name}"


def require_sendable(call: object, *, what: str) -> Sendable[Any]:
    """Check that an argument is a call or a job, and mark it as sent.

    Raises:
        TypeError: It is something else: another coroutine, a stream.
    """
    if not isinstance(call, Sendable):
        raise TypeError(
            f"{what} takes a call, such as account.charge(…) on a reference, or a job, such as send_email.job(…), "
            f"not {type(call).__name__}"
        )
    call.mark_sent()
    return call


def require_call(call: object, *, what: str, persisted: bool = False) -> Call[Any]:
    """Check that an argument is a call, of a persisted rpc if that is asked for, and mark it as sent.

    Raises:
        TypeError: It is something else: another coroutine, a stream, a job.
    """
    if not isinstance(call, Call):
        raise TypeError(f"{what} takes a call, such as account.charge(…) on a reference, not {type(call).__name__}")
    if persisted and not call.rpc.persisted:
        call.close()
        raise TypeError(f"{what} takes calls of persisted rpcs, and {call!r} is not persisted: use cluster.send")
    call.mark_sent()
    return call


async def _nothing() -> AsyncGenerator[Any, None]:
    return
    yield


class Reference:
    """An entity as its callers see it. Each entity type has its own subclass, with a method for each rpc.

    Two references are equal if they name the same entity. `isinstance(reference, Account)` is false: a reference is
    not an `Account`, it only calls one.
    """

    __slots__ = ("_address", "_sender", "_timeout_s")

    _type_name: ClassVar[str]
    _rpcs: ClassVar[Mapping[str, Rpc]]

    def __init__(self, id: str, sender: Sender, timeout_s: float | None = None) -> None:
        if not isinstance(id, str):
            raise TypeError(f"the id of {self._type_name} is {id!r}: ids are text, write str(…)")
        self._address = EntityAddress(self._type_name, id)
        self._sender, self._timeout_s = sender, timeout_s

    @property
    def id(self) -> str:
        """The id of the entity."""
        return self._address.id

    def __getattr__(self, name: str) -> NoReturn:
        known = ", ".join(self._rpcs) or "none"
        raise AttributeError(
            f"a reference has only rpcs and id, and {name!r} is neither: the rpcs of {self._type_name} are {known}",
            name=name,
            obj=self,
        )

    def __eq__(self, other: object) -> bool:
        return self._address == other._address if isinstance(other, Reference) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return str(self._address)


def reference_type(name: str, rpcs: Mapping[str, Rpc]) -> type[Reference]:
    """The class of the references to one entity type."""
    methods = {rpc.name: _method(rpc) for rpc in rpcs.values()}
    return type(f"{name}Reference", (Reference,), {"__slots__": (), "_type_name": name, "_rpcs": rpcs, **methods})


def address_of(ref: object) -> EntityAddress:
    """The address of the entity that a reference names.

    Raises:
        TypeError: It is not a reference.
    """
    if not isinstance(ref, Reference):
        raise TypeError(f"expected a reference, as cluster.ref(Account, …) gives one, not {type(ref).__name__}")
    return ref._address  # noqa: SLF001 private only so that rpcs may have any name


def _method(rpc: Rpc) -> Callable[..., Any]:
    """Builds the calls of one rpc. The hot path of every call: bind, encode, one object."""
    make = Stream if rpc.is_stream else Call
    encode, declared_s = rpc.arguments.encode, rpc.timeout_s

    def method(self: Reference, /, *args: Any, **kwargs: Any) -> Any:
        timeout_s = declared_s if self._timeout_s is None else self._timeout_s
        return make(self._address, rpc, encode(args, kwargs), self._sender, timeout_s)

    return update_wrapper(method, rpc.fn, assigned=WRAPPER_ASSIGNMENTS, updated=())
