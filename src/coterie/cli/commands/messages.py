"""`coterie messages`: lists persisted calls that are pending or dead, runs them again, deletes them.

Qualifiers choose messages, as in `type:Account state:dead error:Timeout key:order-7 older:30d`. Messages that have
ended are deleted in batches: an interrupted purge leaves all others as they were.
"""

from __future__ import annotations

import asyncio
import heapq
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import click

from coterie.cli.client import NO, WRONG, acts, asks, confirmed, one_line, refuse
from coterie.cli.commands.entities import counted_of
from coterie.cli.noun import Noun
from coterie.cli.output import as_json, lasting, plain, tell
from coterie.cli.progress import ProgressLine
from coterie.entities.calls.by_name_client import CallsByName
from coterie.errors import MessageExpired
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import Seat, ShardId
from coterie.storage.contracts import messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Container, Mapping, Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.cli.output import Screen
    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.messages import Status
    from coterie.storage.interface import ClusterSnapshot


State = Literal["waiting", "running", "scheduled", "dead", "done"]
"""A pending message is in one of the first three: due, running, due later."""

STATES: tuple[State, ...] = get_args(State)
QUALIFIERS = ("type", "id", "method", "state", "error", "key", "older")
EXAMPLE = "type:Account state:dead error:Timeout key:order-7"


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
        return self.method is self.error is self.key is None

    @property
    def older_s(self) -> float | None:
        """The age in seconds."""
        return None if self.older is None else to_seconds(self.older, what="older", allow_zero=True)

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


def parse(text: str, *, state: str | None = None) -> MessageOptions:
    """Parse qualifiers, and the value of `--state`. Any mistake ends the command, in two lines."""
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


def _checked(given: dict[str, str]) -> MessageOptions:
    kind, slash, id_ = given.get("type", "").partition("/")
    if slash:  # type:Account/alice
        given |= {"type": kind, "id": id_}
    if "id" in given and "type" not in given:
        refuse("id is given without type", hint=f"write type:Account id:{given['id']}", code=WRONG)
    state = next((each for each in STATES if each == given.get("state")), None)
    if "state" in given and state is None:
        refuse(f'there is no state "{given["state"]}"', hint=f"there are {', '.join(STATES)}", code=WRONG)
    if "older" in given:
        to_seconds(given["older"], what="older", allow_zero=True)  # refuses what is not a duration
    return MessageOptions(**{**given, "state": state})  # type: ignore[arg-type] # each is one of its fields, a text


BATCH = 1_000
"""As many as `cluster.messages.purge` deletes at once."""
_COUNTED_MOST = 100_000
"""Counting further would take too long."""


class Purge:
    """One purge.

    Args:
        asking: The command.
        chosen: Which messages; they are done or dead.
    """

    def __init__(self, asking: ClientCommand, chosen: MessageOptions) -> None:
        assert chosen.state in ("done", "dead"), "nothing else has ended"
        self._asking = asking
        self._chosen = chosen
        self._status: Literal["done", "dead"] = chosen.state
        self._ids: list[str] = []
        self._found = 0

    async def count(self) -> int:
        """The number of messages, counted up to a bound."""
        if self._chosen.is_coarse:
            self._found = await self._asking.here.storage.messages.count(self._chosen.stored(), most=_COUNTED_MOST)
        else:
            self._ids = await self._matching()
            self._found = len(self._ids)
        return self._found

    @property
    def counted(self) -> str:
        """The same in words."""
        if self._found >= _COUNTED_MOST:
            return f"{self._found:,} messages or more match"
        return "1 message matches" if self._found == 1 else f"{self._found:,} messages match"

    async def run(self) -> tuple[int, str]:
        """Delete them; returns their number, and how long it took."""
        what = f"purging {self._status} messages"
        if self._chosen.older is not None:
            what += f" older than {self._chosen.older}"
        total = self._found if self._found < _COUNTED_MOST else None
        note = f"in batches of {BATCH:,}"
        with ProgressLine(what, total=total, about=True, note=note, json=self._asking.as_json) as progress:
            try:
                gone = await (self._coarsely(progress) if self._chosen.is_coarse else self._one_by_one(progress))
            except asyncio.CancelledError:
                rest = f'coterie messages purge --filter "{self._chosen}"'
                progress.end(f"interrupted: at least {progress.done:,} messages are deleted; the others: {rest}")
                raise
        return gone, lasting(progress.took_s)

    async def _coarsely(self, progress: ProgressLine) -> int:
        return await self._asking.cluster.messages.purge(
            status=self._status, entity=self._chosen.entity, older_than=self._chosen.older, progress=progress.at
        )

    async def _one_by_one(self, progress: ProgressLine) -> int:
        gone = 0
        for begin in range(0, len(self._ids), BATCH):
            batch = self._ids[begin : begin + BATCH]
            gone += await self._asking.here.storage.messages.discard(batch, self._status)
            progress.at(gone)
        return gone

    async def _matching(self) -> list[str]:
        """The ids of messages that match, where storage cannot apply the whole filter."""
        now = await self._asking.here.storage.now()
        found: list[str] = []
        async for each in walk(self._asking, self._chosen, self._status):
            if self._chosen.takes(each, now=now, running=()):
                found.append(str(each.id))
                if len(found) == _COUNTED_MOST:
                    break
        return found


