"""`coterie check`: the history checkers over what a live cluster has stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coterie.cli.asking import NO, YES, asks
from coterie.cli.findings import Finding, as_objects, shown
from coterie.cli.judging import Audit, Fence, Holders, Messages, States, Ticks
from coterie.cli.progress import Progress
from coterie.storage import unreadable_rows

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from coterie.cli.asking import Asking
    from coterie.cli.judging import Judge
    from coterie.storage.interface import Storage

_PAGE = 2_000
_TICKS_MOST = 100_000
"""Of one cron: more than a day of one that ticks each second."""
_NAMED = 3
"""So many that are broken in one way are named; the others are counted."""
_LINE = 79
OFF = "nothing is recorded: audit is off, so grants and refused writes are not checked"
_ON = "set COTERIE_AUDIT=on for all runners (a row for each grant and each refused write), and start them again"


@click.command()
@asks
async def command(asking: Asking) -> int:
    """The history checkers over the audit rows, and over all else that is stored.

    Works while runners run, and while none does; it only reads. Exit 1 if a promise is broken, or a row cannot be read.

    \b
    Example:
      coterie check --url postgresql://app@db.internal/app --json
    """
    history = History()
    with Progress("checking", json=asking.as_json) as progress:
        await history.read(asking.here.storage, progress)
    findings, code = history.findings(), NO if history.broken or unreadable_rows.found() else YES
    document = {
        "rows": history.rows,
        "has_audit": bool(history.audit.rows),
        "checks": as_objects(findings),
        "violations": [{"promise": promise, "problem": problem} for promise, problem in history.broken],
    }
    asking.answer(document, lambda: "\n".join([asking.where, "", shown(asking.screen, findings), history.concluded()]))
    return code


class History:
    """All that is stored, judged."""

    def __init__(self) -> None:
        self.audit = Audit()
        self.fence = Fence(audit=self.audit)
        self.states = States(fence=self.fence)
        self.ticks = Ticks(fence=self.fence)
        self.messages = Messages(fence=self.fence)
        self.holders = Holders()
        self._crons = 0

    @property
    def rows(self) -> int:
        """How many rows were looked at."""
        return sum(each.rows for each in (self.audit, self.states, self.ticks, self.messages, self.holders))

    @property
    def broken(self) -> list[tuple[str, str]]:
        """Every promise that is broken, with the problem."""
        return [each for judge in self._judges() for each in judge.broken]

    async def read(self, storage: Storage, progress: Progress) -> None:
        """Read it page by page. The seats come last, so that none can have moved on without being seen."""
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
        view = await storage.view()
        self.holders.see(view, unreadable=[row.key for row in unreadable_rows.found() if row.table == "runners"])
        self.audit.compare(view)
        self.fence.compare(view)

    def findings(self) -> list[Finding]:
        """A line for each promise, several where it is broken."""
        said = dict(zip(("grants", "holders", "fence", "states", "ticks", "messages"), self._judges(), strict=True))
        found = [each for what, judge in said.items() for each in _found(what, judge, self._well(what))]
        found += [Finding("rows", str(row), "bad", "mend or delete it with SQL") for row in unreadable_rows.found()]
        if not self.audit.is_dated:
            says = "the database's clock was set back: when something was written is not compared with grants"
            found.append(Finding("clock", says, "warn"))
        return found

    def concluded(self) -> str:
        """The last line."""
        count, left_out = len(self.broken), len(unreadable_rows.found())
        found = f"{count:,} {'violation' if count == 1 else 'violations'}" if count else "no promise is broken"
        text = f"{self.rows:,} rows checked, {found}"
        if left_out:
            text += f", {left_out:,} {'row' if left_out == 1 else 'rows'} cannot be read"
        return f"{text:<{_LINE}}exit {NO}" if count or left_out else text

    def _judges(self) -> tuple[Judge, ...]:
        return self.audit, self.holders, self.fence, self.states, self.ticks, self.messages

    def _well(self, what: str) -> Finding:
        """What is said where nothing is wrong."""
        audit, kinds = self.audit, self.audit.kinds
        if what == "grants" and not audit.rows:
            return Finding("audit", OFF, "warn", _ON)
        messages, ticks = self.messages, self.ticks
        told = {
            "grants": f"{kinds['granted']:,} of {audit.seats:,} seats, each epoch once, each higher than the last",
            "holders": f"{self.holders.rows:,} seats, each free or held by one runner that takes part",
            "fence": f"{self.fence.rows:,} writes, {self._fenced()}",
            "states": f"{self.states.rows:,} versions, none that follows a newer epoch",
            "ticks": f"{ticks.rows:,} of {self._crons:,} crons, none decided twice, {ticks.open:,} not over",
            "messages": f"{messages.rows:,} have ended, {messages.dead:,} of them dead, the others with a reply",
        }
        return Finding(what, told[what])

    def _fenced(self) -> str:
        if not self.audit.rows:
            return "none at an epoch that was not reached yet"
        return f"none after a newer epoch was granted; {self.audit.kinds['refused']:,} of former holders were refused"


def _found(what: str, judge: Judge, well: Finding) -> list[Finding]:
    """What is broken, the first ones by name."""
    if not judge.broken:
        return [well]
    named = [Finding(what, problem, "bad") for _, problem in judge.broken[:_NAMED]]
    more = len(judge.broken) - len(named)
    return [*named, *([Finding(what, f"and {more:,} more", "bad")] if more else [])]


async def _pages(
    read: Callable[..., Awaitable[Sequence[Any]]], after: Any, mark: Callable[[Any], Any]
) -> AsyncIterator[Sequence[Any]]:
    """All rows, some at a time."""
    while rows := await read(after=after, most=_PAGE):
        yield rows
        after = mark(rows[-1])
