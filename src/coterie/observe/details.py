"""One thing of the cluster in detail, as plain values for JSON: for the page, and for commands that show one thing.

Unknown values are None, never 0. With `texts=False`, what the program wrote (payloads, states, results, notes, messages
of errors) is left out.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.cron.api import preview
from coterie.cron.schedule import Schedule
from coterie.durable import failure
from coterie.entities.calls.by_name_client import CallsByName
from coterie.entities.persisted.commit import key_of
from coterie.errors import MalformedMessage
from coterie.kernel.ids import EntityAddress, Seat, ShardId, shard_number
from coterie.kernel.plain import plain
from coterie.kernel.serialization import schema
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.serialization.versions import split
from coterie.observe import message_filter
from coterie.observe.failures import worded
from coterie.observe.pages import cron as cron_line
from coterie.observe.pages import singleton as singleton_line
from coterie.observe.pages import without_text
from coterie.observe.pages import workflow as workflow_line
from coterie.singletons.definition import PREFIX
from coterie.storage.contracts.messages import MessageFilter
from coterie.workflows.api import info_of
from coterie.workflows.definition import unit_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.entities.calls.by_name_client import ActiveEntity, EntityLocation
    from coterie.entities.persisted.api import MessageInfo
    from coterie.observe.facts import ClusterFacts
    from coterie.observe.message_filter import ChosenMessages, MessageOptions
    from coterie.observe.view import WorkflowLine
    from coterie.storage.contracts.ticks import TickRow
    from coterie.storage.contracts.units import StepRecord, StepRow, UnitRow
    from coterie.storage.interface import ClusterSnapshot, StateRow

_COUNTED_MOST = 10_000
_UNITS_MOST = 20
"""Units of a leader that are shown."""
_CRONS_MOST = 200
_TICKS_MOST = 100
"""Ticks of one cron on the line of time, and of its future."""
_UPCOMING = 10
_HISTORY_MOST = 50
_CHILDREN_MOST = 100
"""Children of a run that are shown."""
_NAMES_MOST = 100
"""Names of published values, and of messages that wait, that are shown."""


# ── singletons ──────────────────────────────────────────────────────────────────────────────────────────────────


async def singleton(here: Client, facts: ClusterFacts, name: str, *, texts: bool) -> dict[str, Any] | None:
    """A singleton with its states, and who led; None: there is none of this name."""
    info = next((each for each in facts.singletons if each.name == name), None)
    if info is None:
        return None
    key, storage = PREFIX + name, here.storage
    current, saved = await storage.states.peek(key), await storage.states.history(key)
    units = [
        each
        for each in await storage.units.list(status=None, name=name, older_s=None, most=_UNITS_MOST)
        if each.kind == "leader"
    ]
    steps = [each for unit in units for each in await storage.units.records(unit.unit)]
    stored = None if current is None else {**state(current, texts=texts), "saved_at": _saved_at(current, saved)}
    return {
        "line": singleton_line(info, facts, texts=texts),
        "state": stored,
        "saved": [_saved(each, texts=texts) for each in saved],
        "history": _leaders(info.epoch, info.leader, info.since_at, saved),
        "steps": [step(each, texts=texts) for each in steps],
        "deferreds": [each.name for each in steps if _is_open(each)],
    }


def _saved_at(current: StateRow, saved: Sequence[StateRow]) -> datetime | None:
    return next((each.saved_at for each in saved if each.version == current.version), None)


def _saved(row: StateRow, *, texts: bool) -> dict[str, Any]:
    told = {"number": row.version, "epoch": row.epoch, "runner": row.runner, "saved_at": row.saved_at}
    return {**told, "set_aside": row.reason if texts else "", **state(row, texts=texts)}


def _leaders(
    epoch: int, leader: str | None, since_at: datetime | None, saved: Sequence[StateRow]
) -> list[dict[str, Any]]:
    """Who is known to have led, the newest first: by the states that they saved, and the present leader."""
    found: dict[int, dict[str, Any]] = {}
    for row in sorted((each for each in saved if not each.reason), key=lambda each: each.version):
        told = found.setdefault(row.epoch, {"runner": row.runner, "epoch": row.epoch, "from_at": row.saved_at})
        told["until_at"] = row.saved_at
    if leader is not None:
        known = found.get(epoch, {})
        found[epoch] = {
            "runner": leader,
            "epoch": epoch,
            "from_at": since_at or known.get("from_at"),
            "until_at": None,
        }
    return [found[each] for each in sorted(found, reverse=True)]


# ── crons ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def cron(here: Client, facts: ClusterFacts, name: str, *, texts: bool) -> dict[str, Any] | None:
    """A cron with its next and last ticks; None: there is none of this name."""
    info = next((each for each in facts.crons if each.name == name), None)
    if info is None:
        return None
    history = await here.storage.ticks.history(name, most=_HISTORY_MOST)
    following = (
        preview(Schedule(info.schedule, timezone=info.timezone, cron=name), after=facts.now, count=_UPCOMING)
        if info.schedule and info.paused_at is None
        else []
    )
    return {
        "line": cron_line(info, facts, texts=texts),
        "next": [{"at": each.at, "note": each.note} for each in following],
        "history": [_tick(each, texts=texts) for each in history],
    }


def _tick(tick: TickRow, *, texts: bool) -> dict[str, Any]:
    return {
        "scheduled_at": tick.at,
        "until": tick.until,
        "started_at": tick.claimed_at if tick.attempt else None,
        "ended_at": tick.ended_at,
        "late_s": tick.late_s,
        "took_s": tick.took_s,
        "outcome": tick.outcome,
        "reason": tick.reason,
        "kind": tick.kind,
        "count": tick.count,
        "attempts": tick.attempt,
        "runner": tick.runner or None,
        "error": worded(tick.errors[-1], texts=texts) if tick.errors else None,
        "errors": list(tick.errors) if texts else [],
    }


async def ticks(
    here: Client,
    facts: ClusterFacts,
    crons: Collection[str] = (),
    *,
    start: datetime | None,
    end: datetime | None,
    texts: bool,
) -> dict[str, Any]:
    """The ticks of crons on a line of time, those to come included.

    Args:
        here: The process that reads.
        facts: What is known of the crons.
        crons: Names of crons. Default: all of them. No more than the first 200 are read.
        start: Ticks from this instant on. Default: six hours ago.
        end: Ticks before this instant. Default: in an hour.
        texts: Whether to include texts of the program.
    """
    start, end = start or facts.now - timedelta(hours=6), end or facts.now + timedelta(hours=1)
    wanted = [info for info in facts.crons if not crons or info.name in crons]
    chosen = wanted[:_CRONS_MOST]
    names = [info.name for info in chosen]
    stored = await here.storage.ticks.histories(names, most=_TICKS_MOST, since=start, before=end)
    found = []
    for info in chosen:
        within = stored.get(info.name, ())
        after = max(start, facts.now)
        following: list[datetime] = []
        if info.schedule and info.paused_at is None and end > after:
            schedule = Schedule(info.schedule, timezone=info.timezone, cron=info.name)
            following = list(islice(schedule.between(after, end), _TICKS_MOST))
        found.append(
            {
                "name": info.name,
                "ticks": [_tick(row, texts=texts) for row in within],
                "next": following,
                "more": len(within) == _TICKS_MOST,
            }
        )
    return {"from": start, "until": end, "crons": found, "more": len(wanted) > len(chosen)}


# ── shards ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def moves(here: Client) -> dict[str, Any]:
    """The moves of shards of the last hour, the oldest first, as far as the process that answers knows them."""
    if here.facts() is None:  # a client knows what it has read, a runner what happens
        await here.directory.refresh()
    since, found = here.directory.moves.recent()
    return {
        "since": since,
        "moves": [
            {"at": each.at, "shard": each.shard, "epoch": each.epoch, "from": each.former, "to": each.owner}
            for each in found
        ],
    }


# ── entities ────────────────────────────────────────────────────────────────────────────────────────────────────


async def entities(here: Client, type: str, *, limit: int) -> dict[str, Any] | None:
    """The active entities of a type, the busiest first; None: no runner knows the type."""
    found = await CallsByName(here).residents(type, most=limit)
    if found.group is None and not found.silent:
        return None
    view = await here.storage.view()
    lives = sorted(found.lives, key=lambda each: (-each[1].waiting, -each[1].running, each[1].id))[:limit]
    return {
        "entities": [
            _active(each, runner, _shard(EntityAddress(type, each.id), found, view)) for runner, each in lives
        ],
        "more": found.total > len(lives),
        "silent": list(found.silent),
    }


def _active(life: ActiveEntity, runner: str, shard: ShardId | None) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(life)
    return {**told, "runner": runner, "shard": None if shard is None else str(shard)}


async def entity(here: Client, address: EntityAddress, *, texts: bool) -> dict[str, Any] | None:
    """An entity; None: no runner knows its type, and nothing of it is stored."""
    found = await CallsByName(here).residents(address.type, address.id)
    stored = await here.storage.states.peek(key_of(address.type, address.id))
    counts = {
        "pending": await here.storage.messages.count(_of(address, "pending"), most=_COUNTED_MOST),
        "dead": await here.storage.messages.count(_of(address, "dead"), most=_COUNTED_MOST),
    }
    if found.group is None and not found.silent and stored is None and not any(counts.values()):
        return None
    view = await here.storage.view()
    shard = _shard(address, found, view)
    owner, epoch = owner_of(shard, view)
    runner, life = found.lives[0] if found.lives else (None, None)
    return {
        "type": address.type,
        "id": address.id,
        "shard": None if shard is None else str(shard),
        "owner": owner,
        "epoch": epoch,
        "known": life is not None,
        "runner": runner,
        "waiting": None if life is None else life.waiting,
        "mailbox": None if life is None else life.mailbox,
        "running": None if life is None else life.running,
        "method": None if life is None else life.method,
        "running_s": None if life is None else life.running_s,
        "idle_s": None if life is None else life.idle_s,
        "leaves_s": None if life is None else life.leaves_s,
        "state": None if stored is None else state(stored, texts=texts),
        "messages": counts,
        "silent": list(found.silent),
    }


def _of(address: EntityAddress, status: Any) -> MessageFilter:
    return MessageFilter(status=status, entity_type=address.type, entity_id=address.id)


def _shard(address: EntityAddress, found: EntityLocation, view: ClusterSnapshot) -> ShardId | None:
    """The shard of an entity; None if unknown. The number of shards is that of the cluster, not of our settings."""
    shards = sum(each.name.startswith("shard:") and each.group == found.group for each in view.seats)
    if found.group is None or not shards:
        return None
    return ShardId(found.group, shard_number(address.type, address.id, shards))


def owner_of(shard: ShardId | None, view: ClusterSnapshot) -> tuple[str | None, int | None]:
    """The name of the runner that holds a shard, and its epoch."""
    wanted = None if shard is None else Seat.shard(shard)
    seat = next((each for each in view.seats if each.name == wanted), None)
    names: dict[str | None, str] = {each.id: each.name for each in view.runners}
    return (None, None) if seat is None else (names.get(seat.holder), seat.epoch)


def state(row: StateRow, *, texts: bool) -> dict[str, Any]:
    """A stored state."""
    try:
        version, data = split(row.value, what="state")
        value = PLAIN.decode(data)
    except MalformedMessage:
        version, value = 0, row.value
    told = {"version": version, "bytes": len(row.value), "saves": row.version, "epoch": row.epoch}
    return {**told, "value": plain(value)} if texts else told


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────


async def messages(
    here: Client, chosen: MessageOptions, *, limit: int, after: str | None, texts: bool
) -> dict[str, Any]:
    """Messages that match, the newest first, without their payloads."""
    found = await message_filter.choose(here, chosen, limit=limit + 1, after=after, newest=True)
    listed = [_message(each, found, texts=texts) for each in found.messages[:limit]]
    return {"messages": listed, "more": len(found.messages) > limit, "silent": list(found.silent)}


async def message(here: Client, info: MessageInfo, *, texts: bool) -> dict[str, Any]:
    """A message with its arguments."""
    running = (await CallsByName(here).running()).messages if info.status == "pending" else {}
    found = message_filter.ChosenMessages((info,), await here.storage.now(), running, ())
    told = _message(info, found, texts=texts)
    return {**told, "arguments": plain(info.payload), "reply": plain(info.reply)} if texts else told


def _message(info: MessageInfo, found: ChosenMessages, *, texts: bool) -> dict[str, Any]:
    told = {name: value for name, value in plain(info).items() if name not in ("payload", "reply", "errors")}
    if not texts:
        told["failure"] = None if info.failure is None else worded(info.failure, texts=False)
        told["key"], told["tags"] = None, {}
    errors = [{"number": each.number, "at": each.at, **_failed(each.error, texts=texts)} for each in info.errors]
    return {**told, "id": str(info.id), "state": found.state(info), "errors": errors}


def _failed(error: str, *, texts: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"error": worded(error, texts=texts)}
    return {**told, "traceback": error} if texts and "\n" in error else told


# ── workflows ───────────────────────────────────────────────────────────────────────────────────────────────────


async def workflow(here: Client, row: UnitRow, *, texts: bool, tokens: bool) -> dict[str, Any]:
    """A run of a workflow, with its steps and what it waits for.

    Args:
        here: The process that reads.
        row: The run.
        texts: Whether to include texts of the program.
        tokens: Whether to include the tokens of deferreds: who has one can resolve the deferred.
    """
    steps = await here.storage.units.records(row.unit)
    told: dict[str, Any] = {
        "line": _run(row, texts=texts),
        "version": row.version,
        "shard": row.seat.partition(":")[2],
        "error": _worded(row.error, texts=texts),
        "steps": [step(each, texts=texts, is_over=row.ended_at is not None) for each in steps],
        "waits": [
            {
                "name": each.name,
                "kind": each.kind,
                "began_at": each.began_at,
                "until_at": each.due_at,
                "token": token(here, row, each) if tokens and each.kind == "deferred" else None,
                "schema": _schema(each) if each.kind == "deferred" else None,
            }
            for each in steps
            if not each.done and row.ended_at is None
        ],
    }
    told["life"], told["retries"] = str(row.life), row.retries
    told |= await run_talk(here, row, steps, texts=texts)
    if texts:
        told["input"] = plain(decoded(row.payload))
        told["result"] = None if row.value is None else plain(decoded(row.value))
    return told


async def run_talk(here: Client, row: UnitRow, steps: Sequence[StepRow], *, texts: bool) -> dict[str, Any]:
    """The children of a run, the last values that it has published, and the messages that wait for it."""
    messages, children = here.storage.run_messages, []
    names = dict.fromkeys(each.name for each in steps if each.kind in ("child", "start"))
    for each in islice(names, _CHILDREN_MOST):
        name, _, id_ = each.partition("/")
        child = await here.storage.units.get(unit_of(name, id_))
        children.append({"name": name, "id": id_, "status": None if child is None else child.status})
    return {
        "children": children,
        "published": [
            {"name": name, "number": last.seq, "at": last.at} | ({"value": plain(decoded(last.value))} if texts else {})
            for name, last in await messages.published_names(row.unit, most=_NAMES_MOST)
        ],
        "messages": [
            {"name": each.name, "count": each.count, "since_at": each.since_at}
            for each in await messages.waiting(row.unit, most=_NAMES_MOST)
        ],
    }


def _run(row: UnitRow, *, texts: bool) -> WorkflowLine:
    line = workflow_line(info_of(row))
    return line if texts else without_text(line)


def step(row: StepRecord, *, texts: bool, is_over: bool = False) -> dict[str, Any]:
    """A step. What an older version has stored has no beginning, attempts or runner."""
    open_ = "cancelled" if is_over else "waiting"
    rejected = None if row.rejection is None else worded(f"DeferredRejected: {row.rejection}", texts=texts)
    error = rejected or _worded(row.error, texts=texts)
    told = {
        "branch": row.branch,
        "position": row.position,
        "kind": row.kind,
        "name": row.name,
        "status": "failed" if error is not None else "done" if row.done else open_,
        "done": row.done,
        "due_at": row.due_at,
        "began_at": row.began_at,
        "ended_at": row.ended_at,
        "attempts": row.attempts,
        "runner": row.runner,
        "error": error,
    }
    if texts:
        told["result"] = None if row.value is None or not row.done else plain(decoded(row.value))
    return told


def _is_open(row: StepRow) -> bool:
    return row.kind == "deferred" and not row.done


def token(here: Client, row: UnitRow, deferred: StepRow) -> str:
    """The token of a deferred that is waited for."""
    return here.tokens.make(row.unit, deferred.name, life=row.life, takes=_takes(deferred))


def _takes(deferred: StepRow) -> Any:
    """The type of a deferred, which its row holds until it has a value."""
    return None if deferred.value is None else msgspec.msgpack.decode(deferred.value)


def _schema(deferred: StepRow) -> dict[str, Any] | None:
    """The JSON schema of its type; None: any value."""
    takes = _takes(deferred)
    if takes is None:
        return None
    try:
        found: dict[str, Any] = msgspec.json.schema(schema.codec_of(takes).type)
    except TypeError:  # a type that JSON has no schema for
        return None
    return found


def decoded(data: bytes) -> Any:
    """A stored value as plain values."""
    return PLAIN.decode(data) if data else None


def _worded(error: bytes | None, *, texts: bool) -> str | None:
    return None if error is None else worded(failure.text_of(error), texts=texts)


# ── keys ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def keys(here: Client, prefix: str, *, after: str | None, limit: int, texts: bool) -> dict[str, Any]:
    """Keys that begin with a prefix, in order."""
    found = await here.storage.kv.page(prefix, after=after, most=limit + 1)
    return {
        "entries": [
            {"key": each.key, "bytes": len(each.value), "version": None, "changed_at": None}
            | ({"value": _value(each.value)} if texts else {})
            for each in found[:limit]
        ],
        "more": len(found) > limit,
    }


def _value(data: bytes) -> Any:
    try:
        return plain(PLAIN.decode(data))
    except MalformedMessage:
        return plain(data)
