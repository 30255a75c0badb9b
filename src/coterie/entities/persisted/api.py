"""`cluster.messages`: stored calls for people to look at, to run again and to clear away."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from coterie.entities.calls.wire import MARK, read_failure, read_marked
from coterie.entities.idempotency_key import shown_key
from coterie.errors import CoterieError, MalformedMessage, MessageExpired
from coterie.kernel import spans
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import EntityAddress, MessageId, Seat
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.text import require_text
from coterie.storage.contracts.messages import MessageFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from coterie.kernel.durations import Duration
    from coterie.storage.contracts import messages
    from coterie.storage.contracts.messages import MessageRow, Status

log = logging.getLogger("coterie.entities")

_PAGE = 200
"""Rows that are read at a time: each has its payload."""
_BATCH = 1_000
"""Rows that one statement deletes: some milliseconds, so that nobody waits for its locks."""
_STATUSES = ("pending", "done", "dead")


class FailedAttempt(NamedTuple):
    """One attempt at a message that failed."""

    number: int
    at: datetime
    error: str
    """Its type and words in the first line, then where it happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """A stored call, as it was when it was looked at. All instants are the database's."""

    id: MessageId[Any]
    entity: str
    """Which one it is for: `Account/alice`."""
    method: str
    status: Status
    """`pending` (also while it runs), `done`, or `dead`: its attempts or losses are used up."""
    shard: str
    """Where its entity lives: `default:42`."""
    key: str | None
    """As people read it; None if it has none."""
    sent_at: datetime
    due_at: datetime
    """When it may run, or run again."""
    completed_at: datetime | None
    """When it was done, or set aside as dead."""
    attempts: int
    """That failed."""
    errors: tuple[FailedAttempt, ...]
    """The last ones, the first of them first."""
    payload: Any
    """The arguments by name, as plain values; bytes, if they cannot be read."""
    reply: Any
    """The result, as plain values; None as long as there is none."""
    failure: str | None
    """The declared error that is its result, if it is one."""
    trace_id: str | None
    losses: int = 0
    """How many runners were lost when they ran it alone, or were about to: `loss_limit` of them make it dead."""


class Messages:
    """What `cluster.messages` can do. Status is one of "pending", "done" and "dead".

    Example:
        ```python
        for message in await cluster.messages.list(status="dead", entity="Account/alice"):
            print(message.id, message.method, message.payload, message.errors[-1].error)
            await cluster.messages.retry(message.id)
        ```

    Args:
        source: The storage that is asked.
        hint: Told the seat whose owner has something to look for.
        writing: Told what is about to write, and refuses it where it must not.
    """

    def __init__(
        self,
        source: Callable[[], messages.MessageStore],
        *,
        hint: Callable[[str], object] = lambda _: None,
        writing: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._source = source
        self._hint = hint
        self._writing = writing

    async def list(
        self,
        *,
        status: Status | None = None,
        entity: str | None = None,
        older_than: Duration | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Sequence[MessageInfo]:
        """Messages in about the order in which they were sent.

        Args:
            status: Only those.
            entity: Only those of an entity, `Account/alice`, or of all of a type, `Account`.
            older_than: Only those that were sent, or have ended, longer ago.
            limit: How many at most.
            after: Only those past this id: the last one of the list before.
        """
        chosen = _filter(status=status, entity=entity, older_than=older_than)
        found: list[MessageInfo] = []
        after = after if after is None else require_text(str(after), what="message id")
        while len(found) < limit:
            most = min(_PAGE, limit - len(found))
            rows = await self._source().list(chosen, after=after, most=most)
            found += map(_info, rows)
            if len(rows) < most:
                break
            after = rows[-1].id
        return found

    async def show(self, id: str) -> MessageInfo:
        """All that is known about a message.

        Raises:
            MessageExpired: It is not there: its retention has passed, or it never existed [m17].
        """
        return _info(await self._row(id))

    async def retry(self, id: str) -> bool:
        """Let a dead message run again, now and with all its attempts; False: it is not dead.

        Raises:
            MessageExpired: It is not there.
        """
        self._writing("cluster.messages.retry")
        row = await self._row(id)
        revived = await self._source().revive(id=row.id)
        if revived:
            self._hint(row.seat)
        return revived > 0

    async def purge(
        self,
        *,
        status: Literal["done", "dead"],
        entity: str | None = None,
        older_than: Duration | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete messages that have ended, a batch at a time; how many it were.

        Args:
            status: Which ones.
            entity: As for `list`.
            older_than: Only those that have ended longer ago.
            progress: Told after each batch how many it were so far.

        Not promised:
            That a key of theirs is still known: a call with such a key, sent again, runs again.
        """
        if status not in ("done", "dead"):
            raise ValueError(f'status is {status!r}, and only "done" and "dead" messages can be purged')
        chosen = _filter(status=status, entity=entity, older_than=older_than)
        self._writing("cluster.messages.purge")
        total, removed = 0, _BATCH
        while removed == _BATCH:
            removed = await self._source().remove(chosen, most=_BATCH)
            total += removed
            if progress is not None:
                progress(total)
        log.info("%d %s messages were deleted", total, status)
        return total

    async def _row(self, id: str) -> MessageRow:
        rows = await self._source().look([require_text(str(id), what="message id")])
        if not rows:
            raise MessageExpired(message_id=id)
        return rows[0]


def _filter(*, status: Status | None, entity: str | None, older_than: Duration | None) -> MessageFilter:
    if status is not None and status not in _STATUSES:
        raise ValueError(f"status is {status!r}, and there are {', '.join(_STATUSES)}")
    if entity is not None and not isinstance(entity, str):
        raise TypeError(f'entity is {entity!r}: write its name, as in "Account" or "Account/alice"')
    if entity is not None:
        require_text(entity, what="entity")
    older_than_s = None if older_than is None else to_seconds(older_than, what="older_than", allow_zero=True)
    if entity is None or "/" not in entity:
        return MessageFilter(status=status, entity_type=entity, older_than_s=older_than_s)
    address = EntityAddress.parse(entity)
    return MessageFilter(status=status, entity_type=address.type, entity_id=address.id, older_than_s=older_than_s)


def _info(row: MessageRow) -> MessageInfo:
    reply, failure = _told(row.reply)
    return MessageInfo(
        id=MessageId(row.id),
        entity=f"{row.entity_type}/{row.entity_id}",
        method=row.method,
        status=row.status,
        shard=Seat.split(row.seat)[1],
        key=None if row.key is None else shown_key(row.key),
        sent_at=row.sent_at,
        due_at=row.due_at,
        completed_at=row.completed_at,
        attempts=row.attempts,
        errors=tuple(FailedAttempt(one.number, one.at, one.error) for one in row.errors),
        payload=_plain(row.payload),
        reply=reply,
        failure=failure,
        trace_id=spans.id_of(row.trace_id),
        losses=row.losses,
    )


def _told(reply: bytes | None) -> tuple[Any, str | None]:
    """The result and the failure that a stored reply holds: one of the two."""
    if not reply:
        return None, None
    if reply[0] != MARK:
        return _plain(reply), None
    marked = read_marked(reply)
    error = read_failure(marked if isinstance(marked, bytes) else b"", {})
    return None, error.message if isinstance(error, CoterieError) else str(error)


def _plain(data: bytes) -> Any:
    try:
        return PLAIN.decode(data)
    except MalformedMessage:
        return data
