"""What happens to the ticks that are due: which run, which are skipped and why, which one waits. Pure.

    due ─▶ in a pause ────────────────────────────▶ skipped: paused (when the pause has ended, as one span)
       ─▶ older than skip_if_older_than ──────────▶ skipped: stale
       ─▶ due while the breaker is open ──────────▶ skipped: breaker
       ─▶ passed while the seat was free ─── catch_up: none ───▶ skipped: stale
       │                                               latest ─▶ the newest runs, the others are superseded
       │                                               all ────▶ they run in order; of more than `most` the newest
       ─▶ passed while we held it ─ from_previous, or catch_up="all": each runs; otherwise the newest
                                  ─ overlap="skip", and a run is in progress: skipped: overlapping

A tick that was begun and cut off (its runner was lost) has had its verdict; `goes_on` decides whether it is retried.

While a cron is paused nothing begins: what was due before and has not begun is skipped as paused too.

With overlap `skip` and `queue` one tick runs at a time, likewise with a tripped breaker. A tick whose turn comes while
another runs waits: nothing is written of it, it stays due, and the next pass decides again. So at most one waits, and
it survives a change of holder.

Promise:
    What is decided is the beginning of what is due, in order, without gap: each tick gets one verdict, now or in a
    later decision. However many are due, a decision is bounded by `most` and the number of pauses (C4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import blake2b
from itertools import chain, pairwise, takewhile
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from coterie.kernel.retry import Breaker

CatchUp: TypeAlias = Literal["latest", "all", "none"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]
Reason: TypeAlias = Literal["stale", "overlapping", "paused", "superseded", "breaker"]

CUT_OFF = "cut off and too old"
"""The reason for skipping a tick that had begun."""

_INSTANT = timedelta(microseconds=1)
_NOTHING = timedelta()


class Ticks(Protocol):
    """A set of instants: a `Schedule`, or a part of one."""

    def next_after(self, at: datetime) -> datetime:
        """The first tick after an instant."""
        ...

    def previous(self, at: datetime) -> datetime:
        """The last tick before an instant."""
        ...

    def count(self, start: datetime, end: datetime) -> int:
        """The number of ticks from start to before end."""
        ...


@dataclass(frozen=True, slots=True)
class TickPolicy:
    """What the definition of a cron says about its ticks.

    Args:
        skip_if_older_than: Ticks that have been due for longer do not run.
        catch_up: Which ticks run of those that passed while the seat was free.
        overlap: What happens to a tick while a run is in progress.
        from_previous: Whether the next tick is the one after the previous tick, however late; or the newest.
        delay: How long after its instant a tick of this cron is due (`jitter_of`).
        most: How many ticks are caught up at once.
        breaker: After how many failures in a row ticks are skipped, and for how long; None: never.
    """

    skip_if_older_than: timedelta | None = timedelta(days=1)
    catch_up: CatchUp = "latest"
    overlap: Overlap = "allow"
    from_previous: bool = False
    delay: timedelta = _NOTHING
    most: int = 100
    breaker: Breaker | None = None


@dataclass(frozen=True, slots=True)
class PauseSpan:
    """When a cron was paused; `until` is None while it is."""

    since: datetime
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class CronProgress:
    """What storage says about a cron, all by the database's clock.

    Args:
        effective_from: Since when this definition counts. Ticks before that are not its ticks [M8].
        held_since: Since when we have held the seat.
        last: The last tick that has a verdict, if there is one.
        pauses: Those that may affect later ticks, in order, not overlapping.
        busy: Whether a run is in progress, also one of a former holder that is to be resumed.
        failures: How many ticks in a row have failed.
        failed_at: When the last failure happened.
    """

    effective_from: datetime
    held_since: datetime
    last: datetime | None = None
    pauses: Sequence[PauseSpan] = ()
    busy: bool = False
    failures: int = 0
    failed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RunTick:
    """This tick runs."""

    at: datetime


@dataclass(frozen=True, slots=True)
class SkipTicks:
    """Neighbouring ticks that do not run, for one reason."""

    first: datetime
    last: datetime
    count: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now.

    Args:
        verdicts: In the order of their ticks.
        waiting: The tick that runs when the run in progress has ended.
        decide_at: When the next tick is due; to decide earlier does no harm.
    """

    verdicts: tuple[RunTick | SkipTicks, ...]
    waiting: datetime | None
    decide_at: datetime


def decide(schedule: Ticks, policy: TickPolicy, known: CronProgress, now: datetime) -> Decision:
    """What happens to the ticks after the last one, up to `now` by the database's clock."""
    spans = list(takewhile(lambda span: span.fate != "pausing", _spans(policy, known, now)))
    kept = _kept(schedule, policy, [span for span in spans if span.fate in ("missed", "held")])
    verdicts: list[RunTick | SkipTicks] = []
    waiting, one_at_a_time, busy = None, policy.overlap != "allow" or _is_tripped(policy, known), known.busy
    for verdict in chain.from_iterable(_judged(schedule, span, kept) for span in spans):
        if isinstance(verdict, RunTick):
            if one_at_a_time and busy:
                waiting = verdict.at
                break
            busy = True
        _add(verdicts, verdict)
    return Decision(tuple(verdicts), waiting, schedule.next_after(now - policy.delay) + policy.delay)


def is_too_old(policy: TickPolicy, at: datetime, now: datetime) -> bool:
    """Whether a tick has been due for longer than `skip_if_older_than`, by the database's clock."""
    oldest = policy.skip_if_older_than
    return oldest is not None and now - (at + policy.delay) > oldest


