"""What `coterie check` makes of rows: the promises that they can break. Streaming, and without any I/O.

A promise is judged by what is stored: the audit in the order of its numbers, states with their histories, ticks,
messages that have ended. What callers were told stands in no table, so nothing is said about that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from coterie.kernel.ids import Seat

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from coterie.storage.contracts.inspection import AuditRow, Ending, StateMark
    from coterie.storage.contracts.ticks import TickRow
    from coterie.storage.interface import ClusterSnapshot

_SET_BACK = timedelta(seconds=1)
"""From here on the database's clock was set back: instants on both sides of that cannot be compared."""


@dataclass
class Judge:
    """Sees rows, and remembers what they break: by promise, in words."""

    broken: list[tuple[str, str]] = field(default_factory=list)
    rows: int = 0

    def say(self, promise: str, problem: str) -> None:
        """A promise is broken."""
        self.broken.append((promise, problem))


@dataclass
class Audit(Judge):
    """INV-F1: each epoch of a seat is granted once, to one runner, and each is higher than the one before."""

    kinds: Counter[str] = field(default_factory=Counter)
    is_dated: bool = True
    """Whether its instants can be compared with others."""
    _grants: dict[str, list[tuple[int, datetime, str]]] = field(default_factory=lambda: defaultdict(list))
    _last_at: datetime | None = None

    def see(self, rows: Sequence[AuditRow]) -> None:
        """The next rows, in order."""
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
        """How many were granted."""
        return len(self._grants)

    def overtaken(self, seat: str, epoch: int, at: datetime) -> int | None:
        """The newer epoch that had been granted when something was written in the name of this one, if there was."""
        grants = self._grants.get(seat, [])
        place = bisect_right(grants, epoch, key=lambda grant: grant[0])
        if self.is_dated and place < len(grants) and grants[place][1] < at:
            return grants[place][0]
        return None

    def compare(self, view: ClusterSnapshot) -> None:
        """The seats as they are now, read after the audit: nobody has moved on without a grant."""
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
class Fence(Judge):
    """INV-F2: nothing is written in the name of an epoch that was never granted, or after a newer one was."""

    audit: Audit = field(default_factory=Audit)
    _highest: dict[str, tuple[int, str]] = field(default_factory=dict)

    def saw(self, what: str, *, seat: str, epoch: int, at: datetime | None) -> None:
        """Something that was written in the name of a seat; when, if that is known."""
        self.rows += 1
        if epoch > self._highest.get(seat, (0, ""))[0]:
            self._highest[seat] = (epoch, what)
        newer = None if at is None else self.audit.overtaken(seat, epoch, at)
        if newer is not None:
            says = f"was written in the name of {seat} at epoch {epoch}, after epoch {newer} had been granted"
            self.say("INV-F2", f"{what} {says}")

    def compare(self, view: ClusterSnapshot) -> None:
        """The seats as they are now, read after all that was written."""
        for seat in view.seats:
            epoch, what = self._highest.get(seat.name, (0, ""))
            if epoch > seat.epoch:
                says = f"was written at epoch {epoch} of {seat.name}, which is at {seat.epoch}"
                self.say("INV-F2", f"{what} {says}")


@dataclass
class Holders(Judge):
    """Whoever holds a seat takes part."""

    def see(self, view: ClusterSnapshot, *, unreadable: Iterable[str] = ()) -> None:
        """All runners and seats, of one moment; the runners whose rows cannot be read take part too."""
        there = {row.id for row in view.runners} | set(unreadable)
        self.rows += len(view.seats)
        for seat in view.seats:
            if seat.holder is not None and seat.holder not in there:
                self.say("INV-F1", f"seat {seat.name} is held by {seat.holder}, which is no runner")


@dataclass
class States(Judge):
    """INV-F3: the versions of a state follow each other, and no older epoch follows a newer one."""

    fence: Fence = field(default_factory=Fence)

    def see(self, marks: Iterable[StateMark]) -> None:
        """All that is kept of some keys, by key and version."""
        before: StateMark | None = None
        for mark in marks:
            self.rows += 1
            if before is not None and before.key == mark.key and mark.epoch < before.epoch:
                says = f"version {mark.version} is of epoch {mark.epoch}, version {before.version} of {before.epoch}"
                self.say("INV-F3", f"state {mark.key}: {says}")
            self.fence.saw(f"state {mark.key}, version {mark.version},", seat=mark.seat, epoch=mark.epoch, at=mark.at)
            before = mark


@dataclass
class Ticks(Judge):
    """INV-C1, C2: no instant of a schedule is decided twice, and what is over has one outcome."""

    fence: Fence = field(default_factory=Fence)
    open: int = 0

    def see(self, cron: str, rows: Sequence[TickRow]) -> None:
        """All that is kept of a cron."""
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
class Messages(Judge):
    """INV-D2: a message that is done has its reply."""

    fence: Fence = field(default_factory=Fence)
    dead: int = 0

    def see(self, endings: Iterable[Ending]) -> None:
        """The next ones that have ended."""
        for each in endings:
            self.rows += 1
            self.dead += each.is_dead
            what = f"message {each.id} ({each.entity_type}/{each.entity_id}.{each.method})"
            if not each.is_dead and not each.has_reply:
                self.say("INV-D2", f"{what} is done and has no reply")
            if each.epoch:  # a cancelled message ends in the name of no epoch
                self.fence.saw(f"the end of {what}", seat=each.seat, epoch=each.epoch, at=each.at)
