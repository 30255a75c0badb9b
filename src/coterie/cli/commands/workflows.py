"""`coterie workflows`: runs of workflows, their steps, and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

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
)
from coterie.cli.output import Screen, as_json, lasting, plain, plural, safe
from coterie.durable import failure
from coterie.observe.details import decoded, step, token
from coterie.storage.contracts.units import StepRecord, UnitRow, UnitStatus
from coterie.work.tags import tag_of
from coterie.workflows.definition import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.work.tags import Tag
    from coterie.workflows.api import WorkflowInfo

_GLYPHS = {"running": "good", "suspended": "good", "done": "good", "failed": "bad", "interrupted": "warn"}
_LOOKED_AT = 1_000
"""Runs that are searched for an id given alone: those that changed last."""


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
    value = {
        **_fields(row),
        "payload": plain(decoded(row.payload)),
        "result": None if row.value is None else plain(decoded(row.value)),
        "steps": [plain(step(each, texts=True, is_over=row.ended_at is not None)) for each in steps],
        "deferreds": tokens,
    }
    ctx.show(value, lambda: _shown(ctx.screen, row, steps, tokens, now))


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


async def _going_on(ctx: ClientCommand, run: str) -> UnitRow:
    row = await _found(ctx, run)
    if row.kind != "workflow":
        refuse(f"{run} is durable work of a {row.kind}, no workflow", hint="it ends with its singleton or cron")
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
        "shard": row.seat.partition(":")[2],
        "started_at": plain(row.started_at),
        "changed_at": plain(row.changed_at),
        "ended_at": plain(row.ended_at),
        "wake_at": plain(row.wake_at),
        "error": None if row.error is None else failure.text_of(row.error),
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
            one_line(each.error) or ("-" if each.wake_at is None else f"continues {screen.time(each.wake_at, now)}"),
        )
        for each in runs
    ]
    return screen.table(
        ("RUN", "STATUS", "STEPS", "STARTED", "CHANGED", "REMARK"), rows, right=("STEPS",), spare=("STARTED", "STEPS")
    )


def _status(screen: Screen, status: UnitStatus, *, interrupting: bool) -> str:
    ending = ", being interrupted" if interrupting and status in ("running", "suspended") else ""
    return f"{screen.glyph(_GLYPHS[status])} {status}{ending}"


def _shown(screen: Screen, row: UnitRow, steps: Sequence[StepRecord], tokens: dict[str, str], now: datetime) -> str:
    pairs = [
        ("shard", row.seat.partition(":")[2]),
        ("version", row.version),
        ("payload", as_json(decoded(row.payload))),
        ("started", both(row.started_at, now)),
        ("continues", "" if row.wake_at is None else both(row.wake_at, now)),
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
    parts += [f"resolve {name}: coterie workflows resolve {token} JSON" for name, token in tokens.items()]
    return "\n\n".join(parts)


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
