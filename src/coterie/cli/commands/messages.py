"""`coterie messages`: lists persisted calls that are pending or dead, runs them again, deletes them.

Qualifiers choose messages, as in `type:Account state:dead error:Timeout key:order-7 older:30d`. Messages that have
ended are deleted in batches: an interrupted purge leaves all others as they were.
"""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import click

from coterie.cli.client import NO, WRONG, ClientCommand, Noun, client_command, confirmable, confirmed, one_line, refuse
from coterie.cli.commands.call import payload_of
from coterie.cli.commands.entities import counted_of
from coterie.cli.output import Screen, as_json, echo, lasting, plain, plural
from coterie.cli.progress import ProgressLine
from coterie.entities.calls.by_name_client import CallsByName
from coterie.entities.persisted.edit import require_editable, send_edited
from coterie.errors import InvalidArgument
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import Seat, ShardId
from coterie.observe.incoming_call import IncomingCall, find_message
from coterie.observe.message_filter import QUALIFIERS, STATES, MessageOptions, choose, state_of, walk
from coterie.storage.contracts.incoming_calls import COUNTED_MOST, START

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.entities.persisted.api import MessageInfo
    from coterie.observe.message_filter import ChosenMessages, State
    from coterie.storage.contracts.incoming_calls import WaitingIncoming
    from coterie.storage.interface import ClusterSnapshot


def parse(text: str, *, state: str | None = None, tag: str | None = None) -> MessageOptions:
    """Parse qualifiers, and the values of `--state` and `--tag`. Any mistake ends the command, in two lines."""
    return _checked(parse_qualifiers(text, QUALIFIERS, example=EXAMPLE, state=state, tag=tag))


def parse_qualifiers(
    text: str, qualifiers: Sequence[str], *, example: str, state: str | None = None, tag: str | None = None
) -> dict[str, str]:
    """Parse qualifiers, each given once, and the values of `--state` and `--tag`."""
    given: dict[str, str] = {}
    for word in _words(text):
        name, colon, value = word.partition(":")
        if not colon or not value:
            refuse(f'cannot read "{word}" in the filter', hint=f"write qualifier:value, as in {example}", code=WRONG)
        if name not in qualifiers:
            near = get_close_matches(name, qualifiers, 1)
            meant = f'did you mean "{near[0]}"? ' if near else ""
            refuse(f'unknown qualifier "{name}"', hint=f"{meant}there are {', '.join(qualifiers)}", code=WRONG)
        if name in given:
            refuse(f"{name} is given twice: {given[name]} and {value}", hint="give it once", code=WRONG)
        given[name] = value
    for option, wanted in (("state", state), ("tag", tag)):
        if wanted is not None and given.setdefault(option, wanted) != wanted:
            refuse(f"--{option} is {wanted}, and the filter says {given[option]}", hint="give one of them", code=WRONG)
    return given


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
    chosen = MessageOptions(**{**given, "state": state})  # type: ignore[arg-type] # each is one of its fields, a text
    try:
        _ = chosen.tag_pair
    except InvalidArgument as error:
        refuse(error.message, hint="write tag:order=7, or --tag order=7", code=WRONG)
    return chosen


EXAMPLE = "type:Account state:dead error:Timeout key:order-7"
BATCH = 1_000
"""As many as `cluster.messages.purge` deletes at once."""
_COUNTED_MOST = 100_000
"""Counting further would take too long."""


