"""Which messages are meant, and in which state they are: for the command line and the page."""

from __future__ import annotations

import heapq
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from coterie.entities.calls.by_name_client import CallsByName
from coterie.entities.persisted.api import Messages
from coterie.errors import InvalidArgument, MessageExpired, quoted
from coterie.kernel.durations import to_seconds
from coterie.storage.contracts import messages
from coterie.work.tags import tag_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container, Mapping, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.messages import Status
    from coterie.work.tags import Tag

_PAGE = 200

State = Literal["waiting", "running", "scheduled", "dead", "done"]
"""A pending message is in one of the first three: due, running, due later."""

STATES: tuple[State, ...] = get_args(State)
QUALIFIERS = ("type", "id", "method", "state", "error", "key", "tag", "older")


@dataclass(frozen=True, kw_only=True)
class MessageOptions:
    """Which messages; fields that are None match all."""

    type: str | None = None
    id: str | None = None
    """Id of the entity."""
    method: str | None = None
    state: State | None = None
    error: str | None = None
    """Part of the error of its last attempt."""
    key: str | None = None
    tag: str | None = None
    """The name and the value of a tag: `order=7`."""
    older: str | None = None
    """Sent, or ended, longer ago than that."""

    @property
    def status(self) -> Status | None:
        """The status in storage."""
        if self.state == "dead" or self.state == "done":
            return self.state
        return None if self.state is None else "pending"

    @property
    def entity(self) -> str | None:
        """The entity as `cluster.messages` takes it."""
        return self.type if self.id is None else f"{self.type}/{self.id}"

    @property
    def is_coarse(self) -> bool:
        """Whether storage itself can apply the whole filter."""
        return self.method is self.error is self.key is self.tag is None

    @property
    def older_s(self) -> float | None:
        """The age in seconds."""
        return None if self.older is None else to_seconds(self.older, what="older", allow_zero=True)

    @property
    def tag_pair(self) -> Tag | None:
        """The tag as `cluster.messages` takes it.

        Raises:
            ValueError: It has no "=", or is none.
        """
        if self.tag is None:
            return None
        name, equals, value = self.tag.partition("=")
        if not equals:
            raise InvalidArgument(what="tag", value=quoted(self.tag), problem="write a name and a value, as in order=7")
        return tag_of((name, value))

    def stored(self) -> messages.MessageFilter:
        """The part of the filter that storage itself can apply."""
        return messages.MessageFilter(
            status=self.status, entity_type=self.type, entity_id=self.id, method=self.method, older_than_s=self.older_s
        )

    def takes(self, message: MessageInfo, *, now: datetime, running: Container[str]) -> bool:
        """Whether a message matches."""
        kind, _, id_ = message.entity.partition("/")
        last = message.errors[-1].error if message.errors else ""
        return (
            self.type in (None, kind)
            and self.id in (None, id_)
            and (self.older_s is None or _age_s(message, now) >= self.older_s)
            and (self.state is None or self.state == state_of(message, now=now, running=running))
            and (self.method is None or self.method == message.method)
            and (self.key is None or self.key == message.key)
            and (self.tag_pair is None or message.tags.get(self.tag_pair[0]) == self.tag_pair[1])
            and (self.error is None or self.error.lower() in last.lower())
        )

    def __str__(self) -> str:
        """As it was written: it can be pasted after `--filter`."""
        given = ((name, getattr(self, name)) for name in QUALIFIERS)
        return " ".join(f"{name}:{shlex.quote(value)}" for name, value in given if value is not None)


def state_of(message: MessageInfo, *, now: datetime, running: Container[str]) -> State:
    """The state of a message.

    Args:
        message: The message.
        now: The time by the database's clock.
        running: The ids of running messages.
    """
    if message.status == "done" or message.status == "dead":
        return message.status
    if message.id in running:
        return "running"
    if message.due_at <= message.sent_at:  # due at once: it waits, even if it was sent after the clock was read
        return "waiting"
    return "waiting" if message.due_at <= now else "scheduled"


def _age_s(message: MessageInfo, now: datetime) -> float:
    return (now - (message.completed_at or message.sent_at)).total_seconds()


class ChosenMessages(NamedTuple):
    """Messages that match, with their states at one moment."""

    messages: Sequence[MessageInfo]
    now: datetime
    running: Mapping[str, tuple[str, float]]
    silent: Sequence[str]
    """Names of runners that did not reply with their running messages."""

    def state(self, message: MessageInfo) -> State:
        """The state of one of them."""
        return state_of(message, now=self.now, running=self.running)


async def choose(
    here: Client, chosen: MessageOptions, *, limit: int, after: str | None = None, newest: bool = False
) -> ChosenMessages:
    """The first messages that match, in the order of their ids, with `newest` in the reverse order; without a state all
    that are not done, and with a tag all."""
    now = await here.storage.now()
    is_asked = chosen.status in (None, "pending")
    at_work = await CallsByName(here).running() if is_asked else None
    running, silent = ({}, ()) if at_work is None else at_work
    if chosen.state == "running":
        later = [each for each in sorted(running, reverse=newest) if after is None or (each < after) is newest]
        found = await _at_work(here, [each for each in later if each != after])
    else:
        unnamed: list[Status | None] = ["pending", "dead"] if chosen.tag is None else [None]
        statuses = unnamed if chosen.status is None else [chosen.status]
        walks = [walk(here, chosen, each, after=after, newest=newest) for each in statuses]
        lists = [await _some(each, chosen, now, running, limit=limit) for each in walks]
        found = list(heapq.merge(*lists, key=lambda each: each.id, reverse=newest))
    meant = [each for each in found if chosen.takes(each, now=now, running=running)]
    now = max([now, *(each.sent_at for each in meant)])  # some may be sent after the clock was read
    return ChosenMessages(meant[:limit], now, running, silent)


async def _some(
    messages: AsyncIterator[MessageInfo],
    chosen: MessageOptions,
    now: datetime,
    running: Mapping[str, object],
    *,
    limit: int,
) -> list[MessageInfo]:
    found: list[MessageInfo] = []
    async for each in messages:
        if chosen.takes(each, now=now, running=running):
            found.append(each)
            if len(found) == limit:
                break
    return found


async def walk(
    here: Client, chosen: MessageOptions, status: Status | None, *, after: str | None = None, newest: bool = False
) -> AsyncIterator[MessageInfo]:
    """All messages of a status, or of all, that storage chooses, a page at a time."""
    asked: dict[str, Any] = {
        "status": status,
        "entity": chosen.entity,
        "older_than": chosen.older,
        "tag": chosen.tag_pair,
    }
    while True:
        page = await _messages(here).list(**asked, limit=_PAGE, after=after, newest=newest)
        for each in page:
            yield each
        if len(page) < _PAGE:
            return
        after = page[-1].id


async def _at_work(here: Client, ids: Sequence[str]) -> list[MessageInfo]:
    found = []
    for each in ids:
        try:
            found.append(await _messages(here).show(each))
        except MessageExpired:
            continue  # it has ended meanwhile, and was not kept
    return found


def _messages(here: Client) -> Messages:
    return Messages(lambda: here.storage.messages)
