"""`coterie jobs`: lists jobs of tasks, shows one, runs dead ones again, cancels, deletes.

Qualifiers choose jobs, as in `task:send_email queue:emails state:dead error:Timeout tag:order=7 older:30d`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

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
    refuse,
)
from coterie.cli.commands.call import payload_of
from coterie.cli.commands.messages import parse_qualifiers
from coterie.cli.output import Screen, as_json, echo, lasting, plain, plural, safe
from coterie.cli.progress import ProgressLine
from coterie.errors import InvalidArgument
from coterie.observe.jobs.acts import revive_jobs
from coterie.observe.jobs.filter import (
    ENDED,
    JOB_QUALIFIERS,
    JOB_WORDS,
    JobOptions,
    choose_jobs,
    job_options,
    lasted_s,
    told_job,
    told_job_whole,
    word_of,
)
from coterie.tasks.edit import require_dead, send_edited_job

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from coterie.cli.client import ClientCommand
    from coterie.storage.contracts.jobs import JobRow

EXAMPLE = "task:send_email queue:emails state:dead error:Timeout"
_GLYPHS = {"dead": "bad", "cancelled": "warn", "discarded": "warn", "parked": "warn"}
_COUNTED_MOST = 100_000
"""Counting further would take too long."""
_BATCH = 1_000
"""Jobs that one statement deletes or revives."""
_EDIT_S = 10.0
"""How long to wait for a runner that sends an edited job."""
_RETRY_MOST = 10_000
"""Jobs chosen by more than storage can apply, that one command runs again: run the command again for the rest."""
_filter = click.option(
    "--filter", "text", default="", metavar="FILTER", help=f'As in "{EXAMPLE}", also key, tag, older.'
)


@click.group(cls=Noun)
def command() -> None:
    """Jobs of tasks: those that wait and run, and dead ones.

    \b
    Example:
      coterie jobs list --state dead --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.option("--state", type=click.Choice(JOB_WORDS), help="Only jobs in this state (default: all that are not over).")