class Purge:
    """One purge.

    Args:
        ctx: The command.
        chosen: Which messages; they are done or dead.
    """

    def __init__(self, ctx: ClientCommand, chosen: MessageOptions) -> None:
        assert chosen.state in ("done", "dead"), "nothing else has ended"
        self._ctx = ctx
        self._chosen = chosen
        self._status: Literal["done", "dead"] = chosen.state
        self._ids: list[str] = []
        self._found = 0

    async def count(self) -> int:
        """The number of messages, counted up to a bound."""
        if self._chosen.is_coarse:
            self._found = await self._ctx.here.storage.messages.count(self._chosen.stored(), most=_COUNTED_MOST)
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
        with ProgressLine(what, total=total, about=True, note=note, json=self._ctx.as_json) as progress:
            try:
                gone = await (self._coarsely(progress) if self._chosen.is_coarse else self._one_by_one(progress))
            except asyncio.CancelledError:
                rest = f'coterie messages purge --filter "{self._chosen}"'
                progress.end(f"interrupted: at least {progress.done:,} messages are deleted; the others: {rest}")
                raise
        return gone, lasting(progress.took_s)

    async def _coarsely(self, progress: ProgressLine) -> int:
        return await self._ctx.cluster.messages.purge(
            status=self._status, entity=self._chosen.entity, older_than=self._chosen.older, progress=progress.at
        )

    async def _one_by_one(self, progress: ProgressLine) -> int:
        gone = 0
        for begin in range(0, len(self._ids), BATCH):
            batch = self._ids[begin : begin + BATCH]
            gone += await self._ctx.here.storage.messages.discard(batch, self._status)
            progress.at(gone)
        return gone

    async def _matching(self) -> list[str]:
        """The ids of messages that match, where storage cannot apply the whole filter."""
        now = await self._ctx.here.storage.now()
        found: list[str] = []
        async for each in walk(self._ctx.here, self._chosen, self._status):
            if self._chosen.takes(each, now=now, running=()):
                found.append(str(each.id))
                if len(found) == _COUNTED_MOST:
                    break
        return found


_GLYPHS = {"waiting": "good", "running": "good", "scheduled": "good", "dead": "bad", "done": "good"}
_HIDDEN = ("payload", "reply", "errors")
"""Not in a list: `show` has them."""
_LEFT = 22
_SOURCES_MOST = 20
"""Types for which calls from SQL that wait are reported."""


def warn_of_silent_runners(chosen: ChosenMessages) -> None:
    """Report which runners did not reply."""
    if chosen.silent:
        names = ", ".join(chosen.silent)
        echo(f"no answer from {names}: messages that run there are shown as waiting", err=True)


def warn_of_incoming(waiting: Sequence[WaitingIncoming], chosen: MessageOptions) -> None:
    """Report what SQL has sent and no runner has taken in: it is no message yet, so the list does not have it."""
    if chosen.state not in (None, "waiting"):
        return
    for each in waiting:
        if chosen.type in (None, each.type):
            what, to = ("call", "to entity") if each.kind == "call" else ("start", "of workflow")
            many = f"{each.rows:,} or more {what}s" if each.rows >= COUNTED_MOST else plural(each.rows, what)
            text = f"{many} from SQL {to} {each.type} not taken in yet, the oldest for {lasting(each.waited_s)}"
            echo(f"{text}: coterie messages show {each.id}", err=True)


def outlined(message: MessageInfo, chosen: ChosenMessages) -> dict[str, Any]:
    """A message in a list, as JSON."""
    fields: dict[str, Any] = plain(message)
    kept = {name: value for name, value in fields.items() if name not in _HIDDEN}
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
    after = f" after {plural(message.attempts, 'attempt')}" if message.attempts else ""
    lines = [
        screen.headed(f"{message.entity}.{message.method}", f"{screen.glyph(_GLYPHS[state])} {state}{after}"),
        _pair("key", message.key or "-", "shard", _held(message.shard, view)),
        _pair("payload", as_json(message.payload)),
        _pair("sent", screen.time(message.sent_at, now), "trace", message.trace_id or "-"),
    ]
    if state == "scheduled":
        lines.append(_pair("due", screen.time(message.due_at, now)))
    if message.tags:
        lines.append(_pair("tags", ", ".join(f"{name}={value}" for name, value in message.tags.items())))
    if message.completed_at is not None:
        lines.append(_pair("ended", screen.time(message.completed_at, now)))
    if message.failure is not None:
        lines.append(_pair("raised", message.failure))
    elif state == "done":
        lines.append(_pair("reply", as_json(message.reply)))
    parts = ["\n".join(lines)]
    if message.errors:
        rows = [(str(each.number), screen.time(each.at, now), one_line(each.error)) for each in message.errors]
        attempts = screen.table(("#", "FAILED", "RESULT"), rows, right=("#",))
        parts.append("\n".join(f"  {line}" for line in attempts.splitlines()))
    if state == "dead" and message.method != START:
        parts.append(f"retry: coterie messages retry {message.id}")
    return "\n\n".join(parts)


