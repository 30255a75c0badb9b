"""The seats that this runner holds, at which epochs, and how long it may trust its lease.

                 grant                     move, leave: drain ─▶ release ─▶ offer
    (not ours) ───────────▶ held ─────────────────────────────────────────────────▶ (not ours)
                             │                                                          ▲
                             ├── trust has expired: abandon ─▶ owed ─▶ release ─────────┤
                             └── the table says otherwise: abandon ─────────────────────┘

A seat is *owed* if its row has, or may have, our name although nothing of ours may run on it: trust has expired, the
database has failed over, its occupant could not start, a release failed, or the answer to an acquire was lost. Owed
seats are released before this runner acquires anything. If it acquires one again, that is at another epoch.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from coterie.errors import LeadershipLost, PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.ids import Seat
from coterie.ownership.lease_thread import retry_until_done
from coterie.storage.interface import Claim, checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from coterie.kernel.clock import Clock
    from coterie.ownership.lease_thread import LeaseKeeper
    from coterie.storage.interface import Grant, Ownership


class Trust:
    """How long this runner may act on what it holds. Written by the lease keeper, read before each dispatch,
    commit and reply; a whole number either way, so that no thread needs a lock.

    Promise:
        It ends at the moment before the last successful renewal was sent + TTL - margin, on a clock that counts
        suspension, whatever has happened since; nothing but a successful renewal prolongs it [INV-F4].
    """

    def __init__(self, clock: Clock) -> None:
        self.steady_ns = clock.steady_ns
        self.until_ns = 0
        self.ended = False
        self.connected = False
        """Whether the dedicated session exists and has its lock, where there are locks: without it nothing new is
        started [M2]."""

    @property
    def holds(self) -> bool:
        """Whether held seats may be acted upon now."""
        return self.steady_ns() < self.until_ns and not self.ended

    @property
    def left_s(self) -> float:
        """Seconds until it ends; negative afterwards."""
        return (self.until_ns - self.steady_ns()) / 1e9

    def extend(self, until_ns: int) -> None:
        """A renewal has succeeded. Trust is only ever shortened by `end`."""
        self.until_ns = max(self.until_ns, until_ns)

    def end(self) -> None:
        """Evicted, or about to be: final. A later life has its own trust."""
        self.ended = True


class Tenure:
    """This runner's tenure of a seat at an epoch; every handle that writes is bound to one.

    Args:
        claim: What the fence checks.
        clean: Whether the previous holder released the seat; otherwise its last work may have been cut short [C5].
        trust: The runner's trust.
        address: The address at which others reach the runner.
    """

    __slots__ = ("_trust", "address", "claim", "clean", "ended")

    def __init__(self, claim: Claim, *, clean: bool, trust: Trust, address: str | None = None) -> None:
        self.claim = claim
        self.address = address
        self.clean = clean
        self.ended = False
        """Whether the seat was released, or found to be held by another runner."""
        self._trust = trust

    @property
    def seat(self) -> str:
        """The seat's name."""
        return self.claim.seat

    @property
    def epoch(self) -> int:
        """The fencing token."""
        return self.claim.epoch

    @property
    def held(self) -> bool:
        """Whether work under it may continue. The proof is the fence; this check only stops work earlier."""
        return self.held_at() is not None

    @property
    def may_start(self) -> bool:
        """Whether new work may start under it."""
        return self.may_start_at() is not None

    def require_held(self) -> None:
        """Raise `LeadershipLost` unless it is held."""
        if not self.held:
            raise self.lost()

    def lost(self, *, in_doubt: bool = False) -> LeadershipLost:
        """The error for work that lost its seat; `in_doubt` if a write of unknown outcome was in flight."""
        return LeadershipLost(seat=self.claim.seat, epoch=self.claim.epoch, in_doubt=in_doubt)

    def held_at(self, now_ns: int = 0) -> int | None:
        """The time on the steady clock if it is held, else None: both with one reading of the clock.

        Args:
            now_ns: The time on the steady clock, if it was read a moment ago.
        """
        trust = self._trust
        now_ns = now_ns or trust.steady_ns()
        return None if self.ended or trust.ended or now_ns >= trust.until_ns else now_ns

    def may_start_at(self, now_ns: int = 0) -> int | None:
        """As `held_at`, for new work."""
        return self.held_at(now_ns) if self._trust.connected else None


