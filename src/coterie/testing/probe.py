"""One entity without a cluster: `probe` returns what `cluster.ref` would; calls run in the test's own loop."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from contextlib import aclosing, asynccontextmanager
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.entities.calls.local import LocalCall, LocalPipe, LocalStream, call_nearby
from coterie.entities.calls.wire import MARK, NOT_MINE, read_failure, read_marked
from coterie.entities.definition import EntityType, define
from coterie.entities.entity import Entity, state_type_of
from coterie.entities.host.host import Host
from coterie.entities.host.work import handling
from coterie.errors import ShuttingDown
from coterie.kernel.clock import Clock, SystemClock
from coterie.kernel.context import trace_here
from coterie.kernel.ids import Seat, ShardId
from coterie.kernel.random import Random
from coterie.kernel.serialization.codec import codec_for
from coterie.ownership.seats import Tenure, Trust
from coterie.settings import Settings
from coterie.storage.interface import Claim
from coterie.testing.loop.clocks import SimClock
from coterie.testing.loop.loop import SimLoop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from coterie.entities.reference import Call, Stream
    from coterie.entities.rpc import Rpc

E = TypeVar("E", bound="Entity[Any]")

_FOR_EVER_NS = 2**62


@asynccontextmanager
async def probe(entity: type[E], id: str = "probe", *, state: Any = None) -> AsyncIterator[E]:
    """One entity without a cluster, for tests of its own code.

    Calls take the same path as on a runner: arguments, results and errors are encoded and decoded, `on_activate` runs
    before the first, one runs at a time, an unexpected error is a `RemoteError` and drops the instance. `on_deactivate`
    runs and resources are closed when the block ends.

    Example:
        ```python
        async with probe(Account, state=Balance(cents=900)) as account:
            assert await account.charge("order-7", 500) == 400
        ```

    Args:
        entity: The class. It need not belong to a cluster, and has the default options of one.
        id: Its id.
        state: Its first state, instead of its `initial_state`.

    Not promised:
        Nothing is stored: an instance that was dropped starts again with `state`. `self.cluster` raises, since there is
        none: `simulate` has one.
    """
    entity_type = _with_state(define(entity), state)
    clock = _clock(asyncio.get_running_loop())
    host = Host(
        {entity_type.name: entity_type},
        cluster=None,
        settings=dataclasses.replace(Settings(), shards=1),
        clock=clock,
        chance=Random(0),
        name="probe",
    )
    # An empty context: handlers see no context variables of the code that creates the probe (ROUTE-06).
    Context().run(host.occupy, _tenure(entity_type.group, clock))
    try:
        yield entity_type.ref(id, _Sender(host))
    finally:
        await host.stop()


class _Sender:
    """Sends the calls of one reference to a host, and reads the replies (`entities.reference.Sender`)."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._default_s = host.settings.call_timeout.total_seconds()
        self._ids = itertools.count(1)

    async def call(self, call: Call[Any], /) -> Any:
        work = LocalCall(**self._facts(call), key=call.key)
        return _read(await call_nearby(self._host, work), call.rpc)

    async def stream(self, stream: Stream[Any], /) -> AsyncGenerator[Any, None]:
        work = LocalStream(**self._facts(stream))
        async with aclosing(LocalPipe(self._host, work)) as items:
            async for body in items:
                yield _read(body, stream.rpc)

    def _facts(self, what: Call[Any] | Stream[Any]) -> dict[str, Any]:
        outer = handling.get()
        within_s = self._default_s if what.timeout_s is None else what.timeout_s
        return {
            "entity_type": what.address.type,
            "entity_id": what.address.id,
            "method": what.rpc.name,
            "payload": what.payload,
            "deadline_s": asyncio.get_running_loop().time() + within_s,
            "within_s": within_s,
            "message_id": f"{next(self._ids):032x}",
            "chain": () if outer is None else outer.onward(),
            "trace_id": trace_here(),
        }


def _read(body: bytes, rpc: Rpc) -> Any:
    if body[0] != MARK:
        return rpc.decode_result(body)
    if body.startswith(NOT_MINE):
        raise ShuttingDown(what="the probe")
    marked = read_marked(body)
    assert isinstance(marked, bytes), "not mine is dealt with"
    raise read_failure(marked, rpc.errors)


def _with_state(entity_type: EntityType[E], state: Any) -> EntityType[E]:
    if state is None:
        return entity_type
    cls = entity_type.cls
    if entity_type.state is None:
        raise TypeError(f"{cls.__name__} has no state: write class {cls.__name__}(Entity[…])")
    kept = codec_for(state_type_of(cls)).checked(state, what=f"state of {entity_type.name}")

    def initial_state(self: Any) -> Any:
        return codec_for(state_type_of(type(self))).decode(kept)

    derived: Any = type(cls.__name__, (cls,), {"initial_state": initial_state, "__module__": cls.__module__})
    return dataclasses.replace(entity_type, cls=derived)


def _clock(loop: asyncio.AbstractEventLoop) -> Clock:
    return SimClock(loop, loop.test) if isinstance(loop, SimLoop) else SystemClock()


def _tenure(group: str, clock: Clock) -> Tenure:
    trust = Trust(clock)
    trust.connected = True
    trust.extend(_FOR_EVER_NS)
    return Tenure(Claim("probe", Seat.shard(ShardId(group, 0)), 1), clean=True, trust=trust)
