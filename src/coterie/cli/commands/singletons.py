"""`coterie singletons`: lists leaders and saved state, and has a leader resign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from coterie.cli.client import (
    UNANSWERED,
    Noun,
    both,
    client_command,
    confirmable,
    confirmed,
    fields,
    list_page,
    one_line,
    page,
    refuse,
    refusing,
)
from coterie.cli.output import Screen, as_json, lasting, plain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.observe.view import SingletonLine
    from coterie.singletons.api import SavedState

_HINT = "coterie singletons list shows all of them"


@click.group(cls=Noun)
def command() -> None:
    """Leaders of singletons, and the states they saved.

    \b
    Example:
      coterie singletons show importer --url postgresql://app@db.internal/app
    """


@command.command("list")
@client_command
async def list_all(ctx: ClientCommand) -> None:
    """All singletons and their leaders.

    \b
    Example:
      coterie singletons list --json
    """
    await list_page(ctx, "singletons", table, empty="no singletons yet: @cluster.singleton(…) defines one")


@command.command()
@click.argument("name")
@client_command
async def show(ctx: ClientCommand, name: str) -> None:
    """One singleton: its leader, its heartbeats, its state.

    \b
    Example:
      coterie singletons show importer --json
    """
    lines, view = await page(ctx, "singletons")
    with refusing(hint=_HINT):
        await ctx.cluster.singletons.get(name)
    line = next(each for each in lines if each.name == name)
    state = await ctx.cluster.singletons.state(name, cast("type[Any]", Any))
    value = {**plain(line), "state": state}
    ctx.answer(value, lambda: _shown(ctx, line, state, view.at))


@command.command()
@click.argument("name")
@client_command
async def history(ctx: ClientCommand, name: str) -> None:
    """The last saved states, newest first.

    \b
    Example:
      coterie singletons history importer --json
    """
    with refusing(hint=_HINT):
        await ctx.cluster.singletons.get(name)
    saved = await ctx.cluster.singletons.history(name)
    now = await ctx.here.storage.now()
    ctx.show(saved, lambda: _history(ctx.screen, saved, now))


@command.command()
@click.argument("name")
@confirmable
@client_command
async def resign(ctx: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Make the leader of a singleton resign now; another runner leads if there is one.

    \b
    Example:
      coterie singletons resign importer --yes
    """
    with refusing(hint=_HINT):
        before = await ctx.cluster.singletons.get(name)
    holder = (
        "it has no leader now" if before.leader is None else f"{before.leader}, epoch {before.epoch}, will give it up"
    )
    what = f"{name} will get a new leader, another runner if there is one: {holder}."
    if not confirmed(what, "do it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("resign", f"singleton {name}") as act:
        act.result = f"{before.leader} has given it up"
        try:
            await ctx.cluster.singletons.resign(name)
        except TimeoutError:
            hint = f"the leader has given it up all the same: coterie singletons show {name}"
            refuse(f"no runner has taken over {name} within 10s", hint=hint, code=UNANSWERED)
        after = await ctx.cluster.singletons.get(name)
        act.result = f"{name} leads on {after.leader}, epoch {after.epoch}"
    now, was = f"{after.leader}, epoch {after.epoch}", f"{before.leader}, epoch {before.epoch}"
    ctx.answer(
        {"name": name, "from": before.leader, "leader": after.leader, "epoch": after.epoch},
        f"{ctx.screen.glyph('lead')} {name} leads on {now} (was {was})\nundo: coterie singletons resign {name}",
    )


def table(screen: Screen, lines: Iterable[SingletonLine], now: datetime) -> str:
    """All of them, a line each."""
    rows = [
        (
            each.name,
            each.leader or "none",
            str(each.epoch),
            screen.time(each.since_at, now),
            screen.time(each.alive_at, now),
            screen.time(each.last_run_at, now),
            state_of(screen, each),
        )
        for each in lines
    ]
    columns = ("SINGLETON", "LEADER", "EPOCH", "SINCE", "HEARTBEAT", "LAST RUN", "STATE")
    return screen.table(columns, rows, right=("EPOCH", "HEARTBEAT", "LAST RUN"), spare=("EPOCH", "SINCE", "LAST RUN"))


def state_of(screen: Screen, line: SingletonLine) -> str:
    """Its state: a glyph and a word, and the progress that its body reports."""
    if line.problem:
        return f"{screen.glyph('bad')} {line.problem}"
    if line.error_at is not None and (line.progress_at is None or line.error_at >= line.progress_at):
        return f"{screen.glyph('warn')} {one_line(line.error)}"
    note = progress(line)
    return f"{screen.glyph('good')} running" + (f": {note}" if note else "")


def progress(line: SingletonLine) -> str:
    """`rows 5,000 of 12,000`."""
    done = "" if line.done is None else f"{line.done:,}" + ("" if line.total is None else f" of {line.total:,}")
    return " ".join(part for part in (one_line(line.note), done) if part)


def _shown(ctx: ClientCommand, line: SingletonLine, state: Any, now: datetime) -> str:
    expected = "" if line.expected_interval_s is None else f", expected every {lasting(line.expected_interval_s)}"
    pairs = [
        ("leader", f"{line.leader or 'none'}, epoch {line.epoch}, group {line.group}"),
        ("since", both(line.since_at, now)),
        ("heartbeat", both(line.alive_at, now)),
        ("progress", both(line.progress_at, now) + expected),
        ("last run", f"{both(line.last_run_at, now)}, {line.runs:,} in all"),
        ("note", progress(line)),
        ("error", "" if line.error is None else f"{one_line(line.error)}, {both(line.error_at, now)}"),
        ("state", "none saved" if state is None else as_json(state)),
    ]
    head = ctx.screen.headed(line.name, state_of(ctx.screen, line))
    return f"{ctx.where}\n\n{head}\n{fields(pairs)}\n\nmove it: coterie singletons resign {line.name}"


def _history(screen: Screen, saved: Iterable[SavedState], now: datetime) -> str:
    rows = [
        (
            str(each.number),
            screen.time(each.saved_at, now),
            each.runner,
            str(each.epoch),
            f"v{each.version}",
            one_line(each.set_aside) or "-",
            as_json(each.value),
        )
        for each in saved
    ]
    if not rows:
        return "no states are kept"
    columns = ("NUMBER", "SAVED", "RUNNER", "EPOCH", "VERSION", "SET ASIDE", "STATE")
    return screen.table(columns, rows, right=("NUMBER", "EPOCH"))
