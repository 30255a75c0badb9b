"""What one runner should do about seats, by the last view of the tables: which to take, which to hand over.

A seat that is free goes to its target at once; one whose holder was lost without releasing it waits for its takeover
delay first. If the target does not take it (no rights, a bug, a leader that refuses) the next in order does so after
`patience_ns`, the one after that after twice as long [m1]. For a while no shard is moved to a runner that has left one
free: it would come back the same way, and be free in between each time. Seats that this runner resigned or failed on
it does not take for a while (`exclusion`).

A shard moves when another runner has been its target for two renewals: by then all runners have seen the same members,
and it will not be sent back [m2]. A seat moves at once when we leave, or have an outdated definition of it [M8].
Leaders and crons do not move for balance, with one exception: what a runner took by itself in its first seconds is
shared with runners that start together with it, otherwise the first one of a cluster would keep everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.kernel.ids import Seat
from coterie.ownership import assignment
from coterie.ownership.exclusion import Exclusions
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from coterie.ownership.exclusion import Cause, Exclusion

_PATIENCE_NS = 5_000_000_000
_SHUNNED_NS = 600_000_000_000
"""For this long no shard is moved to a runner that has left one free, unless it takes a seat meanwhile."""
_STEADY = 2
"""For how many renewals a move must have been planned [m2]."""
_START_NS = 10_000_000_000
"""How long after its first view a runner shares what it leads with runners that start together with it."""


class Rebalance:
    """The plans of one runner. No I/O.

    Args:
        me: Our incarnation.
        patience_ns: How long a free seat is left to each runner that comes before us.
        delays: Takeover delays of seats that have one.
    """

    def __init__(self, me: str, *, delays: Mapping[str, int], patience_ns: int = _PATIENCE_NS) -> None:
        self._me = me
        self._delays = dict(delays)
        self._patience_ns = patience_ns
        self._view = ClusterSnapshot((), (), "")
        self._runners: dict[str, RunnerRow] = {}
        self._seats: dict[str, SeatRow] = {}
        self._targets: dict[str, str] = {}
        self._free: dict[str, _Free] = {}
        self._moves: dict[str, _Move] = {}
        self._offers: dict[str, int] = {}
        self._exclusions = Exclusions()
        self._resigned: dict[str, int] = {}
        self._start_ns: int | None = None
        self._first: set[str] = set()  # taken by target while we started, not offered by another runner
        self._shunned: dict[str, int] = {}
        self._now_ns = 0

    def delay(self, name: str, delay_ns: int) -> None:
        """Set the takeover delay of a seat that was defined later."""
        self._delays[name] = delay_ns

    def learn(self, view: ClusterSnapshot, *, now_ns: int, renewals: int) -> None:
        """The tables were read. `renewals` is the number of our own renewals so far."""
        self._now_ns = now_ns
        if self._start_ns is None:
            self._start_ns = now_ns
        if view == self._view:
            return
        self._forget_shunned(view)
        self._view = view
        self._runners = {each.id: each for each in view.runners}
        self._seats = {each.name: each for each in view.seats}
        self._targets = assignment.targets(view.runners, view.seats)
        self._free = {each.name: self._free_since(each) for each in view.seats if each.holder is None}
        for name, epoch in self._resigned.items():
            if name in self._free and self._seats[name].epoch > epoch:
                self._exclusions.lift(name, now_ns)
        wanted = self._targets | self._shared()
        self._moves = {
            each.name: self._moving_since(each, wanted[each.name], renewals)
            for each in view.seats
            if self._misplaced(each, wanted)
        }

    def exclude(self, name: str, now_ns: int, *, cause: Cause, error: str = "", epoch: int | None = None) -> Exclusion:
        """Do not take this seat for a while, although it may be ours by target.

        With the epoch at which it was resigned, this ends as soon as another runner has held it and released it too.
        """
        if epoch is not None:
            self._resigned[name] = epoch
        return self._exclusions.add(name, now_ns, cause=cause, error=error)

    def excluded(self, now_ns: int) -> Mapping[str, Exclusion]:
        """The seats that are not taken for a while, with the reasons."""
        return self._exclusions.lasting(now_ns)

    def offered(self, name: str, epoch: int) -> None:
        """A seat was released for us to take: the next `acquire` includes it, if we agree or cannot know yet."""
        self._offers[name] = epoch

    def order(self, name: str) -> list[str]:
        """The runners that may hold a seat, the nearest first."""
        return assignment.order(self._seats[name], self._view.runners) if name in self._seats else []

    def acquire(self, held: Collection[str], now_ns: int) -> list[str]:
        """The seats to take now, in order of name, without those that we hold already."""
        self._now_ns = now_ns
        offers, self._offers = self._offers, {}  # each is good for one attempt: it may be outdated
        wanted = {name for name in self._free if self._is_our_turn(name)} | {
            each for each, epoch in offers.items() if self._agree(each, epoch)
        }
        taken = wanted - self._left_alone(offers) - set(held)
        if self._starts:
            by_target = {name for name in taken - offers.keys() if self._targets.get(name) == self._me}
            self._first |= {name for name in by_target if not Seat.is_shard(name)}
        self._first -= offers.keys()
        return sorted(taken)

    def give(self, held: Collection[str], renewals: int, *, leaving: bool = False) -> list[tuple[str, str | None]]:
        """The seats to hand over now, with their targets; when leaving these are all seats, some without a target."""
        if leaving:
            others = [each for each in self._view.runners if each.id != self._me]
            without_us = assignment.targets(others, self._view.seats)
            return [(name, without_us.get(name)) for name in sorted(held)]
        ripe = {
            name: move for name, move in self._moves.items() if name in held and self._is_ripe(name, move, renewals)
        }
        return [(name, move.target) for name, move in sorted(ripe.items())]

    def missing(self, lives: Callable[[str], bool]) -> str:
        """Which shards that we may hold are free, or held by a runner that may be dead; empty: none."""
        me = self._runners.get(self._me)
        ours = [] if me is None else [each for each in self._view.seats if assignment.is_shard_of(me, each)]
        free = sum(seat.holder is None for seat in ours)
        if free:
            return f"{free} of {len(ours)} shards are not held by any runner yet"
        doubtful = [seat.holder for seat in ours if seat.holder not in (None, self._me) and not lives(seat.holder)]
        names = sorted({self._runners[each].name for each in doubtful if each in self._runners})
        return f"{len(doubtful)} shards are held by {', '.join(names)}, not known yet to be alive" if names else ""

    def readopt(self, definitions: Collection[str]) -> list[str]:
        """Those of our definitions, by seat, that should become current again: no runner has the current one [M8]."""
        return sorted(
            name
            for name in definitions
            if (seat := self._seats.get(name)) is not None
            and not any(each.knows.get(name) == seat.fingerprint for each in self._view.runners)
        )

    def _is_our_turn(self, name: str) -> bool:
        """Whether a free seat is for us to take: as its target, or as the next in order after those that did not."""
        target = self._targets.get(name)
        waited_ns = self._now_ns - self._free[name].since_ns
        if not self._seats[name].clean:
            waited_ns -= self._delays.get(name, 0)
        if target is None or target == self._me or waited_ns < self._patience_ns:
            return target == self._me and waited_ns >= 0
        if Seat.is_shard(name):
            self._shunned[target] = self._now_ns + _SHUNNED_NS
        line = [each for each in self._line(name) if each != target]
        return self._me in line and waited_ns >= self._patience_ns * (line.index(self._me) + 1)

    def _left_alone(self, offers: Collection[str]) -> set[str]:
        return {
            name
            for name in self._exclusions.lasting(self._now_ns)
            if self._exclusions.applies(
                name,
                self._now_ns,
                has_others=bool(set(self.order(name)) - {self._me}),
                is_offered=name in offers,
            )
        }

    def _line(self, name: str) -> list[str]:
        free = self._free[name]
        if free.line is None:  # hashes of all runners: cached between passes
            free.line = self.order(name)
        return free.line

    def _agree(self, name: str, epoch: int) -> bool:
        """Whether to take an offered seat.

        If our view still has a holder, or an earlier epoch, it is older than the offer: no answer. A free seat is
        taken if no runner has held it since the offer, for the offerer may have resigned; or if it is ours by target.
        One that was lost since is not an offer any more: it waits for its takeover delay.
        """
        seat, me = self._seats.get(name), self._runners.get(self._me)
        if seat is None or me is None or not assignment.is_candidate(me, seat):
            return False
        if seat.epoch < epoch or seat.holder not in (None, self._me):
            return True
        return (seat.epoch == epoch or self._targets.get(name) == self._me) and seat.clean

    @property
    def _starts(self) -> bool:
        return self._start_ns is not None and self._now_ns - self._start_ns < _START_NS

    def _shared(self) -> dict[str, str]:
        """The targets of the seats that we took while we started, if they are to be balanced."""
        if not self._starts or not self._first:
            return {}
        balanced = assignment.targets(self._view.runners, self._view.seats, balances=True)
        return {name: balanced[name] for name in self._first if name in balanced}

    def _misplaced(self, seat: SeatRow, wanted: Mapping[str, str]) -> bool:
        ours = seat.holder == self._me and self._me in self._runners
        return ours and wanted.get(seat.name, self._me) != self._me

    def _moving_since(self, seat: SeatRow, target: str, renewals: int) -> _Move:
        before = self._moves.get(seat.name)
        if before is None or (before.target, before.epoch) != (target, seat.epoch):  # another epoch: it was away
            return _Move(target, renewals, seat.epoch)
        return before

    def _is_ripe(self, name: str, move: _Move, renewals: int) -> bool:
        if not assignment.is_candidate(self._runners[self._me], self._seats[name]):
            return True
        return renewals - move.since_renewal >= _STEADY and self._shunned.get(move.target, 0) <= self._now_ns

    def _free_since(self, seat: SeatRow) -> _Free:
        before = self._free.get(seat.name)
        if before is None or before.epoch != seat.epoch:  # another epoch: it had a holder in between
            return _Free(seat.epoch, self._now_ns)
        return _Free(seat.epoch, before.since_ns)

    def _forget_shunned(self, view: ClusterSnapshot) -> None:
        """A runner that takes a seat has recovered; one that is gone does not matter."""
        ids = {each.id for each in view.runners}
        taken = {each.holder for each in view.seats if each.name in self._free}
        self._shunned = {each: until for each, until in self._shunned.items() if each in ids and each not in taken}


@dataclass(slots=True)
class _Free:
    """A seat without a holder: since when we have seen it so, and who may hold it, the nearest first."""

    epoch: int
    since_ns: int
    line: list[str] | None = None


@dataclass(frozen=True, slots=True)
class _Move:
    """The target of a seat of ours, and since which of our renewals it has been the target for this epoch."""

    target: str
    since_renewal: int
    epoch: int