_PAGE = 200
_GLYPHS = {"waiting": "good", "running": "good", "scheduled": "good", "dead": "bad", "done": "good"}
_HIDDEN = ("payload", "reply", "errors")
"""Not in a list: `show` has them."""
_LEFT = 22


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
    asking: ClientCommand, chosen: MessageOptions, *, limit: int, after: str | None = None
) -> ChosenMessages:
    """The first messages that match, in the order of their ids; without a state all that are not done."""
    now = await asking.here.storage.now()
    is_asked = chosen.status in (None, "pending")
    at_work = await CallsByName(asking.here).running() if is_asked else None
    running, silent = ({}, ()) if at_work is None else at_work
    if chosen.state == "running":
        found = await _at_work(asking, sorted(running), after=after)
    else:
        statuses: list[Status] = ["pending", "dead"] if chosen.status is None else [chosen.status]
        lists = [await _some(asking, chosen, each, now, running, limit=limit, after=after) for each in statuses]
        found = list(heapq.merge(*lists, key=lambda each: each.id))
    meant = [each for each in found if chosen.takes(each, now=now, running=running)]
    now = max([now, *(each.sent_at for each in meant)])  # some may be sent after the clock was read
    return ChosenMessages(meant[:limit], now, running, silent)


async def _some(
    asking: ClientCommand,
    chosen: MessageOptions,
    status: Status,
    now: datetime,
    running: Mapping[str, object],
    *,
    limit: int,
    after: str | None,
) -> list[MessageInfo]:
    found: list[MessageInfo] = []
    async for each in walk(asking, chosen, status, after=after):
        if chosen.takes(each, now=now, running=running):
            found.append(each)
            if len(found) == limit:
                break
    return found


async def walk(
    asking: ClientCommand, chosen: MessageOptions, status: Status, *, after: str | None = None
) -> AsyncIterator[MessageInfo]:
    """All messages of a status that storage chooses, a page at a time."""
    while True:
        page = await asking.cluster.messages.list(
            status=status, entity=chosen.entity, older_than=chosen.older, limit=_PAGE, after=after
        )
        for each in page:
            yield each
        if len(page) < _PAGE:
            return
        after = page[-1].id


async def _at_work(asking: ClientCommand, ids: Sequence[str], *, after: str | None) -> list[MessageInfo]:
    found = []
    for each in ids:
        if each > (after or ""):
            try:
                found.append(await asking.cluster.messages.show(each))
            except MessageExpired:
                continue  # it has ended meanwhile, and was not kept
    return found


def talk_of_silence(chosen: ChosenMessages) -> None:
    """Report which runners did not reply."""
    if chosen.silent:
        names = ", ".join(chosen.silent)
        tell(f"no answer from {names}: what runs there is taken for waiting", err=True)


def outlined(message: MessageInfo, chosen: ChosenMessages) -> dict[str, Any]:
    """A message in a list, as JSON."""
    told: dict[str, Any] = plain(message)
    kept = {name: value for name, value in told.items() if name not in _HIDDEN}
    last = one_line(message.errors[-1].error) if message.errors else None
    return {**kept, "state": chosen.state(message), "error": last}


