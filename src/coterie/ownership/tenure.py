"""What a runner believes: how long it may trust its lease, and which seats it holds at which epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from coterie.kernel.clock import Clock
    from coterie.storage.interface import Claim


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
        """Whether the dedicated session is there with its lock, where there are locks: without it nothing new is
        started [M2]."""

    @property
    def holds(self) -> bool:
        """Whether what is held may be acted upon now."""
        return self.steady_ns() < self.until_ns and not self.ended

    @property
    def left_s(self) -> float:
        """Seconds until it ends; negative afterwards."""
        return (self.until_ns - self.steady_ns()) / 1e9

    def extend(self, until_ns: int) -> None:
        """A renewal has succeeded. Trust is never shortened but by `end`."""
        self.until_ns = max(self.until_ns, until_ns)

    def end(self) -> None:
        """Evicted, or about to be: for good. A later life has a trust of its own."""
        self.ended = True


class Tenure:
    """This runner's holding of a seat at an epoch; every handle that writes is bound to one.

    Args:
        claim: What the fence will ask for.
        clean: Whether the holder before gave the seat back; otherwise its last work may have been cut short [C5].
        trust: The runner's.
        address: Where others reach it.
    """

    __slots__ = ("_trust", "address", "claim", "clean", "ended")

    def __init__(self, claim: Claim, *, clean: bool, trust: Trust, address: str | None = None) -> None:
        self.claim = claim
        self.address = address
        self.clean = clean
        self.ended = False
        """Whether the seat was given up, or found to be somebody else's."""
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
        """Whether work in its name may go on. The proof is the fence; this is the courtesy before it."""
        trust = self._trust  # `Trust.holds` written out, here and below: each call asks twice
        return not self.ended and trust.steady_ns() < trust.until_ns and not trust.ended

    @property
    def may_start(self) -> bool:
        """Whether new work may begin in its name."""
        trust = self._trust
        return not self.ended and trust.connected and trust.steady_ns() < trust.until_ns and not trust.ended

    def held_at(self) -> int | None:
        """The time on the steady clock, if it is held; None if not. For those who want to know both, at one reading."""
        trust = self._trust
        steady_ns = trust.steady_ns  # no method of it, and so quicker in two steps
        now_ns = steady_ns()
        return None if self.ended or now_ns >= trust.until_ns or trust.ended else now_ns

    def may_start_at(self, now_ns: int = 0) -> int | None:
        """The same for `may_start`; with `now_ns`, if the clock was read a moment ago."""
        trust = self._trust
        if not now_ns:
            steady_ns = trust.steady_ns  # no method of it, and so quicker in two steps
            now_ns = steady_ns()
        usable = trust.connected and not self.ended and now_ns < trust.until_ns and not trust.ended
        return now_ns if usable else None


class Occupant(Protocol):
    """What runs on a seat of this runner: a shard's entities, a leader, a cron."""

    async def drain(self) -> None:
        """Start nothing more, let what runs end, stop what does not within the limit; then nothing of it writes."""
        ...

    def abandon(self) -> None:
        """The seat is lost: stop everything now. Nothing that is written any more would be accepted."""
        ...


class Occupy(Protocol):
    """Puts somebody on a seat that was just acquired; called on the runner's loop, must not block."""

    def __call__(self, tenure: Tenure, /) -> Occupant: ...
