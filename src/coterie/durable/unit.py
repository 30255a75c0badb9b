"""The API that ticks, workflows and units of a leader share for their bodies; and the unit of a leader."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from coterie.durable.steps import DurableWork
from coterie.kernel.text import storable
from coterie.storage.contracts.units import UnitEnd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from coterie.durable.waits import Deferred
    from coterie.kernel.durations import Duration
    from coterie.kernel.random import Random
    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts.units import UnitKind
    from coterie.work.services import Services

P = ParamSpec("P")
T = TypeVar("T")

_KEY_MOST_BYTES = 1000
"""The key is part of an index entry, with the names of its singleton and a deferred: PostgreSQL allows 2,704 bytes."""


class Durable(Protocol):
    """Work that continues on another runner when its own is lost: a unit of a leader, a tick, a workflow."""

    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

    def sleep(self, duration: Duration, *, name: str) -> Coroutine[Any, Any, None]: ...

    def deferred(self, name: str, type: type[T], /) -> Deferred[T]: ...


def _with_name(method: Callable[P, T]) -> Callable[P, T]:
    """A method that says what to write if its name is left out."""

    @wraps(method)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        if "name" not in kwargs:
            given = ", ".join(map(repr, args[1:]))
            raise TypeError(
                f'{method.__name__}({given}) has no name: write {method.__name__}({given}, name="…"), by which later '
                f"runs of this body find it again"
            )
        return method(*args, **kwargs)

    return checked


class Steps:
    """The three durable operations, over the work of one unit."""

    def __init__(self, work: DurableWork) -> None:
        self._work = work

    @overload
    def step(
        self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Run a function once and return its result, in this and every later run.

        The result is stored when this returns. If the runner is lost before that, the function runs again.

        Args:
            name: The name of the step.
            fn: An async function; or a plain one, which runs in a thread. Its result is decoded by its return
                annotation; without one it must be a plain value.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Raises:
            StepDiverged: The code diverges from what is stored.
        """
        return self._work.step(name, fn, args, kwargs)

    @_with_name
    def sleep(self, duration: Duration, *, name: str) -> Coroutine[Any, Any, None]:
        """Sleep across restarts, measured from the first call."""
        return self._work.sleep(duration, name=name)

    def deferred(self, name: str, type: type[T], /) -> Deferred[T]:
        """A value that another process provides, by a token: `cluster.resolve(token, value)`."""
        return self._work.deferred(name, type)


def work_of(
    services: Services, tenure: Tenure, *, unit: str, kind: UnitKind, name: str, id: str, life: int
) -> DurableWork:
    """The durable work of a unit, which is created by its first step, with this life unless it exists."""
    return DurableWork(
        unit,
        services,
        tenure,
        open=lambda: services.units.open(tenure.claim, unit=unit, kind=kind, name=name, id=id, life=life),
        life=life,
    )


def new_life(chance: Random) -> int:
    """The life of a new unit; never 0, which marks units that began before lives existed."""
    return 1 + chance.bits(62)


async def finish(work: DurableWork, services: Services, tenure: Tenure) -> None:
    """Delete the rows of a unit that will not be continued, in one commit. Retried while we hold the seat."""
    await work.retry_write(lambda: services.units.end(UnitEnd(tenure.claim, work.unit, "done")))


@asynccontextmanager
async def unit(
    services: Services, tenure: Tenure, *, singleton: str, key: str, works: dict[str, DurableWork]
) -> AsyncIterator[Steps]:
    """A unit of a leader: it ends when the block succeeds; otherwise the next run of the block continues it.

    Args:
        services: The services of its runner.
        tenure: The tenure under which it writes.
        singleton: The singleton that it belongs to.
        key: Its name within the singleton.
        works: Registers it by name, so that hints reach it.
    """
    if not key or "\x00" in key or "\n" in key or storable(key) != key:
        raise ValueError(f"key of a unit is {key!r}, expected text on one line")
    if (size_bytes := len(key.encode())) > _KEY_MOST_BYTES:
        raise ValueError(f"key of a unit is {key[:20]!r}… with {size_bytes} bytes, more than {_KEY_MOST_BYTES}")
    named = f"{tenure.seat}/{key}"
    if named in works:
        raise RuntimeError(f"unit {key!r} of singleton {singleton!r} is open already: use another key")
    life = new_life(services.chance)
    work = works[named] = work_of(services, tenure, unit=named, kind="leader", name=singleton, id=key, life=life)
    try:
        await work.opened()
        work.places.begin()
        yield Steps(work)
    finally:
        del works[named]
        work.places.exit()
        await work.end_branches()
    if not isinstance(work.halted, Exception):  # a unit that diverged is kept, even if the block has caught the error
        await finish(work, services, tenure)
