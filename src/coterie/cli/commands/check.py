"""`coterie check`: history checkers over what a live cluster has stored. They stream rows and do no I/O themselves.

A promise is judged by what is stored: the audit in the order of its numbers, states with their histories, ticks, ended
messages. Replies as callers received them are in no table, so they are not checked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.client import NO, YES, ClientCommand, client_command
from coterie.cli.output import Finding, as_objects, plural, shown
from coterie.cli.progress import ProgressLine
from coterie.kernel.ids import Seat
from coterie.storage import unreadable_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

    from coterie.storage.contracts.inspection import AuditRow, EndedMessage, StateMark
    from coterie.storage.contracts.jobs import RunningJob
    from coterie.storage.contracts.ticks import TickRow
    from coterie.storage.interface import ClusterSnapshot, Storage


_SET_BACK = timedelta(seconds=1)
"""From here on the database's clock was set back: instants before and after cannot be compared."""


@dataclass
class Check:
    """Reads rows, and records which promises they break and how."""

    broken: list[tuple[str, str]] = field(default_factory=list)
    rows: int = 0

    def say(self, promise: str, problem: str) -> None:
        """Record a broken promise."""
        self.broken.append((promise, problem))


@dataclass
class Audit(Check):
    """INV-F1: each epoch of a seat is granted once, to one runner, and each is higher than the one before."""

    kinds: Counter[str] = field(default_factory=Counter)
    is_dated: bool = True
    """Whether its instants can be compared with others."""
    _grants: dict[str, list[tuple[int, datetime, str]]] = field(default_factory=lambda: defaultdict(list))
    _last_at: datetime | None = None

    def see(self, rows: Sequence[AuditRow]) -> None:
        """Check the next rows, in order."""
        self.rows += len(rows)
        for row in rows:
            self.kinds[row.kind] += 1
            if self._last_at is not None and row.at < self._last_at - _SET_BACK:
                self.is_dated = False
            self._last_at = row.at
            if row.kind == "granted" and row.seat is not None and row.epoch is not None:
                self._see_grant(row.seat, row.epoch, row)

    @property
    def seats(self) -> int:
        """The number of seats that were granted."""
        return len(self._grants)

    def overtaken(self, seat: str, epoch: int, at: datetime) -> int | None:
        """The newer epoch that had been granted when something was written with this one, if there was."""
        grants = self._grants.get(seat, [])
        place = bisect_right(grants, epoch, key=lambda grant: grant[0])
        if self.is_dated and place < len(grants) and grants[place][1] < at:
            return grants[place][0]
        return None

    def compare(self, view: ClusterSnapshot) -> None:
        """Compare with the current seats, read after the audit: no seat has changed without a grant."""
        for seat in view.seats:
            grants = self._grants.get(seat.name)
            if not grants:
                continue
            epoch, _, runner = grants[-1]
            if epoch > seat.epoch:
                self.say("INV-F1", f"seat {seat.name}: epoch {epoch} was granted, and it is at {seat.epoch}")
            elif epoch == seat.epoch and seat.holder not in (None, runner):
                says = f"epoch {epoch} was granted to {runner}, and {seat.holder} holds it"
                self.say("INV-F1", f"seat {seat.name}: {says}")

    def _see_grant(self, seat: str, epoch: int, row: AuditRow) -> None:
        grants = self._grants[seat]
        if grants and grants[-1][0] == epoch:
            self.say("INV-F1", f"seat {seat}: epoch {epoch} was granted twice, to {grants[-1][2]} and to {row.runner}")
            return
        if grants and grants[-1][0] > epoch:
            self.say("INV-F1", f"seat {seat}: epoch {epoch} was granted after {grants[-1][0]}")
            return
        grants.append((epoch, row.at, row.runner))


@dataclass
class FenceCheck(Check):
    """INV-F2: nothing is written with an epoch that was never granted, or after a newer one was."""

    audit: Audit = field(default_factory=Audit)
    _highest: dict[str, tuple[int, str]] = field(default_factory=dict)

    def saw(self, what: str, *, seat: str, epoch: int, at: datetime | None) -> None:
        """Check something that was written with the epoch of a seat; `at` is when, if that is known."""
        self.rows += 1
        if epoch > self._highest.get(seat, (0, ""))[0]:
            self._highest[seat] = (epoch, what)
        newer = None if at is None else self.audit.overtaken(seat, epoch, at)
        if newer is not None:
            says = f"was written in the name of {seat} at epoch {epoch}, after epoch {newer} had been granted"
            self.say("INV-F2", f"{what} {says}")

    def compare(self, view: ClusterSnapshot) -> None:
        """Compare with the current seats, read after everything that was written."""
        for seat in view.seats:
            epoch, what = self._highest.get(seat.name, (0, ""))
            if epoch > seat.epoch:
                says = f"was written at epoch {epoch} of {seat.name}, which is at {seat.epoch}"
                self.say("INV-F2", f"{what} {says}")


