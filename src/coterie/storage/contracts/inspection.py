"""What those read who look whether a cluster has kept its promises, and what its database is: nothing here writes."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence


class ServerInfo(msgspec.Struct, frozen=True):
    """The database, as it introduces itself."""

    product: str
    """`PostgreSQL 16.3`."""
    ours: int | None = None
    """Connections of coterie, of any cluster, as far as this role may see them; None: there are no connections."""
    taken: int | None = None
    """Connections of anybody."""
    most: int | None = None


class AuditRow(msgspec.Struct, frozen=True):
    """What happened to a seat or a runner, noted in the transaction in which it did (setting `audit`).

    Those of one seat are numbered in the order of their commits: whoever notes something holds the seat's lock.
    """

    id: int
    at: datetime
    kind: Literal["granted", "released", "evicted", "left", "refused"]
    runner: str
    """Its incarnation."""
    seat: str | None
    epoch: int | None
    note: str


class StateMark(msgspec.Struct, frozen=True):
    """A state that was saved in the name of a seat."""

    key: str
    seat: str
    version: int
    epoch: int
    at: datetime | None
    """When it was saved; None: this is the present state, whose epoch is that of whoever saved or loaded it last."""


class EndedMessage(msgspec.Struct, frozen=True):
    """A message that has ended."""

    id: str
    entity_type: str
    entity_id: str
    method: str
    seat: str
    epoch: int
    """Of the holder that ended it; 0: it was cancelled, in the name of no epoch."""
    at: datetime
    is_dead: bool
    has_reply: bool
    attempts: int


class Inspection(Protocol):
    """All of it in pages: what is past `after`, in order, `most` at most."""

    async def server(self) -> ServerInfo:
        """What the database is."""
        ...

    async def audit(self, *, after: int, most: int) -> Sequence[AuditRow]:
        """The audit, by number."""
        ...

    async def states(self, *, after: str, most: int) -> Sequence[StateMark]:
        """Of the next keys the present state and what is kept of its history: by key and version, the present last."""
        ...

    async def endings(self, *, after: str, most: int) -> Sequence[EndedMessage]:
        """Messages that have ended, by id."""
        ...