class Occupant(Protocol):
    """What runs on a seat of this runner: a shard's entities, a leader, a cron."""

    async def drain(self) -> None:
        """Start nothing new, let running work end, stop what exceeds the limit; afterwards nothing of it writes."""
        ...

    def abandon(self) -> None:
        """The seat is lost: stop everything now. Further writes would be refused."""
        ...


class Occupy(Protocol):
    """Makes the occupant of a seat that was just acquired; called on the runner's loop, must not block."""

    def __call__(self, tenure: Tenure, /) -> Occupant: ...


log = logging.getLogger("coterie.ownership")

_RELEASES_MOST = 50
_RELEASING_S = 0.2
"""Seats released in one turn on the dedicated session, and about how long that may take. The session serves in order:
behind thousands of releases a renewal came too late, and the lease was lost while the runner left."""


class HeldSeat:
    """One held seat, with its occupant."""

    def __init__(self, tenure: Tenure, occupant: Occupant) -> None:
        self.tenure = tenure
        self.occupant = occupant
        self.moving: asyncio.Task[None] | None = None
        """The task that drains and releases it; while there is one, nothing else touches the seat."""

    def abandon(self) -> None:
        """The seat is lost: stop its work now."""
        self.tenure.ended = True
        self.occupant.abandon()


class HeldSeats:
    """The seats that this runner believes to hold. All methods must be called on its loop.

    Args:
        me: The incarnation.
        address: The address at which others reach it, once it listens.
        occupy: Makes the occupant of a seat.
        released: Called when a seat was released, with its target.
    """

    def __init__(
        self,
        me: str,
        *,
        address: Callable[[], str | None],
        lease_keeper: LeaseKeeper,
        trust: Trust,
        occupy: Occupy,
        released: Callable[[str, int, str | None], None],
        refused: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._me = me
        self._address = address
        self._lease_keeper = lease_keeper
        self._trust = trust
        self._occupy = occupy
        self._released = released
        self._refused = refused
        self._held: dict[str, HeldSeat] = {}
        self._owed: dict[str, int] = {}
        self._unreleased: dict[str, int] = {}  # those that wait for their turn on the session
        self._releasing = asyncio.Lock()
        self._gone: dict[str, int] = {}  # released since a view was requested, which may still show them

    def __contains__(self, seat: str) -> bool:
        return seat in self._held

    def __len__(self) -> int:
        return len(self._held)

    @property
    def staying(self) -> dict[str, int]:
        """The seats, with their epochs, that are neither being released nor owed."""
        return {name: holding.tenure.epoch for name, holding in self._held.items() if holding.moving is None}

    @property
    def checksum(self) -> str:
        """The checksum of all seats that the table should show in our name."""
        return checksum({name: holding.tenure.epoch for name, holding in self._held.items()} | self._owed)

    def tenure(self, seat: str) -> Tenure | None:
        """Our tenure of a seat."""
        holding = self._held.get(seat)
        return None if holding is None else holding.tenure

    def granted(self, grants: Iterable[Grant]) -> list[tuple[str, int]]:
        """Occupy seats that were just acquired, if our lease is still trusted [m3]. Returns: the seats occupied."""
        taken = []
        for grant in grants:
            if not self._trust.holds:
                self._owed[grant.name] = grant.epoch
                continue
            tenure = Tenure(
                Claim(self._me, grant.name, grant.epoch), clean=grant.clean, trust=self._trust, address=self._address()
            )
            try:
                occupant = self._occupy(tenure)
            except Exception:  # the other seats are ours all the same
                log.exception("seat %s could not be occupied and is released", grant.name)
                tenure.ended = True
                self._owed[grant.name] = grant.epoch
                self._refused(grant.name)
                continue
            self._held[grant.name] = HeldSeat(tenure, occupant)
            taken.append((grant.name, grant.epoch))
            kind, _ = Seat.split(grant.name)
            metrics.SEATS_ACQUIRED.of(kind).value += 1
            metrics.TAKEOVERS.of(kind).value += not grant.clean
        return taken

    def expect_view(self) -> None:
        """A view is about to be read: it shows what was released before. If not, the database has lost it [M13]."""
        self._gone.clear()

    def compare(self, table: Mapping[str, int]) -> None:
        """Drop what the table does not show in our name, and owe what it shows and we do not know of [M13].

        The latter is an acquire whose answer was lost. Nothing was done under its epoch, but occupying it here would
        be a second way to start; releasing it costs one statement.
        """
        for name, holding in list(self._held.items()):
            if holding.moving is None and table.get(name) != holding.tenure.epoch:
                log.warning(
                    "this runner no longer holds seat %s at epoch %d; its work there is stopped",
                    name,
                    holding.tenure.epoch,
                )
                _abandon(name, holding)
                del self._held[name]
        for name, epoch in table.items():
            if name not in self._held and self._gone.get(name) != epoch:
                self._owed[name] = epoch
        for name, epoch in list(self._owed.items()):
            if table.get(name) != epoch:
                del self._owed[name]

    def give_up(self, reason: str) -> None:
        """Stop everything now: our lease is no longer trusted. All seats are owed."""
        if self._held:
            log.warning("the work on %d seats is stopped: %s", len(self._held), reason)
        for name, holding in self._held.items():
            _abandon(name, holding)
            if holding.moving is not None:
                holding.moving.cancel()
            self._owed[name] = holding.tenure.epoch
        self._held.clear()

    async def repay(self) -> None:
        """Release owed seats. Nothing is acquired before (LOCK-09).

        Raises:
            PersistenceError: Some of them could not be released yet.
        """
        for name, epoch in sorted(self._owed.items()):
            await self._release(name, epoch)
            self._owed.pop(name, None)

    async def move(self, seat: str, target: str | None) -> None:
        """Drain a seat, release it, and notify its target. Runs in its own task."""
        holding = self._held.get(seat)
        if holding is None:  # it was given up before this task began
            return
        assert holding.moving is None, f"{seat} is moving already"
        holding.moving = asyncio.current_task()
        try:
            await holding.occupant.drain()
        except Exception:
            log.exception("seat %s could not be drained; its remaining work is cut off", seat)
            _abandon(seat, holding)
        if chaos.on:
            await chaos.point("ownership.before_release")
        holding.tenure.ended = True
        try:
            await retry_until_done(lambda: self._release(seat, holding.tenure.epoch), what=f"the release of {seat}")
        except Exception:  # it was not given up meanwhile: that would have cancelled this
            del self._held[seat]
            self._owed[seat] = holding.tenure.epoch  # the next pass releases it
            raise
        del self._held[seat]
        self._released(seat, holding.tenure.epoch, target)

    async def _release(self, seat: str, epoch: int) -> None:
        """Release a seat, in one turn with others that wait for the same.

        Raises:
            PersistenceError: It could not be released. Other seats of that turn get the error in their own turns.
        """
        self._unreleased[seat] = epoch
        try:
            async with self._releasing:
                if seat in self._unreleased:  # otherwise it was released in another's turn
                    await self._release_turn(seat, epoch)
        finally:
            self._unreleased.pop(seat, None)

    async def _release_turn(self, seat: str, epoch: int) -> None:
        turn = {seat: epoch} | dict(islice(self._unreleased.items(), _RELEASES_MOST))
        outcomes = await self._lease_keeper.ask(lambda session: _release_each(session, turn))
        for each, problem in outcomes.items():
            if problem is None:
                self._unreleased.pop(each, None)
                self._gone[each] = turn[each]
        if (problem := outcomes[seat]) is not None:
            raise problem


async def _release_each(session: Ownership, seats: Mapping[str, int]) -> dict[str, PersistenceError | None]:
    """Release seats one by one, each in its own transaction [C1], for a limited time. Returns: the results.

    Raises:
        PersistenceError: The session is lost.
    """
    now_s = asyncio.get_running_loop().time
    until_s = now_s() + _RELEASING_S
    outcomes: dict[str, PersistenceError | None] = {}
    for seat, epoch in seats.items():
        if outcomes and now_s() >= until_s:
            break
        try:
            await session.release(seat, epoch)
            outcomes[seat] = None
        except PersistenceError as error:
            if error.outcome != "refused":
                raise
            outcomes[seat] = error
    return outcomes


def _abandon(seat: str, holding: HeldSeat) -> None:
    """Stop the occupant of a seat; its errors must not keep others from being stopped."""
    try:
        holding.abandon()
    except Exception:
        log.exception("the work on seat %s could not be stopped; its writes are refused", seat)