def shown_incoming(screen: Screen, call: IncomingCall, *, now: datetime) -> str:
    """All about what SQL has sent, while no runner has taken it in."""
    lines = [
        screen.headed(call.what, f"{screen.glyph('warn')} waits to be taken in"),
        _pair("key", call.key or "-"),
        _pair("sent", screen.time(call.sent_at, now)),
        "",
        f"it was sent from SQL: a runner whose program has {call.awaited} takes it in within a second",
    ]
    return "\n".join(lines)


def _held(shard: str, view: ClusterSnapshot) -> str:
    seat = next((each for each in view.seats if each.name == Seat.shard(ShardId.parse(shard))), None)
    names = {each.id: each.name for each in view.runners}
    if seat is None or seat.holder is None:
        return f"{shard} (no owner)"
    return f"{shard} ({names.get(seat.holder, seat.holder)}, epoch {seat.epoch})"


def _pair(name: str, value: str, other: str = "", about: str = "") -> str:
    return f"{name:<12}{value:<{_LEFT}}  {other}  {about}" if other else f"{name:<12}{value}"


_RETRY_MOST = 10_000
"""Messages that one command runs again: they are read at once; run the command again for the rest."""
_EDIT_S = 10.0
"""How long to wait for a runner that takes an edited call."""
_filter = click.option("--filter", "text", default="", metavar="FILTER", help=f'As in "{EXAMPLE}", also method, older.')


