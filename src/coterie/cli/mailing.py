"""Messages for people: which ones are meant, and how a list and one of them look."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.cli.filters import state_of
from coterie.cli.looking import one_line
from coterie.cli.showing import as_json, lasting, plain, tell
from coterie.entities.calls.by_name_client import Untyped
from coterie.errors import MessageExpired
from coterie.kernel.ids import Seat, ShardId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from datetime import datetime

    from coterie.cli.asking import Asking
    from coterie.cli.filters import Filter, State
    from coterie.cli.showing import Screen
    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.messages import Status
    from coterie.storage.interface import ClusterSnapshot

_PAGE = 200
_GLYPHS = {"waiting": "good", "running": "good", "scheduled": "good", "dead": "bad", "done": "good"}
_HIDDEN = ("payload", "reply", "errors")
"""Not in a list: `show` has them."""
_LEFT = 22


class Chosen(NamedTuple):
    """Messages that were meant, as they stood at one moment."""

    messages: Sequence[MessageInfo]
    now: datetime
    running: Mapping[str, tuple[str, float]]
    silent: Sequence[str]
    """Names of runners that did not say what they run."""

    def state(self, message: MessageInfo) -> State:
        """How one of them stands."""
        return state_of(message, now=self.now, running=self.running)


async def choose(asking: Asking, chosen: Filter, *, limit: int, after: str | None = None) -> Chosen:
    """The first messages that are meant, in the order of their ids; without a state all that are not done."""
    now = await asking.here.storage.now()
    is_asked = chosen.status in (None, "pending")
    at_work = await Untyped(asking.here).running() if is_asked else None
    running, silent = ({}, ()) if at_work is None else at_work
    if chosen.state == "running":
        found = await _at_work(asking, sorted(running), after=after)
    else:
        statuses: list[Status] = ["pending", "dead"] if chosen.status is None else [chosen.status]
        lists = [await _some(asking, chosen, each, now, running, limit=limit, after=after) for each in statuses]
        found = list(heapq.merge(*lists, key=lambda each: each.id))
    meant = [each for each in found if chosen.takes(each, now=now, running=running)]
    now = max([now, *(each.sent_at for each in meant)])  # what was sent after the clock was read is not from the future
    return Chosen(meant[:limit], now, running, silent)


async def _some(
    asking: Asking,
    chosen: Filter,
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
    asking: Asking, chosen: Filter, status: Status, *, after: str | None = None
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


async def _at_work(asking: Asking, ids: Sequence[str], *, after: str | None) -> list[MessageInfo]:
    found = []
    for each in ids:
        if each > (after or ""):
            try:
                found.append(await asking.cluster.messages.show(each))
            except MessageExpired:
                continue  # it has ended meanwhile, and was not kept
    return found


def talk_of_silence(chosen: Chosen) -> None:
    """Say what could not be known."""
    if chosen.silent:
        names = ", ".join(chosen.silent)
        tell(f"no answer from {names}: what runs there is taken for waiting", err=True)


def outlined(message: MessageInfo, chosen: Chosen) -> dict[str, Any]:
    """A message in a list, for a program."""
    told: dict[str, Any] = plain(message)
    kept = {name: value for name, value in told.items() if name not in _HIDDEN}
    last = one_line(message.errors[-1].error) if message.errors else None
    return {**kept, "state": chosen.state(message), "error": last}


def table(screen: Screen, chosen: Chosen) -> str:
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


def _remark(screen: Screen, message: MessageInfo, chosen: Chosen) -> str:
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