@dataclass
class HolderCheck(Check):
    """The holder of a seat is a registered runner."""

    def see(self, view: ClusterSnapshot, *, unreadable: Iterable[str] = ()) -> None:
        """Check all runners and seats of one moment; runners whose rows cannot be read count as registered."""
        there = {row.id for row in view.runners} | set(unreadable)
        self.rows += len(view.seats)
        for seat in view.seats:
            if seat.holder is not None and seat.holder not in there:
                self.say("INV-F1", f"seat {seat.name} is held by {seat.holder}, which is no runner")


@dataclass
class JobCheck(Check):
    """T1: a job that runs is claimed for a registered runner; those of lost ones wait to be taken back."""

    lost: int = 0
    """Jobs that wait for that."""

    def see(self, running: Sequence[RunningJob], *views: ClusterSnapshot, unreadable: Iterable[str] = ()) -> None:
        """Check the running jobs, which were read between these views of the cluster."""
        there = {row.id for view in views for row in view.runners} | set(unreadable)
        self.rows += len(running)
        self.lost += sum(job.runner is None for job in running)
        for job in running:
            if job.runner is not None and job.runner not in there:
                self.say("T1", f"job {job.id} of {job.task} runs on {job.runner}, which is no runner")


@dataclass
class StateCheck(Check):
    """INV-F3: the versions of a state follow each other, and no older epoch follows a newer one."""

    fence: FenceCheck = field(default_factory=FenceCheck)

    def see(self, marks: Iterable[StateMark]) -> None:
        """Check all stored versions of some keys, by key and version."""
        before: StateMark | None = None
        for mark in marks:
            self.rows += 1
            if before is not None and before.key == mark.key and mark.epoch < before.epoch:
                says = f"version {mark.version} is of epoch {mark.epoch}, version {before.version} of {before.epoch}"
                self.say("INV-F3", f"state {mark.key}: {says}")
            self.fence.saw(f"state {mark.key}, version {mark.version},", seat=mark.seat, epoch=mark.epoch, at=mark.at)
            before = mark


@dataclass
class TickCheck(Check):
    """INV-C1, C2: no instant of a schedule is decided twice, and an ended tick has one outcome."""

    fence: FenceCheck = field(default_factory=FenceCheck)
    open: int = 0

    def see(self, cron: str, rows: Sequence[TickRow]) -> None:
        """Check all stored ticks of a cron."""
        self.rows += len(rows)
        scheduled = sorted((row for row in rows if row.kind == "scheduled"), key=lambda row: row.at)
        for before, row in pairwise(scheduled):
            if row.at <= before.until:
                what = f"scheduled tick {row.at:%H:%M:%S.%f} of {cron}"
                self.say("INV-C1", f"{what} was decided after {before.until:%H:%M:%S} was")
        for row in rows:
            self.open += row.outcome is None
            what = f"{row.kind} tick {row.at:%Y-%m-%dT%H:%M:%SZ} of {cron}"
            if row.outcome in ("ran", "failed") and not row.attempt:
                self.say("INV-C2", f"{what} {row.outcome} without an attempt")
            self.fence.saw(what, seat=Seat.cron(cron), epoch=row.epoch, at=row.ended_at)


@dataclass
class MessageCheck(Check):
    """INV-D2: a message that is done has its reply."""

    fence: FenceCheck = field(default_factory=FenceCheck)
    dead: int = 0

    def see(self, endings: Iterable[EndedMessage]) -> None:
        """Check the next ended messages."""
        for each in endings:
            self.rows += 1
            self.dead += each.is_dead
            what = f"message {each.id} ({each.entity_type}/{each.entity_id}.{each.method})"
            if not each.is_dead and not each.has_reply:
                self.say("INV-D2", f"{what} is done and has no reply")
            if each.epoch:  # a cancelled message ends without an epoch
                self.fence.saw(f"the end of {what}", seat=each.seat, epoch=each.epoch, at=each.at)


_PAGE = 2_000
_TICKS_MOST = 100_000
"""Of one cron: more than a day of one that ticks each second."""
_NAMED = 3
"""Number of violations of one kind that are named; the others are counted."""
_LINE = 79
OFF = "nothing is recorded: audit is off, so grants and refused writes are not checked"
_ON = "set COTERIE_AUDIT=on for all runners (a row for each grant and each refused write), and start them again"


@click.command()
@client_command
async def command(ctx: ClientCommand) -> int:
    """The history checkers over the audit rows, and over all else that is stored.

    Works while runners run, and while none does; it only reads. Exit 1 if a promise is broken, or a row cannot be read.

    \b
    Example:
      coterie check --url postgresql://app@db.internal/app --json
    """
    history = History()
    with ProgressLine("checking", json=ctx.as_json) as progress:
        await history.read(ctx.here.storage, progress)
    findings, code = history.findings(), NO if history.broken or unreadable_rows.found() else YES
    document = {
        "rows": history.rows,
        "has_audit": bool(history.audit.rows),
        "checks": as_objects(findings),
        "violations": [{"promise": promise, "problem": problem} for promise, problem in history.broken],
    }
    ctx.answer(document, lambda: "\n".join([ctx.where, "", shown(ctx.screen, findings), history.concluded()]))
    return code