@click.group(cls=Noun)
def command() -> None:
    """Persisted calls: pending ones, and dead ones.

    \b
    Example:
      coterie messages list --state dead --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.option(
    "--state", type=click.Choice(STATES), help="Only messages in this state (default: all that are not done)."
)
@_filter
@click.option(
    "--tag", metavar="NAME=VALUE", help="Only messages that were sent with this tag; also those that are done."
)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="ID", help="Only messages after this one: the last of the previous list.")
@client_command
async def list_some(
    ctx: ClientCommand, *, state: str | None, text: str, tag: str | None, limit: int, after: str | None
) -> None:
    """Messages, oldest first.

    \b
    Example:
      coterie messages list --state dead --filter "type:Account error:Timeout"
    """
    chosen = parse(text, state=state, tag=tag)
    found = await choose(ctx.here, chosen, limit=limit, after=after)
    warn_of_silent_runners(found)
    warn_of_incoming(await ctx.here.storage.incoming.backlog(most=_SOURCES_MOST), chosen)
    ctx.show([outlined(each, found) for each in found.messages], lambda: table(ctx.screen, found))
    if len(found.messages) == limit:
        which = f' --filter "{chosen}"' if str(chosen) else ""
        echo(f"more: coterie messages list{which} --after {found.messages[-1].id}", err=True)


@command.command()
@click.argument("id")
@client_command
async def show(ctx: ClientCommand, id: str) -> None:
    """One message: its payload, and each attempt that failed.

    \b
    Example:
      coterie messages show 019a8f0e6c5b00001f2e3d4c5b6a7988 --json
    """
    message = await find_message(ctx.here, id)
    if isinstance(message, IncomingCall):
        now = await ctx.here.storage.now()
        ctx.show({**plain(message), "state": "incoming"}, lambda: shown_incoming(ctx.screen, message, now=now))
        return
    at_work = await CallsByName(ctx.here).running() if message.status == "pending" else None
    running = {} if at_work is None else at_work.messages
    now, view = await ctx.here.storage.now(), await ctx.here.storage.view()
    state = state_of(message, now=now, running=running)
    ctx.show({**plain(message), "state": state}, lambda: shown(ctx.screen, message, view, state=state, now=now))


@command.command()
@click.argument("ids", nargs=-1, metavar="[ID]…")
@_filter
@confirmable
@client_command
async def retry(ctx: ClientCommand, ids: tuple[str, ...], *, text: str, yes: bool, dry_run: bool) -> int | None:
    """Run dead messages again, now and with all their attempts.

    \b
    Example:
      coterie messages retry --filter "type:Account error:Timeout" --yes
    """
    if bool(ids) == bool(text):
        refuse("which messages?", hint=f'give ids, or --filter "{EXAMPLE}"; not both', code=WRONG)
    dead = await _named(ctx, ids) if ids else await _filtered(ctx, text)
    if not dead:
        refuse("no dead message matches", hint="coterie messages list --state dead shows all of them")
    many = plural(len(dead), "dead message")
    what = f"{many} will run again now, with all attempts: {_summed(dead)}"
    if not confirmed(what, "run them again?", yes=yes, dry_run=dry_run):
        return None
    retried, subject = 0, f"message {dead[0].id}" if len(dead) == 1 else f"{many}: {_summed(dead)}"
    async with ctx.act("retry", subject) as act:
        with ProgressLine("retrying", total=len(dead), json=ctx.as_json) as progress:
            for number, each in enumerate(dead, 1):
                retried += await ctx.cluster.messages.retry(each.id)
                progress.at(number)
        act.result = f"{counted_of(retried)} again"
    hint = f"it: coterie messages show {dead[0].id}" if len(dead) == 1 else "them: coterie messages list --state dead"
    text = f"{counted_of(retried)} again; this cannot be undone\nto follow {hint}"
    ctx.answer({"retried": retried, "matched": len(dead)}, text)
    return None if retried else NO


@command.command()
@click.argument("id")
@click.option("--args", "arguments", required=True, metavar="JSON", help="All arguments, by name.")
@confirmable
@client_command
async def edit(ctx: ClientCommand, id: str, *, arguments: str, yes: bool, dry_run: bool) -> None:
    """Send a dead message's call again with other arguments, as a new message.

    The dead one stays until it is purged. A runner that knows the method checks the arguments.

    \b
    Example:
      coterie messages edit 019a8f0e6c5b00001f2e3d4c5b6a7988 --args '{"order_id": "o-7", "cents": 500}' --yes
    """
    payload = payload_of(arguments)
    dead = await ctx.cluster.messages.show(id)
    try:
        require_editable(dead)
    except InvalidArgument as error:
        refuse(error.message, hint="coterie messages list --state dead shows which are")
    call = f"{dead.entity}.{dead.method}"
    what = f"{call} will be sent with these arguments as a new message; message {dead.id} stays dead"
    if not confirmed(what, "send it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("edit", f"message {dead.id}") as act:
        sent = await send_edited(ctx.here, dead, payload, within_s=_EDIT_S)
        act.result = f"{call} is sent as message {sent}"
    text = f"sent {call} as message {sent}; message {dead.id} stays dead until it is purged"
    ctx.answer({"sent": str(sent), "dead": str(dead.id)}, f"{text}\nto follow it: coterie messages show {sent}")


@command.command("purge")
@click.option("--filter", "text", required=True, metavar="FILTER", help=f'As in "{EXAMPLE}", also method, older.')
@confirmable
@client_command
async def purge_some(ctx: ClientCommand, *, text: str, yes: bool, dry_run: bool) -> None:
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
    purge = Purge(ctx, chosen)
    found = await purge.count()
    if not found:
        ctx.answer({"purged": 0, "filter": str(chosen)}, "no messages match: nothing to delete")
        return
    if not confirmed(f"{purge.counted} and would be deleted", "delete them?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("purge", f"messages: {chosen}") as act:
        gone, took = await purge.run()
        many = plural(gone, f"{chosen.state} message")
        act.result = f"{many} deleted"
    text = f"purged   {many}   {took}. This cannot be undone"
    ctx.answer({"purged": gone, "filter": str(chosen)}, text)


async def _named(ctx: ClientCommand, ids: tuple[str, ...]) -> list[MessageInfo]:
    """Those of these messages that are dead; the others are reported."""
    found = [await ctx.cluster.messages.show(each) for each in dict.fromkeys(ids)]
    for each in found:
        if each.status != "dead":
            echo(f"message {each.id} is {each.status}: only dead ones are run again", err=True)
    return [each for each in found if each.status == "dead"]


async def _filtered(ctx: ClientCommand, text: str) -> list[MessageInfo]:
    chosen = parse(text if "state:" in text else f"{text} state:dead")
    if chosen.state != "dead":
        refuse(f"state is {chosen.state}, and only dead messages are run again", hint="write state:dead", code=WRONG)
    return list((await choose(ctx.here, chosen, limit=_RETRY_MOST)).messages)


def _summed(messages: list[MessageInfo]) -> str:
    """`Account.charge 400, Report.build 2`."""
    counts = Counter(sorted(f"{each.entity.partition('/')[0]}.{each.method}" for each in messages))
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
