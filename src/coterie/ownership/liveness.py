"""Whether a runner that this process has never met is dead: the rule for those that died before it started. Pure.

A runner is met once it was reached, or has renewed its lease while we watched. One that was met is evicted by two
witnesses or by its lease (`failure_detector`). One that was not is judged by its current state:

    its lock                its address                                   verdict
    ────────                ───────────                                   ───────
    released by the kernel  need not be probed                            gone
    held, or none           any                                           unknown: its lease is watched
    free                    it answers, or its counter has moved          alive
    free                    refuses, or another incarnation answers       gone, if the absence of the lock counts
    free                    silent, a stranger, or leads elsewhere        lapsed, if its lease has expired and a second
                                                                          look finds the lock free, the counter unmoved

What each condition guards against:

- After a restart of the server no runner holds a lock until its next renewal, and all leases may have expired. So a
  free lock counts at once only where the kernel speaks for the address (`near`: the same network namespace, or our own
  address), or if the server has been up for a whole lease. Otherwise a second look must find it free, later than any
  live runner renews.
- A loopback address of another host or network namespace leads elsewhere: what answers there means nothing.
- A stopped process whose session the server has closed is silent: its kernel still accepts connections. Its lease
counts.
- A port that another program has taken is a stranger. It may also be the runner itself, with another secret.
- Behind a transaction pooler a live runner has no lock either. Its row says so, and nothing is concluded.
- If our session is lost between two looks, a new series begins; likewise if the lock was held in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from coterie.storage.interface import Presences
    from coterie.transport.interface import Presence

Lock = Literal["held", "free", "gone", "none"]
"""The lock of a runner: held; free; released by the kernel when the process ended; none that it could hold."""

Verdict = Literal["alive", "gone", "lapsed", "unknown"]
"""Gone: evict it. Lapsed: evict it if its lease has expired. Unknown: look again."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the database said about a runner at one moment.

    Args:
        at_ns: When it was read, on a steady clock.
        server: Which start of the server, and which session of ours.
        lock: The runner's lock.
        counter: The counter of its lease.
        expired: Whether its lease has expired, by the database's clock.
        up_s: How long the server had been up.
    """

    at_ns: int
    server: str
    lock: Lock
    counter: int
    expired: bool
    up_s: float

    @classmethod
    def of(cls, runner: str, found: Presences, *, at_ns: int) -> Look | None:
        """What was found about a runner; None: it has left, or was evicted."""
        if runner not in found.counters:
            return None
        counter, expired = found.counters[runner], runner in found.expired
        return cls(at_ns, found.server, _lock(runner, found), counter, expired, found.up_s)


def _lock(runner: str, found: Presences) -> Lock:
    if runner in found.gone:
        return "gone"
    if runner in found.unwitnessed:
        return "none"
    return "held" if runner in found.held else "free"


def series(first: Look | None, look: Look) -> Look:
    """The first look of the unbroken series that `look` belongs to: same session, same lock, same counter."""
    if first is None or (first.server, first.lock, first.counter) != (look.server, look.lock, look.counter):
        return look
    return first


@dataclass(frozen=True, slots=True)
class Rule:
    """When a runner that was never met is dead.

    Args:
        pause_ns: The time after which a second look counts: longer than the time between two renewals.
        ttl_s: The TTL of leases.

    Promise:
        No restart of the server, however long it was down, makes a runner dead that takes its lock again within
        `pause_ns`, or that answers at its address.

    Not promised:
        If the database's clock is set forward while a living runner is silent and without its lock, it is taken for
        dead too early; its writes are refused by the fence (the exception of INV-F4).
    """

    pause_ns: int
    ttl_s: float

    def judge(self, first: Look, look: Look, presence: Presence | None, *, near: bool) -> Verdict:
        """Judge a runner that was never met.

        Args:
            first: The first look of the unbroken series.
            look: The last one, made after its address was probed.
            presence: What answered at its address; None: from here that leads elsewhere, or was not probed.
            near: Whether this machine's kernel knows if a process listens at its address.
        """
        if look.lock == "gone":
            return "gone"
        if presence == "present":
            return "alive"
        if look.lock != "free":
            return "unknown"
        looked_twice = look.at_ns - first.at_ns >= self.pause_ns
        if presence in ("refused", "other"):
            return "gone" if near or look.up_s >= self.ttl_s or looked_twice else "unknown"
        return "lapsed" if look.expired and looked_twice else "unknown"

    def may_live(self, first: Look, look: Look) -> bool | None:
        """Whether a runner may be alive that could not be reached from here in any case; None: look again.

        Args:
            first: The first look at it, if its counter is still the same.
            look: The last one.
        """
        if look.lock == "gone" or look.expired:
            return False
        if look.lock == "held" or look.counter != first.counter:
            return True
        looked_twice = series(first, look) is first and look.at_ns - first.at_ns >= self.pause_ns
        return False if look.lock == "free" and looked_twice else None
