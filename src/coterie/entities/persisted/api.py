"""`cluster.messages`: list, show, retry, edit and purge persisted calls."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from coterie.entities.calls.wire import MARK, read_failure, read_marked
from coterie.entities.idempotency_key import shown_key
from coterie.errors import CoterieError, MalformedMessage, MessageExpired
from coterie.kernel import spans
from coterie.kernel.durations import Duration, to_seconds
from coterie.kernel.ids import EntityAddress, MessageId, Seat
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.text import require_text
from coterie.storage.contracts.messages import MessageFilter, MessageRow, Status
from coterie.work.tags import tag_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from coterie.storage.contracts import messages

    Resend = Callable[["MessageInfo", bytes], Awaitable[MessageId[Any]]]

log = logging.getLogger("coterie.entities")

_PAGE = 200
"""Rows that are read at a time: each includes its payload."""
_BATCH = 1_000
"""Rows that one statement deletes: it holds its locks for a few milliseconds only."""
_STATUSES = ("pending", "done", "dead")


class FailedAttempt(NamedTuple):
    """One failed attempt at a message."""

    number: int
    at: datetime
    error: str
    """Its type and message in the first line, then the traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInfo:
    """A persisted call at the time it was read. All instants are the database's."""

    id: MessageId[Any]
    entity: str
    """The entity it is for: `Account/alice`."""
    method: str
    status: Status
    """`pending` (also while it runs), `done`, or `dead`: its attempts or losses are used up."""
    shard: str
    """The shard of its entity: `default:42`."""
    key: str | None
    """In readable form; None if it has none."""
    sent_at: datetime
    due_at: datetime
    """When it may run, or run again."""
    completed_at: datetime | None
    """When it was done, or became dead."""
    attempts: int
    """The number of failed attempts."""
    errors: tuple[FailedAttempt, ...]
    """The latest ones, oldest first."""
    payload: Any
    """The arguments by name, as plain values; bytes if they cannot be decoded."""
    reply: Any
    """The result, as plain values; None while there is none."""
    failure: str | None
    """The declared error, if the result is one."""
    trace_id: str | None
    losses: int = 0
    """The number of runners lost while they ran it alone, or were about to: `loss_limit` losses make it dead."""
    tags: Mapping[str, str] = field(default_factory=dict)


class Messages:
    """The API of `cluster.messages`. Status is one of "pending", "done" and "dead".

    Example:
        ```python
        for message in await cluster.messages.list(status="dead", entity="Account/alice"):
            print(message.id, message.method, message.payload, message.errors[-1].error)
            await cluster.messages.retry(message.id)
        ```

    Args:
            source: Returns the message store.
            hint: Called with a seat whose owner should poll storage.
            writing: Called with the name of an operation before it writes; raises where writing is not allowed.
            resend: Sends the call of a dead message with other arguments, a JSON map.
    """

    def __init__(
        self,
        source: Callable[[], messages.MessageStore],
        *,
        hint: Callable[[str], object] = lambda _: None,
        writing: Callable[[str], object] = lambda _: None,
        resend: Resend | None = None,
    ) -> None:
        self._resend = resend
        self._source = source
        self._hint = hint
        self._writing = writing

    async def list(
        self,
        *,
        status: Status | None = None,
        entity: str | None = None,
        older_than: Duration | None = None,
        tag: tuple[str, str] | None = None,
        limit: int = 100,
        after: str | None = None,
        newest: bool = False,
    ) -> Sequence[MessageInfo]:
        """List messages, approximately in the order in which they were sent.

        Args:
            status: Only messages with this status.
            entity: Only messages of one entity, `Account/alice`, or of one type, `Account`.
            older_than: Only messages that were sent, or have ended, longer ago.
            tag: Only messages that were sent with this tag: its name and its value.
            limit: The maximum number of messages.
            after: Only messages after this id: the last one of the previous list.
            newest: List them in the reverse order, the newest first.
        """
        chosen = _filter(status=status, entity=entity, older_than=older_than)
        if tag is not None:
            chosen = replace(chosen, tag=tag_of(tag))
        found: list[MessageInfo] = []
        after = after if after is None else require_text(str(after), what="message id")
        while len(found) < limit:
            most = min(_PAGE, limit - len(found))
            rows = await self._source().list(chosen, after=after, most=most, newest=newest)
            found += map(_info, rows)
            if len(rows) < most:
                break
            after = rows[-1].id
        return found

    async def show(self, id: str) -> MessageInfo:
        """Read a message.

        Raises:
            MessageExpired: It does not exist: its retention has passed, or it never existed [m17].
        """
        return _info(await self._row(id))

    async def retry(self, id: str) -> bool:
        """Let a dead message run again, now and with all its attempts. Returns False if it is not dead.

        Raises:
            MessageExpired: It does not exist.
        """
        self._writing("cluster.messages.retry")
        row = await self._row(id)
        revived = await self._source().revive(id=row.id)
        if revived:
            self._hint(row.seat)
        return revived > 0

    async def edit(self, id: str, arguments: Mapping[str, Any]) -> MessageId[Any]:
        """Send the call of a dead message again with other arguments, as a new message with its tags.

        The dead one stays until it is purged. Edited again with the same arguments, it is the same message.

        Args:
            id: The id of the dead message.
            arguments: All arguments by name, as plain values; a runner that knows the method checks them.

        Raises:
            MessageExpired: It does not exist.
            InvalidArgument: It is not dead, or is the start of a workflow.
            MalformedMessage: The arguments do not fit.
            KeyConflict: It was edited before, with other arguments.
        """
        self._writing("cluster.messages.edit")
        assert self._resend is not None, "only the cluster edits"
        return await self._resend(await self.show(id), msgspec.json.encode(dict(arguments)))

    async def purge(
        self,
        *,
        status: Literal["done", "dead"],
        entity: str | None = None,
        older_than: Duration | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> int:
        """Delete messages that have ended, a batch at a time.

        Args:
            status: The status of the messages to delete.
            entity: As for `list`.
            older_than: Only messages that have ended longer ago.
            progress: Called after each batch with the total so far.

        Returns:
            The number of messages deleted.

        Not promised:
            That their keys are still known: a call sent again with such a key runs again.
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
    reply, failure = told_reply(row.reply)
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
        payload=plain_value(row.payload),
        reply=reply,
        failure=failure,
        trace_id=spans.id_of(row.trace_id),
        losses=row.losses,
        tags=row.tags,
    )


def told_reply(reply: bytes | None) -> tuple[Any, str | None]:
    """The result and the failure of a stored reply; one of the two is None."""
    if not reply:
        return None, None
    if reply[0] != MARK:
        return plain_value(reply), None
    marked = read_marked(reply)
    error = read_failure(marked if isinstance(marked, bytes) else b"", {})
    return None, error.message if isinstance(error, CoterieError) else str(error)


def plain_value(data: bytes) -> Any:
    """A stored value as plain values; bytes if it cannot be decoded."""
    try:
        return PLAIN.decode(data)
    except MalformedMessage:
        return data