def table(screen: Screen, chosen: ChosenMessages) -> str:
    """All of them, a line each."""
    if not chosen.messages:
        return "no messages match"
    rows = [
        (
            each.id,
            f"{each.entity}.{each.method}",
            f"{screen.glyph(_GLYPHS[chosen.state(each)])} {chosen.state(each)}",
            screen.time(each.sent_at, chosen.now),
            str(each.attempts),
            each.key or "-",
            _remark(screen, each, chosen),
        )
        for each in chosen.messages
    ]
    return screen.table(
        ("MESSAGE", "CALL", "STATE", "SENT", "FAILED", "KEY", "REMARK"),
        rows,
        right=("FAILED",),
        spare=("KEY", "FAILED", "SENT"),
    )


def _remark(screen: Screen, message: MessageInfo, chosen: ChosenMessages) -> str:
    state = chosen.state(message)
    if state == "running":
        runner, seconds = chosen.running[message.id]
        return f"on {runner} for {lasting(seconds)}"
    if state == "scheduled":
        again = "again " if message.attempts else ""
        return f"{again}due {screen.time(message.due_at, chosen.now)}"
    return one_line(message.errors[-1].error) if message.errors else "-"


def shown(screen: Screen, message: MessageInfo, view: ClusterSnapshot, *, state: State, now: datetime) -> str:
    """All about one message."""
    times = "attempt" if message.attempts == 1 else "attempts"
    after = f" after {message.attempts} {times}" if message.attempts else ""
    lines = [
        screen.headed(f"{message.entity}.{message.method}", f"{screen.glyph(_GLYPHS[state])} {state}{after}"),
        _pair("key", message.key or "-", "shard", _held(message.shard, view)),
        _pair("payload", _json(message.payload)),
        _pair("sent", screen.time(message.sent_at, now), "trace", message.trace_id or "-"),
    ]
    if state == "scheduled":
        lines.append(_pair("due", screen.time(message.due_at, now)))
    if message.completed_at is not None:
        lines.append(_pair("ended", screen.time(message.completed_at, now)))
    if message.failure is not None:
        lines.append(_pair("raised", message.failure))
    elif state == "done":
        lines.append(_pair("reply", _json(message.reply)))
    parts = ["\n".join(lines)]
    if message.errors:
        rows = [(str(each.number), screen.time(each.at, now), one_line(each.error)) for each in message.errors]
        attempts = screen.table(("#", "FAILED", "RESULT"), rows, right=("#",))
        parts.append("\n".join(f"  {line}" for line in attempts.splitlines()))
    if state == "dead":
        parts.append(f"retry: coterie messages retry {message.id}")
    return "\n\n".join(parts)


def _held(shard: str, view: ClusterSnapshot) -> str:
    seat = next((each for each in view.seats if each.name == Seat.shard(ShardId.parse(shard))), None)
    names = {each.id: each.name for each in view.runners}
    if seat is None or seat.holder is None:
        return f"{shard} (no owner)"
    return f"{shard} ({names.get(seat.holder, seat.holder)}, epoch {seat.epoch})"


def _pair(name: str, value: str, other: str = "", about: str = "") -> str:
    return f"{name:<12}{value:<{_LEFT}}  {other}  {about}" if other else f"{name:<12}{value}"


def _json(value: Any) -> str:
    return as_json(value)


_RETRY_MOST = 10_000
"""Messages that one command runs again: they are read at once; run the command again for the rest."""
_filter = click.option("--filter", "text", default="", metavar="FILTER", help=f'As in "{EXAMPLE}", also method, older.')


