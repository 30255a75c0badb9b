"""`coterie runners`: lists the runners and their state, and drains one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from coterie.cli.client import (
    UNANSWERED,
    Noun,
    both,
    client_command,
    confirmable,
    confirmed,
    counted,
    fields,
    page,
    quick,
    refuse,
    sampled,
)
from coterie.cli.output import Screen, lasting, plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.observe.view import RunnerLine

_GLYPHS = {"ready": "good", "starting": "warn", "draining": "warn", "no answer": "bad"}
_COLUMNS = ("RUNNER", "SHARDS", "ENTITIES", "CALLS/S", "P99", "LOOP LAG", "CPU", "MEM", "UP", "VERSION", "")
_RIGHT = ("SHARDS", "ENTITIES", "CALLS/S", "P99", "LOOP LAG", "CPU", "MEM")
_SPARE = ("VERSION", "LOOP LAG", "MEM", "UP", "CPU")
_LOOK_S = 0.1
_SPARE_S = 5.0
"""What a drain may take beyond the setting; after that its seats are taken away."""


@click.group(cls=Noun)
def command() -> None:
    """The runners of the cluster, and how they are doing.

    \b
    Example:
      coterie runners drain web-3 --yes
    """


@command.command("list")
@client_command
async def list_all(ctx: ClientCommand) -> None:
    """All runners: what they hold, their load, their resources.

    \b
    Example:
      coterie runners list --json
    """
    lines, _ = await sampled(ctx, "runners")
    ctx.show(lines, lambda: table(ctx.screen, lines) if lines else "no runners: coterie run app.py starts one")


@command.command()
@click.argument("runner", metavar="ID")
@client_command
async def show(ctx: ClientCommand, runner: str) -> None:
    """One runner, by its id or name.

    \b
    Example:
      coterie runners show web-3 --json
    """
    lines, view = await sampled(ctx, "runners")
    line = _one(lines, runner)
    ctx.answer(line, lambda: _shown(ctx, line, view.at))


@command.command()
@click.argument("runner", metavar="ID")
@confirmable
@client_command
async def drain(ctx: ClientCommand, runner: str, *, yes: bool, dry_run: bool) -> None:
    """Make a runner release all its seats and take no new ones. It keeps running.

    \b
    Example:
      coterie runners drain web-3 --yes
    """
    lines, _ = await page(ctx, "runners")
    line = _one(lines, runner)
    others = sum(each.state == "ready" and each.id != line.id for each in lines)
    to = f"to {plural(others, 'other')}" if others else "with no other runner ready to take over"
    what = f"{line.name} will release {_holdings(line)} {to}, and take nothing until it is started again."
    if not confirmed(what, "drain it?", yes=yes, dry_run=dry_run):
        return
    began_s = asyncio.get_running_loop().time()
    async with ctx.act("drain", f"runner {line.name}") as act:
        await ctx.cluster.runners.drain(line.id)
        act.result = f"{line.name} gives up {_holdings(line)}"
    await _drained(ctx, line)
    took_s = asyncio.get_running_loop().time() - began_s
    ctx.answer(
        {"id": line.id, "name": line.name, "shards": line.shards, "took_s": took_s},
        f"{ctx.screen.glyph('good')} drained {line.name} in {took_s:.1f}s: {_holdings(line)} handed over\n"
        f"undo: start {line.name} again; it takes its share when it joins",
    )


async def _drained(ctx: ClientCommand, line: RunnerLine) -> None:
    """Return when it holds no seats any more."""
    limit_s = ctx.cluster.settings.drain.total_seconds() + _SPARE_S
    storage = ctx.here.storage
    try:
        async with asyncio.timeout(limit_s):
            while True:
                view = await storage.view()
                if not any(seat.holder == line.id for seat in view.seats):
                    return
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        hint = f"the drain continues: coterie runners show {line.name}"
        refuse(f"{line.name} still holds seats after {lasting(limit_s)}", hint=hint, code=UNANSWERED)


def table(screen: Screen, lines: Sequence[RunnerLine]) -> str:
    """All of them, a line each."""
    rows = [(*_cells(each), _remark(screen, each)) for each in lines]
    return screen.table(_COLUMNS, rows, right=_RIGHT, spare=_SPARE)


def _cells(line: RunnerLine) -> tuple[str, ...]:
    return (
        line.name,
        counted(line.shards),
        counted(line.entities),
        counted(line.calls_s),
        quick(line.p99_s).replace(" ", ""),
        quick(line.loop_lag_s).replace(" ", ""),
        "-" if line.cpu is None else f"{line.cpu:.0%}",
        "-" if line.memory_bytes is None else f"{line.memory_bytes / 1e6:.0f}MB",
        "-" if line.up_s is None else lasting(line.up_s),
        line.version or "-",
    )


def _remark(screen: Screen, line: RunnerLine) -> str:
    """The singletons it leads, and its state if it is not simply ready."""
    standing = "" if line.state == "ready" else state_of(screen, line)
    leads = f"{screen.glyph('lead')} {', '.join(line.leads)}" if line.leads else ""
    return "  ".join(part for part in (standing, leads) if part)


def state_of(screen: Screen, line: RunnerLine) -> str:
    """A glyph and a word."""
    return f"{screen.glyph(_GLYPHS[line.state])} {line.state}" + (f": {line.missing}" if line.missing else "")


def _one(lines: Sequence[RunnerLine], wanted: str) -> RunnerLine:
    found = [each for each in lines if wanted in (each.id, each.name)]
    hint = "coterie runners list shows all of them"
    if not found:
        names = ", ".join(each.name for each in lines) or "none at all"
        refuse(f"no runner has the name or id {wanted}; there are: {names}", hint=hint)
    if len(found) > 1:
        refuse(f"several runners are called {wanted}", hint=f"give one of the ids {', '.join(e.id for e in found)}")
    return found[0]


def _holdings(line: RunnerLine) -> str:
    """`34 shards, 1 singleton and 2 crons`."""
    counts = ((line.shards, "shard"), (len(line.leads), "singleton"), (len(line.crons), "cron"))
    parts = [plural(count, word) for count, word in counts if count]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts) or "nothing"


def _threads(line: RunnerLine) -> str:
    """`3 of 32 busy, 2 waiting`."""
    most = "" if line.threads_most is None else f" of {line.threads_most}"
    waiting = f", {line.threads_waiting} waiting" if line.threads_waiting else ""
    return f"{line.threads_busy or 0}{most} busy{waiting}"


def _shown(ctx: ClientCommand, line: RunnerLine, now: datetime) -> str:
    replied = line.up_s is not None
    clock = "" if line.clock_offset_s is None else f", clock {line.clock_offset_s * 1000:+.1f} ms"
    pairs = [
        ("id", line.id),
        ("address", line.address),
        ("groups", ", ".join(line.groups) + ("" if line.weight == 1 else f", weight {line.weight:g}")),
        ("started", both(line.started_at, now)),
        ("version", line.version or ""),
        ("holds", _holdings(line)),
        ("leads", ", ".join(line.leads)),
        ("crons", ", ".join(line.crons)),
        ("entities", f"{counted(line.entities)} resident" if replied else ""),
        ("calls", f"{counted(line.calls_s)}/s, p50 {quick(line.p50_s)}, p99 {quick(line.p99_s)}" if replied else ""),
        ("mailboxes", f"{counted(line.waiting)} waiting, {counted(line.running)} running" if replied else ""),
        ("threads", _threads(line) if replied else ""),
        *(("stuck", f"{each.what}, cancelled {lasting(each.for_s)} ago") for each in line.stubborn),
        ("loop", f"lag {quick(line.loop_lag_s)}" if replied else ""),
        ("database", f"answers in {quick(line.storage_s)}{clock}" if replied else ""),
        ("lease", "" if line.lease_left_s is None else f"{line.lease_left_s:.1f}s left"),
        (
            "machine",
            f"{line.cpu:.0%} of a core, {(line.memory_bytes or 0) / 1e6:.0f}MB" if line.cpu is not None else "",
        ),
    ]
    head = ctx.screen.headed(line.name, state_of(ctx.screen, line))
    return f"{ctx.where}\n\n{head}\n{fields(pairs)}\n\nempty it: coterie runners drain {line.name}"