def goes_on(policy: TickPolicy, at: datetime, *, manual: bool, has_steps: bool, now: datetime) -> bool:
    """Whether a tick that was begun and cut off gets another attempt; otherwise it is skipped (`CUT_OFF`).

    Args:
        at: Its instant.
        manual: Whether it was triggered by hand, for whatever instant: then its age does not matter.
        has_steps: Whether a step of it is stored: then part of its work is done, and is completed.
        now: By the database's clock.
    """
    return manual or has_steps or not is_too_old(policy, at, now)


def jitter_of(name: str, jitter: timedelta) -> timedelta:
    """How much of its jitter a cron waits: constant for its name, and spread evenly over names."""
    share = int.from_bytes(blake2b(name.encode(), digest_size=8, person=b"cron jitter").digest(), "big")
    return timedelta(microseconds=(jitter // _INSTANT) * share >> 64)


# ── which ticks share a fate ────────────────────────────────────────────────────────────────────────────────────

_Fate: TypeAlias = Literal["paused", "pausing", "stale", "breaker", "overlapping", "none", "missed", "held"]

_REASONS: dict[_Fate, Reason] = {
    "paused": "paused",
    "stale": "stale",
    "breaker": "breaker",
    "overlapping": "overlapping",
    "none": "stale",
    "missed": "superseded",
    "held": "superseded",
}


@dataclass(frozen=True, slots=True)
class _Span:
    """Ticks from start to before end, which time alone treats alike."""

    start: datetime
    end: datetime
    fate: _Fate


def _spans(policy: TickPolicy, known: CronProgress, now: datetime) -> Iterator[_Span]:
    """What is due, split wherever the treatment of a tick may change, in order.

    Comparisons with the clock use when a tick is due, `delay` after its instant; those with the schedule,
    `effective_from` and `last`, use its instant.
    """
    end = now - policy.delay + _INSTANT
    start = known.effective_from
    if known.last is not None:
        start = max(start, known.last + _INSTANT)
    fresh, oldest = start, policy.skip_if_older_than
    if oldest is not None and oldest < end - start:
        fresh = end - _INSTANT - oldest
    held = known.held_since - policy.delay + _INSTANT
    closed = _closed_again(policy, known, start)
    pauses = [(each.since - policy.delay, each.until and each.until - policy.delay) for each in known.pauses]
    cuts = {start, fresh, held, closed, end, *(cut for pause in pauses for cut in pause if cut)}
    is_paused = any(until is None for _, until in pauses)
    for low, high in pairwise(sorted(cut for cut in cuts if start <= cut <= end)):
        pause = next((pause for pause in pauses if pause[0] <= low and (pause[1] is None or low < pause[1])), None)
        if pause:
            yield _Span(low, high, "pausing" if pause[1] is None else "paused")
        elif low < fresh:
            yield _Span(low, high, "stale")
        elif is_paused:
            yield _Span(low, high, "paused")
        elif low < closed:
            yield _Span(low, high, "breaker")
        elif low < held:
            yield _Span(low, high, "none" if policy.catch_up == "none" else "missed")
        else:
            yield _Span(low, high, "overlapping" if policy.overlap == "skip" and known.busy else "held")


def _closed_again(policy: TickPolicy, known: CronProgress, start: datetime) -> datetime:
    """Until when ticks meet an open breaker; `start`: none does."""
    if policy.breaker is None or known.failed_at is None or not _is_tripped(policy, known):
        return start
    return known.failed_at + policy.breaker.reset - policy.delay


def _is_tripped(policy: TickPolicy, known: CronProgress) -> bool:
    """Whether so many failed in a row that only one at a time is let through, after the reset time."""
    return policy.breaker is not None and known.failed_at is not None and known.failures >= policy.breaker.failures


def _kept(schedule: Ticks, policy: TickPolicy, spans: Sequence[_Span]) -> list[datetime]:
    """The ticks that run, the newest first."""
    each_held = policy.from_previous or policy.catch_up == "all"
    kept: list[datetime] = []
    for span in reversed(spans):
        each = each_held if span.fate == "held" else policy.catch_up == "all"
        most = policy.most if each else 1
        tick = schedule.previous(span.end)
        while tick >= span.start and len(kept) < most:
            kept.append(tick)
            tick = schedule.previous(tick)
    return kept


def _judged(schedule: Ticks, span: _Span, kept: Iterable[datetime]) -> Iterator[RunTick | SkipTicks]:
    """The verdicts of one span. Those of its ticks that run are its newest."""
    runs = [tick for tick in kept if span.start <= tick < span.end][::-1]
    end = runs[0] if runs else span.end
    if count := schedule.count(span.start, end):
        first = schedule.next_after(span.start - _INSTANT)
        yield SkipTicks(first, schedule.previous(end), count, _REASONS[span.fate])
    yield from (RunTick(tick) for tick in runs)


def _add(verdicts: list[RunTick | SkipTicks], verdict: RunTick | SkipTicks) -> None:
    """Append a verdict, or extend the previous span."""
    before = verdicts[-1] if verdicts else None
    if isinstance(before, SkipTicks) and isinstance(verdict, SkipTicks) and before.reason == verdict.reason:
        verdicts[-1] = replace(before, last=verdict.last, count=before.count + verdict.count)
    else:
        verdicts.append(verdict)
