"""`coterie workflows`: runs of workflows, their steps, and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from coterie.cli.client import (
    WRONG,
    Noun,
    both,
    client_command,
    confirmable,
    confirmed,
    fields,
    one_line,
    read_json,
    refuse,
    refusing,
)
from coterie.cli.output import Screen, as_json, echo, lasting, plain, plural, safe
from coterie.durable import failure
from coterie.observe.details import decoded, run_talk, step, token
from coterie.storage.contracts.units import StepRecord, UnitRow, UnitStatus
from coterie.work.tags import tag_of
from coterie.workflows import recovery, run_history, run_messages
from coterie.workflows.api import stuck_of
from coterie.workflows.definition import require_id, unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.work.tags import Tag
    from coterie.workflows.api import WorkflowInfo

_GLYPHS = {"running": "good", "suspended": "good", "done": "good", "failed": "bad", "interrupted": "warn"}
_LOOKED_AT = 1_000
"""Runs that are searched for an id given alone: those that changed last."""
_NAMES = 100
"""Names of published values that an error names."""


@click.group(cls=Noun)
def command() -> None:
    """Runs of workflows, and what they wait for.

    \b
    Example:
      coterie workflows show checkout/order-7 --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.option("--status", type=click.Choice(get_args(UnitStatus)), help="Only runs with this status.")