class History:
    """Checks everything that is stored."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.fence = FenceCheck(audit=self.audit)
        self.states = StateCheck(fence=self.fence)
        self.ticks = TickCheck(fence=self.fence)
        self.messages = MessageCheck(fence=self.fence)
        self.jobs = JobCheck()
        self.holders = HolderCheck()
        self._crons = 0

    @property
    def rows(self) -> int:
        """The number of rows read."""
        return sum(each.rows for each in (self.audit, self.states, self.ticks, self.messages, self.jobs, self.holders))

    @property
    def broken(self) -> list[tuple[str, str]]:
        """Every broken promise, with the problem."""
        return [each for judge in self._judges() for each in judge.broken]

    async def read(self, storage: Storage, progress: ProgressLine) -> None:
        """Read page by page. The seats are read last, so that no change of a seat is missed."""
        inspection = storage.inspection
        async for audit in _pages(inspection.audit, 0, lambda row: row.id):
            self.audit.see(audit)
            progress.at(self.rows)
        async for marks in _pages(inspection.states, "", lambda row: row.key):
            self.states.see(marks)
            progress.at(self.rows)
        for cron in await storage.ticks.list():
            self._crons += 1
            self.ticks.see(cron.name, await storage.ticks.history(cron.name, most=_TICKS_MOST))
            progress.at(self.rows)
        async for endings in _pages(inspection.endings, "", lambda row: row.id):
            self.messages.see(endings)
            progress.at(self.rows)
        before = await storage.view()
        running = [job for queue in await storage.jobs.queues() for job in await storage.jobs.running(queue.seat)]
        view = await storage.view()
        unreadable = [row.key for row in unreadable_rows.found() if row.table == "runners"]
        self.jobs.see(running, before, view, unreadable=unreadable)
        self.holders.see(view, unreadable=unreadable)
        self.audit.compare(view)
        self.fence.compare(view)

    def findings(self) -> list[Finding]:
        """A line for each promise, several where it is broken."""
        judged = dict(
            zip(("grants", "holders", "fence", "states", "ticks", "messages", "jobs"), self._judges(), strict=True)
        )
        found = [each for what, judge in judged.items() for each in _found(what, judge, self._well(what))]
        found += [Finding("rows", str(row), "bad", "repair or delete it with SQL") for row in unreadable_rows.found()]
        if not self.audit.is_dated:
            says = "the database's clock was set back: when something was written is not compared with grants"
            found.append(Finding("clock", says, "warn"))
        return found

    def concluded(self) -> str:
        """The last line."""
        count, left_out = len(self.broken), len(unreadable_rows.found())
        found = plural(count, "violation") if count else "no promise is broken"
        text = f"{self.rows:,} rows checked, {found}"
        if left_out:
            text += f", {plural(left_out, 'row')} cannot be read"
        return f"{text:<{_LINE}}exit {NO}" if count or left_out else text

    def _judges(self) -> tuple[Check, ...]:
        return self.audit, self.holders, self.fence, self.states, self.ticks, self.messages, self.jobs

    def _well(self, what: str) -> Finding:
        """The finding for a promise that holds."""
        audit, kinds = self.audit, self.audit.kinds
        if what == "grants" and not audit.rows:
            return Finding("audit", OFF, "warn", _ON)
        messages, ticks, jobs = self.messages, self.ticks, self.jobs
        texts = {
            "grants": f"{kinds['granted']:,} of {audit.seats:,} seats, each epoch once, each higher than the last",
            "holders": f"{self.holders.rows:,} seats, each free or held by one runner that takes part",
            "fence": f"{self.fence.rows:,} writes, {self._fenced()}",
            "states": f"{self.states.rows:,} versions, none that follows a newer epoch",
            "ticks": f"{ticks.rows:,} of {plural(self._crons, 'cron')}, none decided twice, {ticks.open:,} not over",
            "messages": f"{messages.rows:,} have ended, {messages.dead:,} of them dead, the others with a reply",
            "jobs": f"{jobs.rows:,} run, each on a runner that takes part; {jobs.lost:,} wait to be taken back",
        }
        return Finding(what, texts[what])

    def _fenced(self) -> str:
        if not self.audit.rows:
            return "none at an epoch that was not reached yet"
        return f"none after a newer epoch was granted; {self.audit.kinds['refused']:,} of former holders were refused"


def _found(what: str, judge: Check, well: Finding) -> list[Finding]:
    """The violations, the first few by name."""
    if not judge.broken:
        return [well]
    named = [Finding(what, problem, "bad") for _, problem in judge.broken[:_NAMED]]
    more = len(judge.broken) - len(named)
    return [*named, *([Finding(what, f"and {more:,} more", "bad")] if more else [])]


async def _pages(
    read: Callable[..., Awaitable[Sequence[Any]]], after: Any, mark: Callable[[Any], Any]
) -> AsyncIterator[Sequence[Any]]:
    """All rows, a page at a time."""
    while rows := await read(after=after, most=_PAGE):
        yield rows
        after = mark(rows[-1])
