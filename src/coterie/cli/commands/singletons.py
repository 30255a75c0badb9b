"""`coterie singletons`: lists leaders and saved state, and has a leader resign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import click

from coterie.cli.client import UNANSWERED, acts, asks, both, confirmed, fields, one_line, page, refuse, refusing
from coterie.cli.noun import Noun
from coterie.cli.output import as_json, lasting, plain

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.cli.output import Screen
    from coterie.observe.view import SingletonLine
    from coterie.singletons.api import SavedState

_HINT = "coterie singletons list shows all of them"


@click.group(cls=Noun)
def command() -> None:
    """Who leads what, and what was saved.

    \b
    Example:
      coterie singletons show importer --url postgresql://app@db.internal/app
    """


@command.command("list")
@asks
async def list_all(asking: ClientCommand) -> None:
    """All singletons, and who leads them.

    \b
    Example:
      coterie singletons list --json
    """
    lines, view = await page(asking, "singletons")
    shown = table(asking.screen, lines, view.at) if lines else "no singletons yet: @cluster.singleton(…) defines one"
    asking.answer(lines, f"{asking.where}\n\n{shown}")


@command.command()
@click.argument("name")
@asks
async def show(asking: ClientCommand, name: str) -> None:
    """One singleton: its leader, its signs of life, its state.

    \b
    Example:
      coterie singletons show importer --json
    """
    lines, view = await page(asking, "singletons")
    with refusing(hint=_HINT):
        await asking.cluster.singletons.get(name)
    line = next(each for each in lines if each.name == name)
    state = await asking.cluster.singletons.state(name, cast("type[Any]", Any))
    value = {**plain(line), "state": state}
    asking.answer(value, lambda: _shown(asking, line, state, view.at))


@command.command()
@click.argument("name")
@asks
async def history(asking: ClientCommand, name: str) -> None:
    """The last states that were saved, the newest first.

    \b
    Example:
      coterie singletons history importer --json
    """
    with refusing(hint=_HINT):
        await asking.cluster.singletons.get(name)
    saved = await asking.cluster.singletons.history(name)
    now = await asking.here.storage.now()
    asking.answer(saved, lambda: f"{asking.where}\n\n{_history(asking.screen, saved, now)}")


@command.command()
@click.argument("name")
@acts
@asks
async def resign(asking: ClientCommand, name: str, *, yes: bool, dry_run: bool) -> None:
    """Have the leader give up a singleton now, to another runner if there is one.

    \b
    Example:
      coterie singletons resign importer --yes
    """
    with refusing(hint=_HINT):
        before = await asking.cluster.singletons.get(name)
    holder = "nobody leads it now" if before.leader is None else f"{before.leader}, epoch {before.epoch}, gives it up"
    what = f"{name} will be led anew, by another runner if there is one: {holder}."
    if not confirmed(what, "do it?", yes=yes, dry_run=dry_run):
        return
    try:
        await asking.cluster.singletons.resign(name)
    except TimeoutError:
        hint = f"it was given up all the same: coterie singletons show {name}"
        refuse(f"nobody has taken over {name} within 10s", hint=hint, code=UNANSWERED)
    after = await asking.cluster.singletons.get(name)
    now, was = f"{after.leader}, epoch {after.epoch}", f"{before.leader}, epoch {before.epoch}"
    asking.answer(
        {"name": name, "from": before.leader, "leader": after.leader, "epoch": after.epoch},
        f"{asking.screen.glyph('lead')} {name} leads on {now} (was {was})\nundo: coterie singletons resign {name}",
    )


def table(screen: Screen, lines: Iterable[SingletonLine], now: datetime) -> str:
    """All of them, a line each."""
    rows = [
        (
            each.name,
            each.leader or "nobody",
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


def _shown(asking: ClientCommand, line: SingletonLine, state: Any, now: datetime) -> str:
    expected = "" if line.expected_interval_s is None else f", expected every {lasting(line.expected_interval_s)}"
    pairs = [
        ("leader", f"{line.leader or 'nobody'}, epoch {line.epoch}, group {line.group}"),
        ("since", both(line.since_at, now)),
        ("heartbeat", both(line.alive_at, now)),
        ("progress", both(line.progress_at, now) + expected),
        ("last run", f"{both(line.last_run_at, now)}, {line.runs:,} in all"),
        ("note", progress(line)),
        ("error", "" if line.error is None else f"{one_line(line.error)}, {both(line.error_at, now)}"),
        ("state", "none saved" if state is None else as_json(state)),
    ]
    head = asking.screen.headed(line.name, state_of(asking.screen, line))
    return f"{asking.where}\n\n{head}\n{fields(pairs)}\n\nmove it: coterie singletons resign {line.name}"


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