@click.group(cls=Noun)
def command() -> None:
    """Stored calls: what waits, what was given up.

    \b
    Example:
      coterie messages list --state dead --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only those (default: all that are not done).")
@_filter
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="ID", help="Only those behind this one: the last one of the list before.")
@asks
async def list_some(asking: ClientCommand, *, state: str | None, text: str, limit: int, after: str | None) -> None:
    """Messages, the oldest first.

    \b
    Example:
      coterie messages list --state dead --filter "type:Account error:Timeout"
    """
    chosen = parse(text, state=state)
    found = await choose(asking, chosen, limit=limit, after=after)
    talk_of_silence(found)
    asking.answer(
        [outlined(each, found) for each in found.messages],
        lambda: f"{asking.where}\n\n{table(asking.screen, found)}",
    )
    if len(found.messages) == limit:
        which = f' --filter "{chosen}"' if str(chosen) else ""
        tell(f"more: coterie messages list{which} --after {found.messages[-1].id}", err=True)


@command.command()
@click.argument("id")
@asks
async def show(asking: ClientCommand, id: str) -> None:
    """One message: its payload, and each attempt that failed.

    \b
    Example:
      coterie messages show 019a8f0e6c5b00001f2e3d4c5b6a7988 --json
    """
    message = await asking.cluster.messages.show(id)
    at_work = await CallsByName(asking.here).running() if message.status == "pending" else None
    running = {} if at_work is None else at_work.messages
    now, view = await asking.here.storage.now(), await asking.here.storage.view()
    state = state_of(message, now=now, running=running)
    asking.answer(
        {**plain(message), "state": state},
        lambda: f"{asking.where}\n\n{shown(asking.screen, message, view, state=state, now=now)}",
    )


@command.command()
@click.argument("ids", nargs=-1, metavar="[ID]…")
@_filter
@acts
@asks
async def retry(asking: ClientCommand, ids: tuple[str, ...], *, text: str, yes: bool, dry_run: bool) -> int | None:
    """Let dead messages run again, now and with all their attempts.

    \b
    Example:
      coterie messages retry --filter "type:Account error:Timeout" --yes
    """
    if bool(ids) == bool(text):
        refuse("which messages?", hint=f'give ids, or --filter "{EXAMPLE}"; not both', code=WRONG)
    dead = await _named(asking, ids) if ids else await _filtered(asking, text)
    if not dead:
        refuse("no dead message matches", hint="coterie messages list --state dead shows all of them")
    count = "1 dead message" if len(dead) == 1 else f"{len(dead):,} dead messages"
    what = f"{count} will run again now, with all attempts: {_summed(dead)}"
    if not confirmed(what, "run them again?", yes=yes, dry_run=dry_run):
        return None
    retried = 0
    with ProgressLine("retrying", total=len(dead), json=asking.as_json) as progress:
        for number, each in enumerate(dead, 1):
            retried += await asking.cluster.messages.retry(each.id)
            progress.at(number)
    look = f"it: coterie messages show {dead[0].id}" if len(dead) == 1 else "them: coterie messages list --state dead"
    told = f"{counted_of(retried)} again; no command takes that back\nwhat becomes of {look}"
    asking.answer({"retried": retried, "matched": len(dead)}, told)
    return None if retried else NO


@command.command("purge")
@click.option("--filter", "text", required=True, metavar="FILTER", help=f'As in "{EXAMPLE}", also method, older.')
@acts
@asks
async def purge_some(asking: ClientCommand, *, text: str, yes: bool, dry_run: bool) -> None:
    """Delete messages that are done or dead, in batches.

    Their keys are forgotten with them: a call with such a key that is sent again runs again.

    \b
    Example:
      coterie messages purge --filter "state:dead type:Account older:30d" --yes
    """
    chosen = parse(text)
    if chosen.state not in ("done", "dead"):
        hint = f'add state:dead or state:done, as in "{EXAMPLE}"'
        refuse("only messages that are done or dead can be purged", hint=hint, code=WRONG)
    purge = Purge(asking, chosen)
    found = await purge.count()
    if not found:
        asking.answer({"purged": 0, "filter": str(chosen)}, "no messages match: nothing to delete")
        return
    if not confirmed(f"{purge.counted} and would be deleted", "delete them?", yes=yes, dry_run=dry_run):
        return
    gone, took = await purge.run()
    many = f"{gone:,} {chosen.state} message{'' if gone == 1 else 's'}"
    told = f"purged   {many}   {took}. No command brings them back"
    asking.answer({"purged": gone, "filter": str(chosen)}, told)


async def _named(asking: ClientCommand, ids: tuple[str, ...]) -> list[MessageInfo]:
    """Those of these messages that are dead; the others are reported."""
    found = [await asking.cluster.messages.show(each) for each in dict.fromkeys(ids)]
    for each in found:
        if each.status != "dead":
            tell(f"message {each.id} is {each.status}: only dead ones are run again", err=True)
    return [each for each in found if each.status == "dead"]


async def _filtered(asking: ClientCommand, text: str) -> list[MessageInfo]:
    chosen = parse(text if "state:" in text else f"{text} state:dead")
    if chosen.state != "dead":
        refuse(f"state is {chosen.state}, and only dead messages are run again", hint="write state:dead", code=WRONG)
    return list((await choose(asking, chosen, limit=_RETRY_MOST)).messages)


def _summed(messages: list[MessageInfo]) -> str:
    """`Account.charge 400, Report.build 2`."""
    counts: dict[str, int] = {}
    for each in messages:
        name = f"{each.entity.partition('/')[0]}.{each.method}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(
        f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
