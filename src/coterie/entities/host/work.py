"""Work: one call on its way through a runner, and the ways to answer it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

if TYPE_CHECKING:
    from coterie.errors import CoterieError
    from coterie.kernel.context import ClusterContext

Chain = tuple[tuple[str, str], ...]
"""Who awaits a call, the outermost first: address (`Account/alice`) and id of each message that is being handled."""


class Work(Struct, eq=False):
    """A call for an entity of this runner. Whoever delivers it derives a class that answers in its own way.

    A Struct, since those are made in half a class's time. The fields from `resident` on belong to the host.

    Promise:
        The host answers once (with `reply`, `failed`, `end`, `refuse` or `not_mine`), by the deadline and a tick,
        whatever the handler does; or never, if `Host.cancel` said before that nobody waits.
    """

    entity_type: str
    entity_id: str
    method: str
    payload: bytes
    """The arguments, as `rpc.arguments.encode` gave them."""
    deadline_s: float
    """When the caller gives up, in the loop's time. The host moves it on with each item of a stream."""
    within_s: float
    """How long the caller was ready to wait, for errors; of a stream: the longest silence."""
    message_id: str
    """Unique: by it a call that would wait for itself is recognised."""
    chain: Chain = ()
    key: str | None = None
    trace_id: str | None = None
    attempt: int = 1
    resident: Any = None  # the Resident that it is for
    rpc: Any = None  # the Rpc
    ledger: Any = None  # the Ledger of what its handler leaves behind, if it leaves anything
    task: Any = None  # the task that runs it, once it waits for something
    has_begun: bool = False  # whether its handler has: until then it can go elsewhere
    began_ns: int = 0  # when its turn came, on the steady clock; before, if it waits in a mailbox: since when
    is_stopped: bool = False  # whether that task was cancelled
    is_open: bool = True
    """Whether somebody still waits for the answer."""
    is_stored: ClassVar[bool] = False
    """Whether it comes from the database, and its end has to be committed there."""

    def reply(self, body: bytes) -> None:
        """The result, as `rpc.encode_result` gave it."""
        raise NotImplementedError

    def failed(self, failure: bytes) -> None:
        """What the handler, or the activation, raised, as `pack_failure` gave it. Ends a stream too."""
        raise NotImplementedError

    def refuse(self, error: CoterieError) -> None:
        """An error of the cluster instead of an answer of the handler. Ends a stream too."""
        raise NotImplementedError

    def not_mine(self) -> None:
        """This runner does not hold the shard, or gives it up: the handler has not run. Send it elsewhere."""
        raise NotImplementedError

    async def send(self, item: bytes) -> None:
        """An item of a stream. Waits while the reader is behind; raises if the reader has left."""
        raise NotImplementedError

    def end(self) -> None:
        """The end of a stream."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """The entity: `Account/alice`."""
        return f"{self.entity_type}/{self.entity_id}"

    @property
    def target(self) -> str:
        """How errors call it: `Account/alice.balance`."""
        return f"{self.entity_type}/{self.entity_id}.{self.method}"

    def onward(self) -> Chain:
        """The chain of a call that this work's handler awaits."""
        return (*self.chain, (self.address, self.message_id))

    def cluster_context(self) -> ClusterContext:
        """What `current()` gives in the handler; made when asked for, which most never do."""
        context: ClusterContext = self.resident.context_of(self)
        return context


handling: ContextVar[Work | None] = ContextVar("coterie_handling", default=None)
"""The work whose handler runs here, so that calls made in it carry chain and trace on; None outside of handlers."""
