"""The lease keeper as a state machine: when to renew, how long to trust the lease, when to evict oneself.

It performs no I/O. Its driver, a thread in production and the loop in simulation, calls `step` at each `wake_ns` (also
while a renewal is in flight), performs the action, and reports the result.

           registered              failed
    new ──────────────▶ kept ◀──────────────▶ failing
                         │        renewed        │
                         │                       │
                         └───────────┬───────────┘
                evicted, or: the loop was blocked for the stall limit (evict_self)
                                     ▼
                                   ended

Trust is not a state: it expires by itself, failing or not, and returns with the next renewal that succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["new", "kept", "failing", "ended"]
Action = Literal["wait", "renew", "report_stall", "evict_self"]

_SLOW_NS = 100_000_000
"""A renewal slower than this makes the next one start early [m6]."""
_RETRY_NS = 50_000_000
"""The pause after a first failure; each further one doubles it, up to the time between two renewals."""
_DOUBLED_MOST = 10
_JUMP_NS = 1_000_000_000
"""A step that comes later than planned by more than this was delayed with the whole process: frozen, or suspended."""
_TURN_NS = 1_000_000_000
"""How long the loop may take to turn after such a jump, before it counts as blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The lease, and how long the runner's loop may be blocked: until its stack is logged, until it is evicted."""

    ttl_ns: int
    renew_ns: int
    margin_ns: int
    stall_ns: int
    stack_ns: int = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LeaseStep:
    """What to do now, and when to call `step` again."""

    action: Action
    wake_ns: int


class LeasePolicy:
    """The lease of one incarnation. All times are of one steady clock.

    Promise:
        `trusted_until_ns` is never later than the moment before the last successful renewal was sent + TTL - margin
        [INV-F4], and 0 once this incarnation has ended, which is final. While nothing fails, and no renewal takes
        longer than that, renewals are requested at most `renew_ns` apart.
    """

    def __init__(self, times: LeaseTimes) -> None:
        self.state: State = "new"
        self.trusted_until_ns = 0
        self._times = times
        self._due_ns = 0
        self._asked_ns: int | None = None  # when the renewal in flight was requested
        self._failures = 0
        self._loop = _Loop(times)

    def registered(self, sent_ns: int) -> None:
        """The lease was granted, by a statement sent no earlier than `sent_ns`."""
        assert self.state == "new", f"a {self.state} keeper does not register: each incarnation has one of its own"
        self.state = "kept"
        self._trust(sent_ns)
        self._due_ns = sent_ns + self._times.renew_ns

    def step(self, now_ns: int, pulse_ns: int) -> LeaseStep:
        """Decide what to do now. The runner's loop last turned at `pulse_ns`."""
        if self.state in ("new", "ended"):
            return LeaseStep("wait", now_ns + self._times.renew_ns)
        self._loop.record(now_ns, pulse_ns)
        action = self._act(now_ns)
        wake_ns = max(now_ns, self._loop.next_ns(now_ns))
        if self._asked_ns is None:
            wake_ns = min(wake_ns, max(now_ns, self._due_ns))
        self._loop.wake_ns = wake_ns
        return LeaseStep(action, wake_ns)

    def renewed(self, sent_ns: int, now_ns: int) -> None:
        """A renewal, sent no earlier than `sent_ns`, has succeeded."""
        if self.state == "ended":
            return
        self.state = "kept"
        self._asked_ns = None
        self._failures = 0
        self._trust(sent_ns)
        took_ns = now_ns - sent_ns
        self._due_ns = sent_ns + self._times.renew_ns - (took_ns if took_ns > _SLOW_NS else 0)

    def failed(self, now_ns: int) -> None:
        """A renewal has failed, or the session is known to be lost. Trust lasts until it expires."""
        if self.state == "ended":
            return
        self.state = "failing"
        regular_ns = self._due_ns if self._asked_ns is None else self._asked_ns + self._times.renew_ns
        self._asked_ns = None
        pause_ns = _RETRY_NS << min(self._failures, _DOUBLED_MOST)
        self._failures += 1
        self._due_ns = max(now_ns, min(now_ns + pause_ns, regular_ns))

    def interrupted(self, now_ns: int) -> None:
        """The renewal in flight, if any, was cut off: its outcome is unknown, and another one is due."""
        if self._asked_ns is not None:
            self.failed(now_ns)

    def evicted(self) -> None:
        """The lease is gone."""
        self.state = "ended"
        self.trusted_until_ns = 0

    def _trust(self, sent_ns: int) -> None:
        self.trusted_until_ns = sent_ns + self._times.ttl_ns - self._times.margin_ns

    def _act(self, now_ns: int) -> Action:
        if self._loop.is_stalled(now_ns):
            self.evicted()
            return "evict_self"
        if self._asked_ns is None and now_ns >= self._due_ns:
            self._asked_ns = now_ns
            return "renew"
        return "report_stall" if self._loop.report(now_ns) else "wait"


class _Loop:
    """Measures how long the runner's loop has been blocked.

    A frozen process is not a blocked loop: when a step comes much later than planned, the time in between is forgiven,
    and the loop may turn first, since it was as unable to run as we were.
    """

    def __init__(self, times: LeaseTimes) -> None:
        self._stall_ns = times.stall_ns
        self._stack_ns = times.stack_ns
        self._often_ns = min(times.stack_ns, times.stall_ns) // 2
        self._pulse_ns = 0
        self._forgiven_ns = 0
        self._reports = 0
        self._turn_ns = 0  # until then the loop may not have had a chance to turn
        self.wake_ns: int | None = None
        """When the next step was planned."""

    def record(self, now_ns: int, pulse_ns: int) -> None:
        """Record when the loop last turned."""
        if pulse_ns != self._pulse_ns:
            self._pulse_ns, self._forgiven_ns, self._reports = pulse_ns, 0, 0
        late_ns = 0 if self.wake_ns is None else now_ns - self.wake_ns
        if late_ns > _JUMP_NS:
            if not self._forgiven_ns:  # only once: a loop that does not turn between two freezes is blocked
                self._turn_ns = now_ns + min(_TURN_NS, self._stall_ns // 2)
            # Never more than the loop has been silent: a later blockage is not forgiven in advance.
            self._forgiven_ns = min(self._forgiven_ns + late_ns, max(now_ns - pulse_ns, 0))

    def is_stalled(self, now_ns: int) -> bool:
        """Whether the loop was blocked for the stall limit."""
        return self._blocked_ns(now_ns) >= self._stall_ns and now_ns >= self._turn_ns

    def report(self, now_ns: int) -> bool:
        """Whether to log the stack now; then not again before the loop was blocked for as long once more."""
        due = self._blocked_ns(now_ns) // self._stack_ns
        if due <= self._reports:
            return False
        self._reports = due
        return True

    def next_ns(self, now_ns: int) -> int:
        """When to check again: at the next limit, and often enough that a driver that pings the loop at each step gets
        an answer long before the first."""
        since_ns = self._pulse_ns + self._forgiven_ns
        stalled_ns = max(since_ns + self._stall_ns, self._turn_ns)
        return min(now_ns + self._often_ns, since_ns + (self._reports + 1) * self._stack_ns, stalled_ns)

    def _blocked_ns(self, now_ns: int) -> int:
        return now_ns - self._pulse_ns - self._forgiven_ns