@click.option("--name", metavar="NAME", help="Only runs of this workflow.")
@click.option("--tag", metavar="NAME=VALUE", help="Only runs that were started with this tag.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="How many at most.")
@client_command
async def list_some(
    ctx: ClientCommand, *, status: UnitStatus | None, name: str | None, tag: str | None, limit: int
) -> None:
    """Runs, those that changed last first.

    \b
    Example:
      coterie workflows list --status suspended --name checkout --tag tenant=acme
    """
    found = await ctx.cluster.workflows.list(status=status, name=name, tag=_tag(tag), limit=limit)
    now = await ctx.here.storage.now()
    ctx.show(found, lambda: _table(ctx.screen, found, now))


def _tag(given: str | None) -> Tag | None:
    """The name and the value of `--tag`; a wrong one ends the command."""
    if given is None:
        return None
    name, equals, value = given.partition("=")
    if not equals:
        refuse(f'the tag "{given}" has no "="', hint="write a name and a value, as in tenant=acme", code=WRONG)
    return tag_of((name, value))


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@client_command
async def show(ctx: ClientCommand, run: str) -> None:
    """One run: its steps, and what it waits for.

    \b
    Example:
      coterie workflows show checkout/order-7 --json
    """
    row = await _found(ctx, run)
    steps = await ctx.here.storage.units.records(row.unit)
    tokens = {each.name: token(ctx.here, row, each) for each in steps if row.ended_at is None and _waits(each)}
    now = await ctx.here.storage.now()
    talk = await run_talk(ctx.here, row, steps, texts=True)
    value = {
        **_fields(row),
        **plain(talk),
        "payload": plain(decoded(row.payload)),
        "result": None if row.value is None else plain(decoded(row.value)),
        "steps": [plain(step(each, texts=True, is_over=row.ended_at is not None)) for each in steps],
        "deferreds": tokens,
    }
    ctx.show(value, lambda: _shown(ctx.screen, row, steps, tokens, talk, now))


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@confirmable
@client_command
async def interrupt(ctx: ClientCommand, run: str, *, yes: bool, dry_run: bool) -> None:
    """Interrupt a run, which then undoes what it has done.

    \b
    Example:
      coterie workflows interrupt checkout/order-7 --yes
    """
    row = await _going_on(ctx, run)
    done = f"{plural(row.steps, 'step')} done"
    what = f"{row.name}/{row.id} ({row.status}, {done}) will be interrupted, and undo what it has done"
    if not confirmed(what, "interrupt it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("interrupt", f"workflow {row.name}/{row.id}") as act:
        after = await ctx.here.storage.units.interrupt(row.unit)
        act.result = f"{row.name}/{row.id} is being interrupted"
    await _tell(ctx, row, after, "is being interrupted", "this cannot be undone; start it again under another id")


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@confirmable
@client_command
async def resume(ctx: ClientCommand, run: str, *, yes: bool, dry_run: bool) -> None:
    """Make a suspended run check now whether it can continue.

    \b
    Example:
      coterie workflows resume checkout/order-7 --yes
    """
    row = await _going_on(ctx, run)
    what = f"{row.name}/{row.id} ({row.status}) will check now whether it can continue"
    if not confirmed(what, "resume it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("resume-workflow", f"workflow {row.name}/{row.id}") as act:
        after = await ctx.here.storage.units.resume(row.unit)
        act.result = f"{row.name}/{row.id} checks whether it can continue"
    await _tell(ctx, row, after, "checks whether it can continue", "if not, it suspends itself again")


@command.command()
@click.argument("token")
@click.argument("value", metavar="JSON")
@confirmable
@client_command
async def resolve(ctx: ClientCommand, token: str, value: str, *, yes: bool, dry_run: bool) -> None:
    """Resolve a deferred with a value: the work that waits for it continues.

    \b
    Example:
      coterie workflows resolve "$TOKEN" '{"approved": true}' --yes
    """
    given = read_json(value, what="the value", hint="""quote it for the shell: '"yes"', '{"approved": true}'""")
    found = ctx.here.tokens.read(token)
    unit, name = found.unit, found.name
    what = f'deferred "{name}" of {unit.partition(":")[2]} will have the value {as_json(given)}'
    if not confirmed(what, "resolve it?", yes=yes, dry_run=dry_run):
        return
    shown = safe(unit.partition(":")[2], keep="")
    async with ctx.act("resolve", f"deferred {name} of {shown}") as act:
        await ctx.cluster.resolve(token, given)
        act.result = f'deferred "{name}" of {shown} has its value'
    ctx.answer(
        {"unit": unit, "name": name, "resolved": True},
        f'resolved "{name}" of {shown}; the first value wins, this cannot be undone\n'
        f"to follow it: coterie workflows show {shown}",
    )


@command.command("retry")
@click.argument("run", metavar="[NAME/]ID")
@confirmable
@client_command
async def retry_run(ctx: ClientCommand, run: str, *, yes: bool, dry_run: bool) -> None:
    """Have a failed run go on from the step that failed.

    \b
    Example:
      coterie workflows retry checkout/order-7 --yes
    """
    row = await _workflow(ctx, run)
    if row.status != "failed":
        refuse(f"{row.name}/{row.id} has not failed: {row.status}", hint=f"coterie workflows show {row.name}/{row.id}")
    why = "" if row.error is None else f": {one_line(failure.text_of(row.error))}"
    what = f"{row.name}/{row.id} (failed{why}) will go on from the step that failed"
    if not confirmed(what, "retry it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("retry-workflow", f"workflow {row.name}/{row.id}") as act:
        await recovery.retry(ctx.here, row.name, row.id, row.unit)
        act.result = f"{row.name}/{row.id} goes on from the step that failed"
    after = await ctx.here.storage.units.get(row.unit)
    await _tell(ctx, row, after, "goes on from the step that failed", "if it fails again, retry it again")


@command.command("fork")
@click.argument("run", metavar="[NAME/]ID")
@click.option("--before", required=True, metavar="STEP", help="The step before which the new run goes on.")
@click.option("--id", "new", required=True, metavar="ID", help="The id of the new run.")
@confirmable
@client_command
async def fork_run(ctx: ClientCommand, run: str, *, before: str, new: str, yes: bool, dry_run: bool) -> None:
    """Start a new run with the steps that one made before a step.

    \b
    Example:
      coterie workflows fork checkout/order-7 --before charge --id order-7b --yes
    """
    row = await _workflow(ctx, run)
    try:
        require_id(new)
        kept = recovery.steps_before(await ctx.here.storage.units.records(row.unit), before, run=f"{row.name}/{row.id}")
    except ValueError as error:
        refuse(str(error), hint=f"coterie workflows show {row.name}/{row.id}", code=WRONG)
    what = f"{row.name}/{new} will be started with {plural(len(kept), 'step')} of {row.name}/{row.id}, before {before}"
    if not confirmed(what, "start it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("fork-workflow", f"workflow {row.name}/{row.id}") as act:
        seat = await recovery.seat_beside(ctx.here, row, new)
        await recovery.fork(ctx.here, row.name, row.id, before=before, new_id=new, seat=seat, version=row.version)
        act.result = f"{row.name}/{new} goes on before {before}"
    shown = safe(f"{row.name}/{new}", keep="")
    text = f"started {shown}; it goes on before {safe(before)}\nto follow it: coterie workflows show {shown}"
    ctx.answer({"name": row.name, "id": new, "of": row.id, "steps": len(kept)}, text)


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@click.argument("name")
@click.argument("value", metavar="JSON")
@click.option("--key", metavar="KEY", help="Sent again with the same key, it is one message.")
@confirmable
@client_command
async def send(
    ctx: ClientCommand, run: str, name: str, value: str, *, key: str | None, yes: bool, dry_run: bool
) -> None:
    """Send a message to a run, which takes it with workflow.receive(NAME, …). It may begin later.

    \b
    Example:
      coterie workflows send checkout/order-7 approve '{"by": "ada"}' --yes
    """
    given = read_json(value, what="the value", hint="""quote it for the shell: '"yes"', '{"approved": true}'""")
    workflow, id_ = await _named(ctx, run)
    what = f"{workflow}/{id_} will be sent the message {name!r}: {as_json(given)}"
    if not confirmed(what, "send it?", yes=yes, dry_run=dry_run):
        return
    shown = safe(f"{workflow}/{id_}", keep="")
    async with ctx.act("send-to-workflow", f"workflow {workflow}/{id_}") as act:
        with refusing():
            await run_messages.send(ctx.here, workflow, id_, name, given, key=key)
        act.result = f"message {name!r} is sent to {workflow}/{id_}"
    ctx.answer(
        {"name": workflow, "id": id_, "message": name, "sent": True},
        f"sent {name!r} to {shown}; it waits there until the run receives it\n"
        f"to follow it: coterie workflows show {shown}",
    )


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many at most.")
@client_command
async def published(ctx: ClientCommand, run: str, name: str, *, limit: int) -> None:
    """The last values that a run has published under a name, the oldest first.

    \b
    Example:
      coterie workflows published checkout/order-7 status
    """
    row = await _workflow(ctx, run)
    store = ctx.here.storage.run_messages
    last = await store.published(row.unit, name, after=None, most=1)
    if not last:
        known = ", ".join(each for each, _ in await store.published_names(row.unit, most=_NAMES)) or "nothing"
        refuse(f"{row.name}/{row.id} has published nothing under {name!r}", hint=f"it has published: {known}")
    rows = await store.published(row.unit, name, after=max(last[0].seq - limit, 0), most=limit)
    now = await ctx.here.storage.now()
    value = [{"number": each.seq, "at": plain(each.at), "value": plain(decoded(each.value))} for each in rows]

    def table() -> str:
        lines = [(str(each.seq), ctx.screen.time(each.at, now), as_json(decoded(each.value))) for each in rows]
        return ctx.screen.table(("#", "PUBLISHED", "VALUE"), lines, right=("#",))

    ctx.show(value, table)


@command.command("export")
@click.argument("run", metavar="[NAME/]ID")
@client_command
async def export_run(ctx: ClientCommand, run: str) -> None:
    """The history of a run as JSON, for coterie.testing.replay. It has the payload and all results, as plain text.

    \b
    Example:
      coterie workflows export checkout/order-7 > history.json
    """
    row = await _workflow(ctx, run)
    found = await run_history.export(ctx.here.storage, row.unit)
    if found is None:
        refuse(f"{row.name}/{row.id} has been deleted meanwhile")
    echo(msgspec.json.format(msgspec.json.encode(found[1]), indent=1).decode())


async def _found(ctx: ClientCommand, run: str) -> UnitRow:
    name, slash, id_ = run.partition("/")
    row = await ctx.here.storage.units.get(unit_of(name, id_)) if slash and id_ else None
    if row is not None:
        return row
    recent = await ctx.here.storage.units.list(status=None, name=None, older_s=None, most=_LOOKED_AT)
    same = [each for each in recent if run == each.id]
    if len(same) == 1:
        return same[0]
    if same:
        several = ", ".join(f"{each.name}/{each.id}" for each in same)
        refuse(f"several runs have the id {run}", hint=f"name one: {several}", code=WRONG)
    hint = "write its workflow, too: checkout/order-7; coterie workflows list shows runs"
    return refuse(f"there is no run {run}, or it was deleted", hint=hint)


async def _workflow(ctx: ClientCommand, run: str) -> UnitRow:
    row = await _found(ctx, run)
    if row.kind != "workflow":
        refuse(f"{run} is durable work of a {row.kind}, no workflow", hint="it ends with its singleton or cron")
    return row


async def _named(ctx: ClientCommand, run: str) -> tuple[str, str]:
    """The workflow and id of a run, which may begin later if its workflow is named."""
    name, slash, id_ = run.partition("/")
    if slash and id_:
        return name, id_
    row = await _workflow(ctx, run)
    return row.name, row.id


async def _going_on(ctx: ClientCommand, run: str) -> UnitRow:
    row = await _workflow(ctx, run)
    if row.ended_at is not None:
        refuse(f"{row.name}/{row.id} has ended: {row.status}", hint=f"coterie workflows show {row.name}/{row.id}")
    return row


async def _tell(ctx: ClientCommand, before: UnitRow, after: UnitRow | None, done: str, undo: str) -> None:
    """Print what was done, and wake the holder of the seat."""
    if after is None:
        refuse(f"{before.name}/{before.id} has been deleted meanwhile")
    await ctx.here.wake(after.seat, about=after.unit, fresh=True)
    shown = f"{after.name}/{after.id}"
    shown = safe(shown, keep="")
    text = f"{shown} {done}; {undo}\nto follow it: coterie workflows show {shown}"
    ctx.answer(_fields(after), text)


def _fields(row: UnitRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "id": row.id,
        "kind": row.kind,
        "status": row.status,
        "interrupting": row.interrupting,
        "version": row.version,
        "life": str(row.life),
        "retries": row.retries,
        "shard": row.seat.partition(":")[2],
        "started_at": plain(row.started_at),
        "changed_at": plain(row.changed_at),
        "ended_at": plain(row.ended_at),
        "wake_at": plain(row.wake_at),
        "error": None if row.error is None else failure.text_of(row.error),
        "stuck": stuck_of(row),
    }


def _waits(step: StepRecord) -> bool:
    return step.kind == "deferred" and not step.done


def _table(screen: Screen, runs: Sequence[WorkflowInfo], now: datetime) -> str:
    if not runs:
        return "no runs: cluster.start_workflow(…) starts one"
    rows = [
        (
            f"{each.name}/{each.id}",
            _status(screen, each.status, interrupting=each.interrupting),
            str(each.steps),
            screen.time(each.started_at, now),
            screen.time(each.changed_at, now),
            one_line(each.error)
            or (f"stuck: {one_line(each.stuck)}" if each.stuck else "")
            or ("-" if each.wake_at is None else f"continues {screen.time(each.wake_at, now)}"),
        )
        for each in runs
    ]
    return screen.table(
        ("RUN", "STATUS", "STEPS", "STARTED", "CHANGED", "REMARK"), rows, right=("STEPS",), spare=("STARTED", "STEPS")
    )


def _status(screen: Screen, status: UnitStatus, *, interrupting: bool) -> str:
    ending = ", being interrupted" if interrupting and status in ("running", "suspended") else ""
    return f"{screen.glyph(_GLYPHS[status])} {status}{ending}"


def _shown(
    screen: Screen,
    row: UnitRow,
    steps: Sequence[StepRecord],
    tokens: dict[str, str],
    talk: dict[str, Any],
    now: datetime,
) -> str:
    pairs = [
        ("shard", row.seat.partition(":")[2]),
        ("version", row.version),
        ("retried", f"{row.retries} times" if row.retries else ""),
        ("payload", as_json(decoded(row.payload))),
        ("started", both(row.started_at, now)),
        ("continues", "" if row.wake_at is None else both(row.wake_at, now)),
        ("stuck", one_line(stuck_of(row))),
        ("ended", "" if row.ended_at is None else both(row.ended_at, now)),
        ("result", "" if row.value is None else as_json(decoded(row.value))),
        ("error", "" if row.error is None else one_line(failure.text_of(row.error))),
    ]
    head = screen.headed(f"{row.name}/{row.id}", _status(screen, row.status, interrupting=row.interrupting))
    parts = [f"{head}\n{fields(pairs)}"]
    if steps:
        rows = [
            (
                each.name or "-",
                each.kind,
                "-" if each.began_at is None else screen.time(each.began_at, now),
                "-" if each.began_at is None or each.ended_at is None else lasting(each.ended_at - each.began_at),
                "-" if each.attempts is None else str(each.attempts),
                each.runner or "-",
                _outcome(screen, each, now, is_over=row.ended_at is not None),
            )
            for each in steps
        ]
        columns = ("STEP", "KIND", "BEGAN", "TOOK", "ATTEMPTS", "ON", "RESULT")
        table = screen.table(columns, rows, right=("TOOK", "ATTEMPTS"), spare=("ATTEMPTS", "ON", "KIND"))
        parts.append("\n".join(f"  {line}" for line in table.splitlines()))
    parts += [each for each in (_talk(screen, talk, now), _next(row)) if each]
    parts += [f"resolve {name}: coterie workflows resolve {token} JSON" for name, token in tokens.items()]
    return "\n\n".join(parts)


def _talk(screen: Screen, talk: dict[str, Any], now: datetime) -> str:
    """Its children, what it has published, and messages that it has not received."""
    pairs = [("child", f"{each['name']}/{each['id']} ({each['status'] or 'deleted'})") for each in talk["children"]]
    pairs += [
        (
            "published",
            f"{each['name']} {as_json(each['value'])}, number {each['number']}, {screen.time(each['at'], now)}",
        )
        for each in talk["published"]
    ]
    pairs += [
        ("waiting", f"{plural(each['count'], 'message')} {each['name']!r} since {screen.time(each['since_at'], now)}")
        for each in talk["messages"]
    ]
    return fields(pairs)


def _next(row: UnitRow) -> str:
    """What can be done about a run that has failed."""
    if row.kind != "workflow" or row.status != "failed":
        return ""
    return f"retry: coterie workflows retry {safe(f'{row.name}/{row.id}', keep='')}"


def _outcome(screen: Screen, step: StepRecord, now: datetime, *, is_over: bool) -> str:
    if not step.done and is_over:
        return "cancelled"
    if not step.done:
        until = "" if step.due_at is None else f" until {screen.time(step.due_at, now)}"
        return f"waits{until}"
    if step.rejection is not None:
        return f"{screen.glyph('bad')} {one_line(step.rejection)}"
    if step.error is not None:
        return f"{screen.glyph('bad')} {one_line(failure.text_of(step.error))}"
    shown = "" if step.value is None else f" {as_json(decoded(step.value))}"
    return f"{screen.glyph('good')} done{shown}"
