"""Work: one call inside a runner, and the methods that answer it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Self

from msgspec import Struct

from coterie.entities.calls.wire import FAILED, Chain, Envelope
from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable

if TYPE_CHECKING:
    import asyncio

    from coterie.entities.host.activation import Resident
    from coterie.entities.persisted.commit import HandlerEffects
    from coterie.entities.rpc import Rpc
    from coterie.kernel.context import ClusterContext

LATER: Any = None
"""The default of a field that is set right after creation, and has its real type from then on."""


class Work(Struct, eq=False):
    """A call for an entity of this runner. Each source of calls derives a class that answers in its own way.

    A Struct, since creating one takes half the time of a class. The fields from `resident` on belong to the host.

    Promise:
        The host answers once (with `reply`, `failed`, `end`, `refuse` or `not_mine`), by the deadline and a tick,
        whatever the handler does; or never, after `Host.cancel`.
    """

    entity_type: str
    entity_id: str
    method: str
    payload: bytes
    """The arguments, as encoded by `rpc.arguments.encode`."""
    deadline_s: float
    """When the caller stops waiting, in the loop's time. The host extends it with each item of a stream."""
    within_s: float
    """The caller's timeout, for errors; of a stream: the longest time between two items."""
    message_id: str
    """Unique: identifies a call that would wait for itself."""
    chain: Chain = ()
    key: str | None = None
    trace_id: str | None = None
    attempt: int = 1
    resident: Resident = LATER
    rpc: Rpc = LATER
    effects: HandlerEffects | None = None  # the effects of its handler, if it has any
    task: asyncio.Task[Any] | None = None  # the task that runs it, once it has suspended
    has_begun: bool = False  # whether its handler has started: until then it can be sent elsewhere
    began_ns: int = 0  # when its turn came, on the steady clock; while it waits in a mailbox: since when
    is_stopped: bool = False  # whether that task was cancelled
    is_open: bool = True
    """Whether the caller still waits for the answer."""
    is_stored: ClassVar[bool] = False
    """Whether it is persisted, so that its end has to be committed."""

    @classmethod
    def from_envelope(cls, envelope: Envelope, deadline_s: float) -> Self:
        """The work of a call as its caller describes it."""
        return cls(
            envelope.entity_type,
            envelope.entity_id,
            envelope.method,
            envelope.payload,
            deadline_s,
            envelope.within_s,
            envelope.message_id,
            envelope.chain,
            envelope.key,
            envelope.trace_id or envelope.message_id,
        )

    def reply(self, body: bytes) -> None:
        """Send the result, as encoded by `rpc.encode_result`."""
        raise NotImplementedError

    def failed(self, failure: bytes) -> None:
        """Send the error of the handler or the activation, as encoded by `pack_failure`. Ends a stream too."""
        self.reply(FAILED + failure)

    def refuse(self, error: CoterieError) -> None:
        """Send an error of the cluster instead of the handler's answer. Ends a stream too."""
        raise NotImplementedError

    def not_mine(self) -> None:
        """This runner does not hold the shard, or releases it: the handler has not run. The caller tries elsewhere."""
        raise NotImplementedError

    async def send(self, item: bytes) -> None:
        """Send an item of a stream. Waits while the reader is behind; raises if the reader is gone.

        By default it is refused: the caller's class has a plain method where ours has a stream, so that their programs
        are of different versions.
        """
        del item
        if self.is_open:
            self.end()
        raise RunnerUnavailable(runner="", target=self.target, problem="it takes no stream", sent=False)

    def end(self) -> None:
        """End a stream; refused as in `send`."""
        self.refuse(MalformedMessage(what=self.target, problem="it is a stream, and was called as if it were none"))

    def may_begin(self, now_ns: int) -> bool:
        """Whether it is known well enough, at a time of the steady clock, whether it is paused."""
        del now_ns
        return True

    def is_held(self) -> bool:
        """Whether it is paused. Then it is not begun here, and has been given up."""
        return False

    def rest(self) -> None:
        """Its body waits for a job from here on: that may need the place which this one takes."""

    def resume(self) -> None:
        """It no longer waits. For each `rest` there is one."""

    @property
    def address(self) -> str:
        """The entity: `Account/alice`."""
        return f"{self.entity_type}/{self.entity_id}"

    @property
    def target(self) -> str:
        """The target as errors show it: `Account/alice.balance`."""
        return f"{self.entity_type}/{self.entity_id}.{self.method}"

    def onward(self) -> Chain:
        """The chain of a call that this work's handler awaits."""
        return (*self.chain, (self.address, self.message_id))

    def cluster_context(self) -> ClusterContext:
        """The value of `current()` in the handler; created on demand, since most handlers never use it."""
        return self.resident.context_of(self)


handling: ContextVar[Work | None] = ContextVar("coterie_handling", default=None)
"""The work whose handler is running, so that calls made in it continue chain and trace; None outside handlers."""