@_filter
@click.option("--tag", metavar="NAME=VALUE", help="Only jobs that were sent with this tag; also those that are over.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="ID", help="Only jobs after this one: the last of the previous list.")
@client_command
async def list_some(
    ctx: ClientCommand, *, state: str | None, text: str, tag: str | None, limit: int, after: str | None
) -> None:
    """Jobs, oldest first.

    \b
    Example:
      coterie jobs list --state dead --filter "task:send_email error:Timeout"
    """
    chosen = _parsed(text, state=state, tag=tag)
    found = await choose_jobs(ctx.here.storage.jobs, chosen, limit=limit, after=after)
    names, now = await _names(ctx), await ctx.here.storage.now()
    ctx.show(
        [plain(told_job(row, names, texts=True)) for row in found.rows],
        lambda: _table(ctx.screen, found.rows, names, now),
    )
    if found.more:
        which = f' --filter "{chosen}"' if str(chosen) else ""
        echo(f"more: coterie jobs list{which} --after {found.rows[-1].id}", err=True)


@command.command()
@click.argument("id")
@client_command
async def show(ctx: ClientCommand, id: str) -> None:
    """One job: its arguments, how far it is, and each attempt that failed.

    \b
    Example:
      coterie jobs show ja3f0c5e1d2b4a6987c0d1e2f3a4b5c6d --json
    """
    row = await _found(ctx, id)
    names, now = await _names(ctx), await ctx.here.storage.now()
    told = told_job_whole(row, names, texts=True)
    ctx.answer(told, lambda: _shown(ctx.screen, row, told, now))


@command.command()
@click.argument("ids", nargs=-1)
@click.option("--filter", "text", metavar="FILTER", help=f'Instead of ids, as in "{EXAMPLE}".')
@confirmable
@client_command
async def retry(ctx: ClientCommand, ids: tuple[str, ...], *, text: str | None, yes: bool, dry_run: bool) -> None:
    """Run dead jobs again, now and with all their attempts.

    \b
    Example:
      coterie jobs retry --filter "task:send_email error:Timeout" --yes
    """
    if bool(ids) is bool(text):
        refuse("which jobs?", hint="give ids, or a --filter, not both", code=WRONG)
    chosen = None if text is None else _parsed(text if "state:" in text else f"{text} state:dead")
    if chosen is not None and chosen.state != "dead":
        refuse(f"state is {chosen.state}, and only dead jobs are run again", hint="write state:dead", code=WRONG)
    rows = await _named(ctx, ids) if chosen is None else await _matching(ctx, chosen)
    if not rows:
        ctx.answer({"retried": 0}, "no dead jobs match: nothing to run again")
        return
    counted = plural(len(rows), "dead job")
    if not confirmed(f"{counted} will run again: {_summed(rows)}", "run them again?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("retry-jobs", f"{counted}: {_summed(rows)}") as act:
        revived = await revive_jobs(ctx.here, rows)
        act.result = f"{plural(revived, 'job')} run again"
    rest = "; there may be more: repeat it" if len(rows) == _RETRY_MOST else ""
    ctx.answer({"retried": revived}, f"{act.result}{rest}; to follow them: coterie jobs list")


@command.command()
@click.argument("id")
@click.option("--args", "arguments", required=True, metavar="JSON", help="All its arguments, by name.")
@confirmable
@client_command
async def edit(ctx: ClientCommand, id: str, *, arguments: str, yes: bool, dry_run: bool) -> None:
    """Send a dead job again with other arguments, as a new job. The dead one stays.

    A runner that has the task checks the arguments.

    \b
    Example:
      coterie jobs edit ja3f0c5e1d2b4a6987c0d1e2f3a4b5c6d --args '{"tenant": "acme", "mail": "m-7"}' --yes
    """
    payload, dead = payload_of(arguments), await _found(ctx, id)
    try:
        require_dead(dead)
    except InvalidArgument as error:
        refuse(error.message, hint="coterie jobs list --state dead shows which are")
    what = f"{dead.task} will be sent with these arguments as a new job; job {dead.id} stays dead"
    if not confirmed(what, "send it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("edit-job", f"job {dead.id}") as act:
        sent = await send_edited_job(ctx.here, dead, payload, within_s=_EDIT_S)
        act.result = f"{dead.task} is sent as job {sent}"
    text = f"sent {dead.task} as job {sent}; job {dead.id} stays dead until it is purged"
    ctx.answer({"sent": str(sent), "dead": dead.id}, f"{text}\nto follow it: coterie jobs show {sent}")


@command.command()
@click.argument("id")
@confirmable
@client_command
async def cancel(ctx: ClientCommand, id: str, *, yes: bool, dry_run: bool) -> None:
    """Cancel a job: one that waits never runs, of one that runs nothing commits, and its body is cancelled.

    \b
    Example:
      coterie jobs cancel ja3f0c5e1d2b4a6987c0d1e2f3a4b5c6d --yes
    """
    row = await _found(ctx, id)
    if row.state in ("done", "dead", "cancelled", "discarded"):
        refuse(f"job {row.id} is over: {word_of(row)}", hint=f"coterie jobs show {row.id}")
    what = f"job {row.id} of {row.task} ({word_of(row)}) will be cancelled: nothing of it will commit"
    if not confirmed(what, "cancel it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("cancel-job", f"job {row.id} of {row.task}") as act:
        cancelled = await ctx.here.job_sender.cancel(row.id)
        running = "; what runs of it cannot commit" if row.state == "claimed" else ""
        act.result = f"job {row.id} is cancelled{running}" if cancelled else f"job {row.id} was over before"
    ctx.answer({"id": row.id, "cancelled": cancelled}, f"{act.result}; this cannot be undone")


@command.command("purge")
@click.option("--filter", "text", required=True, metavar="FILTER", help=f'As in "{EXAMPLE}", also key, tag, older.')
@confirmable
@client_command
async def purge_some(ctx: ClientCommand, *, text: str, yes: bool, dry_run: bool) -> None:
    """Delete jobs that are over, in batches.

    Their keys are forgotten with them: a job with such a key that is sent again runs again.

    \b
    Example:
      coterie jobs purge --filter "state:dead task:send_email older:30d" --yes
    """
    chosen = _parsed(text)
    if chosen.state not in ENDED:
        hint = f'add state:dead or state:done, as in "{EXAMPLE}"'
        refuse("only jobs that are over can be purged", hint=hint, code=WRONG)
    if not chosen.is_coarse:
        refuse("purge cannot choose by error or key", hint="choose by task, queue, tag and older", code=WRONG)
    jobs = ctx.here.storage.jobs
    found = await jobs.count(chosen.stored(), most=_COUNTED_MOST)
    if not found:
        ctx.answer({"purged": 0, "filter": str(chosen)}, "no jobs match: nothing to delete")
        return
    counted = f"{plural(found, 'job')}{' or more' if found == _COUNTED_MOST else ''}"
    if not confirmed(f"{counted} would be deleted: {chosen}", "delete them?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("purge-jobs", f"jobs: {chosen}") as act:
        gone, took = await _purge(ctx, chosen, found)
        act.result = f"{plural(gone, 'job')} deleted"
    many = f"{gone:,} {chosen.state} {'job' if gone == 1 else 'jobs'}"
    ctx.answer({"purged": gone, "filter": str(chosen)}, f"purged   {many}   {took}. This cannot be undone")


async def _purge(ctx: ClientCommand, chosen: JobOptions, found: int) -> tuple[int, str]:
    """Delete jobs; returns their number, and how long it took."""
    total = found if found < _COUNTED_MOST else None
    note = f"in batches of {_BATCH:,}"
    with ProgressLine(f"purging {chosen.state} jobs", total=total, about=True, note=note, json=ctx.as_json) as progress:
        try:
            gone, removed = 0, _BATCH
            while removed == _BATCH:
                removed = await ctx.here.storage.jobs.remove(chosen.stored(), most=_BATCH)
                gone += removed
                progress.at(gone)
        except asyncio.CancelledError:
            rest = f'coterie jobs purge --filter "{chosen}"'
            progress.end(f"interrupted: at least {progress.done:,} jobs are deleted; the others: {rest}")
            raise
    return gone, lasting(progress.took_s)


def _parsed(text: str, *, state: str | None = None, tag: str | None = None) -> JobOptions:
    given = parse_qualifiers(text, JOB_QUALIFIERS, example=EXAMPLE, state=state, tag=tag)
    try:
        return job_options(given)
    except InvalidArgument as error:
        refuse(error.message, hint=f"write it as in {EXAMPLE}", code=WRONG)


async def _found(ctx: ClientCommand, id: str) -> JobRow:
    rows = await ctx.here.storage.jobs.look([id])
    if not rows:
        refuse(f"there is no job {id}, or it was deleted", hint="coterie jobs list shows those that are not over")
    return rows[0]


async def _named(ctx: ClientCommand, ids: tuple[str, ...]) -> list[JobRow]:
    """Those of these jobs that are dead; the others are reported."""
    found = [await _found(ctx, each) for each in dict.fromkeys(ids)]
    for each in found:
        if each.state != "dead":
            echo(f"job {each.id} is {word_of(each)}: only dead ones are run again", err=True)
    return [each for each in found if each.state == "dead"]


async def _matching(ctx: ClientCommand, chosen: JobOptions) -> list[JobRow]:
    return list((await choose_jobs(ctx.here.storage.jobs, chosen, limit=_RETRY_MOST)).rows)


async def _names(ctx: ClientCommand) -> dict[str, str]:
    return {row.id: row.name for row in (await ctx.here.storage.view()).runners}


def _summed(rows: Sequence[JobRow]) -> str:
    """`send_email 400, resize 2`."""
    counts = Counter(sorted(each.task for each in rows))
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())


def _table(screen: Screen, rows: Sequence[JobRow], names: Mapping[str, str], now: datetime) -> str:
    if not rows:
        return "no jobs match"
    lines = []
    for row in rows:
        told = told_job(row, names, texts=True)
        state = f"{screen.glyph(_GLYPHS.get(told['state'], 'good'))} {told['state']}"
        lines.append(
            (
                row.id,
                row.task,
                told["queue"],
                state,
                screen.time(row.sent_at, now),
                str(row.failures),
                told["key"] or "-",
                _remark(screen, row, told, now),
            )
        )
    columns = ("JOB", "TASK", "QUEUE", "STATE", "SENT", "FAILED", "KEY", "REMARK")
    return screen.table(columns, lines, right=("FAILED",), spare=("KEY", "FAILED", "SENT", "QUEUE"))


def _remark(screen: Screen, row: JobRow, told: Mapping[str, Any], now: datetime) -> str:
    if row.state == "claimed":
        ending = ", being cancelled" if row.cancelling else ""
        done = f", {_progress(told['progress'])}" if told["progress"] else ""
        return f"on {told['runner']} for {lasting(lasted_s(row, now) or 0.0)}{done}{ending}"
    if row.state == "later":
        again = "again " if row.failures else ""
        return f"{again}due {screen.time(row.due_at, now)}"
    if row.state == "parked":
        return "no runner has its task"
    return one_line(told["error"]) or "-"


def _progress(progress: Mapping[str, Any]) -> str:
    """`rows 5,000 of 12,000`."""
    total = "" if progress["total"] is None else f" of {progress['total']:,g}"
    note = f"{one_line(progress['note'])} " if progress["note"] else ""
    return f"{note}{progress['done']:,g}{total}"


def _shown(screen: Screen, row: JobRow, told: Mapping[str, Any], now: datetime) -> str:
    word = told["state"]
    after = f" after {plural(row.failures, 'failed attempt')}" if row.failures else ""
    where = f", partition {told['partition']}" if told["partition"] else ""
    ran_s = lasted_s(row, now)
    pairs = [
        ("queue", f"{told['queue']}{where}"),
        ("key", told["key"] or ""),
        ("priority", str(row.priority) if row.priority else ""),
        ("arguments", as_json(told["arguments"])),
        ("tags", ", ".join(f"{name}={value}" for name, value in told["tags"].items())),
        ("sent", both(row.sent_at, now)),
        ("due", both(row.due_at, now) if row.state == "later" else ""),
        ("started", "" if row.claimed_at is None else f"{both(row.claimed_at, now)} on {told['runner']}"),
        ("took" if row.ended_at else "for", "" if ran_s is None or row.state == "later" else lasting(ran_s)),
        ("progress", _progress(told["progress"]) if told["progress"] else ""),
        ("ended", "" if row.ended_at is None else both(row.ended_at, now)),
        ("lost runners", str(row.lost) if row.lost else ""),
        ("raised", told["failure"] or ""),
        ("reply", as_json(told["reply"]) if row.state == "done" and not told["failure"] else ""),
        ("trace", told["trace_id"] or ""),
    ]
    ending = ", being cancelled" if row.cancelling and word == "running" else ""
    state = f"{screen.glyph(_GLYPHS.get(word, 'good'))} {word}{after}{ending}"
    parts = [f"{screen.headed(row.task, state)}\n{fields(pairs)}"]
    if row.errors:
        rows = [(str(each.number), screen.time(each.at, now), one_line(each.error)) for each in row.errors]
        attempts = screen.table(("#", "FAILED", "RESULT"), rows, right=("#",))
        parts.append("\n".join(f"  {line}" for line in attempts.splitlines()))
    if word == "dead":
        parts.append(f"retry: coterie jobs retry {safe(row.id, keep='')}")
    elif word not in ENDED:
        parts.append(f"cancel: coterie jobs cancel {safe(row.id, keep='')}")
    return "\n\n".join(parts)
