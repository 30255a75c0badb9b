"""`coterie workflows`: runs of workflows, their steps, and what they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click
import msgspec

from coterie.cli.client import WRONG, acts, asks, both, confirmed, fields, one_line, read_json, refuse
from coterie.cli.noun import Noun
from coterie.cli.output import as_json, plain, safe
from coterie.durable import failure
from coterie.kernel.serialization.codec import PLAIN
from coterie.storage.contracts.units import UnitStatus
from coterie.workflows.definition import unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.cli.output import Screen
    from coterie.storage.contracts.units import StepRow, UnitRow
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
@click.option("--status", type=click.Choice(get_args(UnitStatus)), help="Only those that stand so.")
@click.option("--name", metavar="NAME", help="Only those of one workflow.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="How many at most.")
@asks
async def list_some(asking: ClientCommand, *, status: UnitStatus | None, name: str | None, limit: int) -> None:
    """Runs, those that changed last first.

    \b
    Example:
      coterie workflows list --status suspended --name checkout
    """
    found = await asking.cluster.workflows.list(status=status, name=name, limit=limit)
    now = await asking.here.storage.now()
    asking.answer(found, lambda: f"{asking.where}\n\n{_table(asking.screen, found, now)}")


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@asks
async def show(asking: ClientCommand, run: str) -> None:
    """One run: its steps, and what it waits for.

    \b
    Example:
      coterie workflows show checkout/order-7 --json
    """
    row = await _found(asking, run)
    steps = await asking.here.storage.units.steps(row.unit)
    tokens = {each.name: _token(asking, row, each) for each in steps if _waits(each)}
    now = await asking.here.storage.now()
    value = {
        **_fields(row),
        "payload": plain(_decoded(row.payload)),
        "result": None if row.value is None else plain(_decoded(row.value)),
        "steps": [_step(each) for each in steps],
        "deferreds": tokens,
    }
    asking.answer(value, lambda: f"{asking.where}\n\n{_shown(asking.screen, row, steps, tokens, now)}")


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@acts
@asks
async def interrupt(asking: ClientCommand, run: str, *, yes: bool, dry_run: bool) -> None:
    """Have a run end, and undo what it has done.

    \b
    Example:
      coterie workflows interrupt checkout/order-7 --yes
    """
    row = await _going_on(asking, run)
    done = f"{row.steps} step{'' if row.steps == 1 else 's'} done"
    what = f"{row.name}/{row.id} ({row.status}, {done}) will be interrupted, and undo what it has done"
    if not confirmed(what, "interrupt it?", yes=yes, dry_run=dry_run):
        return
    after = await asking.here.storage.units.interrupt(row.unit)
    await _tell(asking, row, after, "is asked to end", "no command takes that back; start it again under another id")


@command.command()
@click.argument("run", metavar="[NAME/]ID")
@acts
@asks
async def resume(asking: ClientCommand, run: str, *, yes: bool, dry_run: bool) -> None:
    """Have a suspended run look now whether it can go on.

    \b
    Example:
      coterie workflows resume checkout/order-7 --yes
    """
    row = await _going_on(asking, run)
    what = f"{row.name}/{row.id} ({row.status}) will look now whether it can go on"
    if not confirmed(what, "resume it?", yes=yes, dry_run=dry_run):
        return
    after = await asking.here.storage.units.resume(row.unit)
    await _tell(asking, row, after, "looks whether it can go on", "if not, it is suspended again by itself")


@command.command()
@click.argument("token")
@click.argument("value", metavar="JSON")
@acts
@asks
async def resolve(asking: ClientCommand, token: str, value: str, *, yes: bool, dry_run: bool) -> None:
    """Give a deferred its value: whoever waits for it goes on.

    \b
    Example:
      coterie workflows resolve "$TOKEN" '{"approved": true}' --yes
    """
    given = read_json(value, what="the value", hint="""quote it for the shell: '"yes"', '{"approved": true}'""")
    found = asking.here.tokens.read(token)
    unit, name = found.unit, found.name
    what = f'deferred "{name}" of {unit.partition(":")[2]} will have the value {as_json(given)}'
    if not confirmed(what, "resolve it?", yes=yes, dry_run=dry_run):
        return
    await asking.cluster.resolve(token, given)
    shown = safe(unit.partition(":")[2], keep="")
    asking.answer(
        {"unit": unit, "name": name, "resolved": True},
        f'resolved "{name}" of {shown}; the first value stays, no command takes it back\n'
        f"what becomes of it: coterie workflows show {shown}",
    )


def _token(asking: ClientCommand, row: UnitRow, step: StepRow) -> str:
    takes = None if step.value is None else msgspec.msgpack.decode(step.value)  # its type, until it has a value
    return asking.here.tokens.make(row.unit, step.name, life=row.life, takes=takes)


async def _found(asking: ClientCommand, run: str) -> UnitRow:
    name, slash, id_ = run.partition("/")
    row = await asking.here.storage.units.get(unit_of(name, id_)) if slash and id_ else None
    if row is not None:
        return row
    recent = await asking.here.storage.units.list(status=None, name=None, older_s=None, most=_LOOKED_AT)
    same = [each for each in recent if run == each.id]
    if len(same) == 1:
        return same[0]
    if same:
        several = ", ".join(f"{each.name}/{each.id}" for each in same)
        refuse(f"several runs have the id {run}", hint=f"name one: {several}", code=WRONG)
    hint = "write its workflow, too: checkout/order-7; coterie workflows list shows runs"
    return refuse(f"there is no run {run}, or none any more", hint=hint)


async def _going_on(asking: ClientCommand, run: str) -> UnitRow:
    row = await _found(asking, run)
    if row.kind != "workflow":
        refuse(f"{run} is durable work of a {row.kind}, no workflow", hint="it ends with its owner")
    if row.ended_at is not None:
        refuse(f"{row.name}/{row.id} is over: {row.status}", hint=f"coterie workflows show {row.name}/{row.id}")
    return row


async def _tell(asking: ClientCommand, before: UnitRow, after: UnitRow | None, done: str, undo: str) -> None:
    """Print what was done, and wake the holder of the seat."""
    if after is None:
        refuse(f"{before.name}/{before.id} is gone meanwhile")
    await asking.here.wake(after.seat, about=after.unit, fresh=True)
    shown = f"{after.name}/{after.id}"
    shown = safe(shown, keep="")
    text = f"{shown} {done}; {undo}\nwhat becomes of it: coterie workflows show {shown}"
    asking.answer(_fields(after), text)


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


def _step(step: StepRow) -> dict[str, Any]:
    return {
        "branch": step.branch,
        "position": step.position,
        "kind": step.kind,
        "name": step.name,
        "done": step.done,
        "result": None if step.value is None or not step.done else plain(_decoded(step.value)),
        "error": None if step.error is None else failure.text_of(step.error),
        "due_at": plain(step.due_at),
    }


def _waits(step: StepRow) -> bool:
    return step.kind == "deferred" and not step.done


def _decoded(data: bytes) -> Any:
    return PLAIN.decode(data) if data else None


def _table(screen: Screen, runs: Sequence[WorkflowInfo], now: datetime) -> str:
    if not runs:
        return "no runs: cluster.start_workflow(…) starts one"
    rows = [
        (
            f"{each.name}/{each.id}",
            _status(screen, each.status, interrupting=each.interrupting),
            str(each.steps) if each.ended_at is None else "-",
            screen.time(each.started_at, now),
            screen.time(each.changed_at, now),
            one_line(each.error) or ("-" if each.wake_at is None else f"goes on {screen.time(each.wake_at, now)}"),
        )
        for each in runs
    ]
    return screen.table(
        ("RUN", "STATUS", "STEPS", "STARTED", "CHANGED", "REMARK"), rows, right=("STEPS",), spare=("STARTED", "STEPS")
    )


def _status(screen: Screen, status: UnitStatus, *, interrupting: bool) -> str:
    ending = ", asked to end" if interrupting and status in ("running", "suspended") else ""
    return f"{screen.glyph(_GLYPHS[status])} {status}{ending}"


def _shown(screen: Screen, row: UnitRow, steps: Sequence[StepRow], tokens: dict[str, str], now: datetime) -> str:
    pairs = [
        ("shard", row.seat.partition(":")[2]),
        ("version", row.version),
        ("payload", as_json(_decoded(row.payload))),
        ("started", both(row.started_at, now)),
        ("goes on", "" if row.wake_at is None else both(row.wake_at, now)),
        ("ended", "" if row.ended_at is None else both(row.ended_at, now)),
        ("result", "" if row.value is None else as_json(_decoded(row.value))),
        ("error", "" if row.error is None else one_line(failure.text_of(row.error))),
    ]
    head = screen.headed(f"{row.name}/{row.id}", _status(screen, row.status, interrupting=row.interrupting))
    parts = [f"{head}\n{fields(pairs)}"]
    if steps:
        rows = [(each.name or "-", each.kind, _outcome(screen, each, now)) for each in steps]
        table = screen.table(("STEP", "KIND", "RESULT"), rows)
        parts.append("\n".join(f"  {line}" for line in table.splitlines()))
    parts += [f"resolve {name}: coterie workflows resolve {token} JSON" for name, token in tokens.items()]
    return "\n\n".join(parts)


def _outcome(screen: Screen, step: StepRow, now: datetime) -> str:
    if not step.done:
        until = "" if step.due_at is None else f" until {screen.time(step.due_at, now)}"
        return f"waits{until}"
    if step.error is not None:
        return f"{screen.glyph('bad')} {one_line(failure.text_of(step.error))}"
    shown = "" if step.value is None else f" {as_json(_decoded(step.value))}"
    return f"{screen.glyph('good')} done{shown}"
