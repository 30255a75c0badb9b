"""Which messages are meant: qualifiers, as in `type:Account state:dead error:Timeout key:order-7 older:30d`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Literal, get_args

from coterie.cli.asking import WRONG, refuse
from coterie.kernel.durations import to_seconds
from coterie.storage.contracts import messages

if TYPE_CHECKING:
    from collections.abc import Container
    from datetime import datetime

    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.messages import Status

State = Literal["waiting", "running", "scheduled", "dead", "done"]
"""A pending message is one of the first three: due, at work, due later."""

STATES: tuple[State, ...] = get_args(State)
QUALIFIERS = ("type", "id", "method", "state", "error", "key", "older")
EXAMPLE = "type:Account state:dead error:Timeout key:order-7"


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which messages; what is None does not matter."""

    type: str | None = None
    id: str | None = None
    """Of the entity."""
    method: str | None = None
    state: State | None = None
    error: str | None = None
    """Part of what its last attempt said."""
    key: str | None = None
    older: str | None = None
    """Sent, or ended, longer ago than that."""

    @property
    def status(self) -> Status | None:
        """What storage calls its state."""
        if self.state == "dead" or self.state == "done":
            return self.state
        return None if self.state is None else "pending"

    @property
    def entity(self) -> str | None:
        """As `cluster.messages` takes it."""
        return self.type if self.id is None else f"{self.type}/{self.id}"

    @property
    def is_coarse(self) -> bool:
        """Whether storage itself can choose by it."""
        return self.method is self.error is self.key is None

    @property
    def older_s(self) -> float | None:
        """Its age in seconds."""
        return None if self.older is None else to_seconds(self.older, what="older", allow_zero=True)

    def stored(self) -> messages.Filter:
        """As far as storage itself can choose."""
        return messages.Filter(
            status=self.status, entity_type=self.type, entity_id=self.id, method=self.method, older_than_s=self.older_s
        )

    def takes(self, message: MessageInfo, *, now: datetime, running: Container[str]) -> bool:
        """Whether a message is meant."""
        kind, _, id_ = message.entity.partition("/")
        last = message.errors[-1].error if message.errors else ""
        return (
            self.type in (None, kind)
            and self.id in (None, id_)
            and (self.older_s is None or _age_s(message, now) >= self.older_s)
            and (self.state is None or self.state == state_of(message, now=now, running=running))
            and (self.method is None or self.method == message.method)
            and (self.key is None or self.key == message.key)
            and (self.error is None or self.error.lower() in last.lower())
        )

    def __str__(self) -> str:
        """As it was written: it can be pasted behind `--filter`."""
        given = ((name, getattr(self, name)) for name in QUALIFIERS)
        return " ".join(f"{name}:{shlex.quote(value)}" for name, value in given if value is not None)


def state_of(message: MessageInfo, *, now: datetime, running: Container[str]) -> State:
    """How a message stands.

    Args:
        message: Which one.
        now: By the database's clock.
        running: The ids of those that are at work.
    """
    if message.status == "done" or message.status == "dead":
        return message.status
    if message.id in running:
        return "running"
    if message.due_at <= message.sent_at:  # at once: it waits, even if it was sent after the clock was read
        return "waiting"
    return "waiting" if message.due_at <= now else "scheduled"


def _age_s(message: MessageInfo, now: datetime) -> float:
    return (now - (message.completed_at or message.sent_at)).total_seconds()


def parse(text: str, *, state: str | None = None) -> Filter:
    """Read qualifiers, and what `--state` said. Whatever is wrong ends the command, in two lines."""
    given: dict[str, str] = {}
    for word in _words(text):
        name, colon, value = word.partition(":")
        if not colon or not value:
            refuse(f'cannot read "{word}" in the filter', hint=f"write qualifier:value, as in {EXAMPLE}", code=WRONG)
        if name not in QUALIFIERS:
            near = get_close_matches(name, QUALIFIERS, 1)
            meant = f'did you mean "{near[0]}"? ' if near else ""
            refuse(f'unknown qualifier "{name}"', hint=f"{meant}there are {', '.join(QUALIFIERS)}", code=WRONG)
        if name in given:
            refuse(f"{name} is given twice: {given[name]} and {value}", hint="give it once", code=WRONG)
        given[name] = value
    if state is not None and given.setdefault("state", state) != state:
        refuse(f"--state is {state}, and the filter says {given['state']}", hint="give one of them", code=WRONG)
    return _checked(given)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        refuse(f"cannot read the filter: {str(error).lower()}", hint="close what you have quoted", code=WRONG)


def _checked(given: dict[str, str]) -> Filter:
    kind, slash, id_ = given.get("type", "").partition("/")
    if slash:  # type:Account/alice
        given |= {"type": kind, "id": id_}
    if "id" in given and "type" not in given:
        refuse("id is given without type", hint=f"write type:Account id:{given['id']}", code=WRONG)
    state = next((each for each in STATES if each == given.get("state")), None)
    if "state" in given and state is None:
        refuse(f'there is no state "{given["state"]}"', hint=f"there are {', '.join(STATES)}", code=WRONG)
    if "older" in given:
        to_seconds(given["older"], what="older", allow_zero=True)  # refuses what is none
    return Filter(**{**given, "state": state})  # type: ignore[arg-type] # each is one of its fields, a text
