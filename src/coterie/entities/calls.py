"""What `ref.method(…)` gives: a call, which is a real coroutine, or a stream of items.

    built ──await, create_task, gather, TaskGroup──▶ sent once, waits for the reply
      ├────given to cluster.send or cluster.call───▶ sent once by those
      └────dropped─────────────────────────────────▶ nothing is sent, and a RuntimeWarning says so

Arguments are encoded when the call is built. So wrong ones are refused in the line that has them, before anything
is sent, and later changes to what was passed do not reach the entity.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from coterie.entities.rpcs import Rpc
    from coterie.kernel.ids import EntityAddress

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Sender(Protocol):
    """Whoever sends calls: the cluster."""

    def call(self, call: Call[T], /) -> Coroutine[Any, Any, T]:
        """Send a call and wait for its result."""
        ...

    def stream(self, stream: Stream[T], /) -> AsyncGenerator[T, None]:
        """Ask for the items of a stream."""
        ...


class Call(Coroutine[Any, Any, T_co]):
    """One call of an rpc, to be awaited or sent once [M14].

    Args:
        address: The entity.
        rpc: The method.
        payload: Its arguments, encoded.
        sender: Who sends it.
        timeout_s: How long to wait for the reply; None: the setting's default.

    Promise:
        Awaited twice it raises, rather than sending twice. Cancelled before it began, it sends nothing.
    """

    __slots__ = ("_inner", "_sender", "_taken", "address", "key", "payload", "rpc", "timeout_s")

    def __init__(
        self, address: EntityAddress, rpc: Rpc, payload: bytes, sender: Sender, timeout_s: float | None
    ) -> None:
        self.address = address
        self.rpc = rpc
        self.payload = payload
        self.timeout_s = timeout_s
        self.key: str | None = None
        self._sender = sender
        self._inner: Coroutine[Any, Any, T_co] | None = None
        self._taken = False

    def take(self) -> None:
        """Say that this call is sent now, by whoever calls this. Once.

        Raises:
            RuntimeError: It was sent before.
        """
        if self._taken:
            raise RuntimeError(f"call {self!r} was awaited, sent or closed before: build a new one for each request")
        self._taken = True

    def __await__(self) -> Generator[Any, Any, T_co]:
        if self._taken:
            self.take()  # which refuses
        self._taken = True
        return self._sender.call(self).__await__()

    def send(self, value: Any, /) -> Any:
        """For the event loop: a task drives its coroutine by this."""
        if self._inner is None:
            self.take()
            self._inner = self._sender.call(self)
        return self._inner.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """For the event loop: how a task is cancelled."""
        if self._inner is None:
            self.take()
            raise typ if val is None else val
        return self._inner.throw(typ) if val is tb is None else self._inner.throw(typ, val, tb)

    def close(self) -> None:
        """Give it up. One that was not sent yet never will be."""
        self._taken = True
        if self._inner is not None:
            self._inner.close()

    @property
    def __name__(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] # nobody sets it
        """For asyncio, which shows it in the name of a task."""
        return repr(self)

    def __repr__(self) -> str:
        return f"{self.address}.{self.rpc.name}"

    def __del__(self) -> None:
        if not self._taken and not sys.is_finalizing():
            warnings.warn(f"call {self!r} was never awaited", RuntimeWarning, stacklevel=2, source=self)


class Stream(AsyncIterator[T_co]):
    """The items that an rpc yields, asked for when the first is wanted: `async for`, once.

    Whoever leaves before the end calls `aclose` (`contextlib.aclosing` does).
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
        """Take no more items. The handler is told."""
        if self._items is None:
            self._items = _nothing()
        await self._items.aclose()

    def __repr__(self) -> str:
        return f"{self.address}.{self.rpc.name}"


def require_call(call: object, *, what: str) -> Call[Any]:
    """The call, taken, for a method that is given one.

    Raises:
        TypeError: It is something else: another coroutine, a stream.
    """
    if not isinstance(call, Call):
        raise TypeError(f"{what} takes a call, such as account.charge(…) on a reference, not {type(call).__name__}")
    call.take()
    return call


async def _nothing() -> AsyncGenerator[Any, None]:
    return
    yield
