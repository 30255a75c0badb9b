"""Read-only queries that check whether a cluster has kept its promises, and describe its database."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class ServerInfo(msgspec.Struct, frozen=True):
    """A description of the database."""

    product: str
    """`PostgreSQL 16.3`."""
    ours: int | None = None
    """Connections of coterie, of any cluster, as far as this role may see them; None: the engine has no connections."""
    taken: int | None = None
    """Connections of all clients."""
    most: int | None = None


class AuditRow(msgspec.Struct, frozen=True):
    """An event of a seat or a runner, written in the same transaction as the event (setting `audit`).

    The rows of one seat are numbered in commit order: the writer holds the seat's lock.
    """

    id: int
    at: datetime
    kind: Literal["granted", "released", "evicted", "left", "refused"]
    runner: str
    """The runner's incarnation."""
    seat: str | None
    epoch: int | None
    note: str


class StateMark(msgspec.Struct, frozen=True):
    """A state that was saved under the fence of a seat."""

    key: str
    seat: str
    version: int
    epoch: int
    at: datetime | None
    """When it was saved; None: the present state, whose epoch is that of the last holder to save or load it."""


class EndedMessage(msgspec.Struct, frozen=True):
    """A message that is done, dead or cancelled."""

    id: str
    entity_type: str
    entity_id: str
    method: str
    seat: str
    epoch: int
    """The epoch of the holder that ended it; 0: it was cancelled, without an epoch."""
    at: datetime
    is_dead: bool
    has_reply: bool
    attempts: int


class Inspection(Protocol):
    """Queries in pages: up to `most` rows after `after`, in order."""

    async def server(self) -> ServerInfo:
        """Describe the database."""
        ...

    async def audit(self, *, after: int, most: int) -> Sequence[AuditRow]:
        """Return the audit rows, by number."""
        ...

    async def states(self, *, after: str, most: int) -> Sequence[StateMark]:
        """Return the present state and the kept history of the next keys, by key and version, the present last."""
        ...

    async def endings(self, *, after: str, most: int) -> Sequence[EndedMessage]:
        """Return the messages that have ended, by id."""
        ...
