"""Judges the health of a cluster and the readiness of a runner from the facts of one moment (H1, H2, L4). Pure.

`cluster.health()` returns the result:

healthy    nothing is wrong
degraded   it works, but needs attention: something is slow, late, silent or without a holder for a while
unhealthy  something that should happen does not happen

The worst reason decides. A runner is ready if it can work and nothing that it hosts is unhealthy; degraded things, or
problems elsewhere, do not make it unready. Liveness requires less: a process that can answer is live.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from coterie.kernel.ids import Seat
from coterie.observe.failures import worded
from coterie.observe.jobs import queues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from coterie.cron.api import CronInfo
    from coterie.observe.facts import ClusterFacts, ExcludedSeat, FailingCalls, LocalFacts, Overdue, QueueFacts
    from coterie.singletons.api import SingletonInfo
    from coterie.storage.interface import RunnerRow, SeatRow


Status = Literal["healthy", "degraded", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a cluster is not healthy, in the words that the CLI, the web and the logs show."""

    status: Status
    """The status that it causes: `degraded` or `unhealthy`."""
    what: str
    """The subject: `singleton importer`, `runner web-2`, `14 shards`."""
    problem: str
    """What is wrong with it, with the figures."""
    hint: str = ""
    """The remedy: a sentence with the command."""
    runner: str | None = None
    """The name of the runner that hosts the subject and becomes unready if it is unhealthy; None: no runner does."""

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The health of a cluster, at one moment of the database's clock."""

    status: Status
    reasons: tuple[Reason, ...]
    at: datetime
    runners: int
    healthy_runners: int
    shards: int
    owned_shards: int
    entities: int | None
    """Active on all runners; None: not all of them replied."""
    singletons: int
    crons: int
    facts: ClusterFacts
    """All facts that it was judged by."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong at all."""
        return self.status == "healthy"


_WORSE = ("healthy", "degraded", "unhealthy")
_DATABASE_HINT = "coterie doctor checks the database"
_FAILING_HINT = "its log has the stack; what fails seven times within a minute gives up its seat, or ends the runner"
_UNREADABLE_HINT = "it is left out, the others are not: mend or delete it with SQL; coterie check lists what is broken"
_DROP = "delete from coterie.incoming where …"
_STUBBORN_HINT = "nothing ends a thread: it has to look at current().cancelled, or to give its I/O a time limit"
_NAMED = 3
"""Number of things of the same kind that are named; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Thresholds beyond which something is wrong."""

    takeover_s: float = 10.0
    """How long a seat may have no holder: a lost runner is replaced by then (S10)."""
    free_s: float = 60.0
    """Shards that have no holder for longer are more than a slow takeover."""
    start_s: float = 30.0
    """How long a runner may take to become ready."""
    late_s: float = 30.0
    """A message that waits longer is late …"""
    stuck_s: float = 300.0
    """… and one that waits this long is stuck: the handlers are too slow, or none runs."""
    lag_s: float = 1.0
    """An event loop that delays timers for longer is blocked now and then."""
    storage_s: float = 1.0
    """A database query that takes longer is slow."""
    failover_s: float = 3600.0
    """How long health reports that a failover may have lost work."""
    failing_calls: int = 5
    """An entity type with so many failed calls, and no success since, …"""
    failing_s: float = 60.0
    """… for so long, or since its runner started, …"""
    failing_ago_s: float = 300.0
    """… the last of them not longer ago, is reported as failing all its calls."""
    clock_s: float = 1.0
    """A clock that is off by more is wrong."""
    unpruned_s: float = 600.0
    """Rows overdue for longer are not pruned fast enough, or not at all; pruning runs each minute."""
    age_s: float = 10.0
    """Facts from the database that are older do not count as current."""


BOUNDS = Bounds()


def judge(facts: ClusterFacts, bounds: Bounds = BOUNDS) -> Health:
    """Judge the health of a cluster."""
    reasons = [
        *_runners(facts, bounds),
        *_failovers(facts, bounds),
        *_shards(facts, bounds),
        *_entities(facts),
        *_calls(facts, bounds),
        *(reason for _, reason in _singletons(facts, bounds)),
        *(reason for _, reason in _crons(facts, bounds)),
        *_messages(facts, facts.overdue, bounds),
        *_incoming(facts, bounds),
        *(reason for each in facts.queues for reason in queue_reasons(each, facts, bounds)),
        *_pruning(facts, bounds),
    ]
    reasons.sort(key=lambda reason: -_WORSE.index(reason.status))  # stable: reasons of one status keep their order
    shards = facts.view.shards
    replies = [facts.runners.get(row.id) for row in facts.view.runners]
    entities = [sum(each.entities.values()) for each in replies if each is not None]
    return Health(
        status=reasons[0].status if reasons else "healthy",
        reasons=tuple(reasons),
        at=facts.now,
        runners=len(replies),
        healthy_runners=sum(_is_healthy(each, bounds) for each in replies),
        shards=len(shards),
        owned_shards=sum(seat.holder is not None for seat in shards),
        entities=sum(entities) if len(entities) == len(replies) else None,
        singletons=len(facts.singletons),
        crons=len(facts.crons),
        facts=facts,
    )


def readiness(
    local: LocalFacts, facts: ClusterFacts | None, *, age_s: float = 0.0, bounds: Bounds = BOUNDS
) -> tuple[Reason, ...]:
    """The reasons why a runner is not ready; empty if it is.

    Args:
        local: What it knows of itself, now.
        facts: What it last read from the database; None: it has not read yet, or never successfully.
        age_s: Their age.
        bounds: Thresholds beyond which something is wrong.
    """
    what = f"runner {local.name}"
    reasons = [
        Reason(status="unhealthy", what=what, problem=problem, hint=hint, runner=local.name)
        for problem, hint in _unfit(local)
    ]
    if facts is None or age_s > bounds.age_s:
        # While it starts, or after it lost its lease, a reason for that is already given.
        if not reasons:
            since = "has not been read yet" if facts is None else f"was last read {age_s:.0f}s ago"
            problem = f"the database {since}"
            reasons.append(
                Reason(status="unhealthy", what=what, problem=problem, hint=_DATABASE_HINT, runner=local.name)
            )
        return tuple(reasons)
    mine = {seat.name for seat in facts.view.seats if seat.holder == local.runner}
    hosted = [*_singletons(facts, bounds), *_crons(facts, bounds)]
    reasons += [reason for seat, reason in hosted if seat in mine and reason.status == "unhealthy"]
    waiting = [each for each in facts.overdue if each.seat in mine]
    reasons += [reason for reason in _messages(facts, waiting, bounds) if reason.status == "unhealthy"]
    return tuple(reasons)


def liveness(local: LocalFacts) -> tuple[Reason, ...]:
    """What may soon end the process. A blocked event loop does not get here, a lost database is reconnected to, and a
    runner whose own task keeps failing ends its process itself: this only reports it beforehand.
    """
    what = f"runner {local.name}"
    return tuple(
        Reason(status="degraded", what=what, problem=each, hint=_FAILING_HINT, runner=local.name)
        for each in _failing_tasks(local)
    )


# One runner


def _unfit(local: LocalFacts) -> Iterator[tuple[str, str]]:
    """What keeps a runner from working, each with its remedy."""
    if local.is_draining:
        yield "it is draining", ""
    elif not local.is_ready:
        yield f"it is not ready: {local.missing or 'it is still starting'}", ""
    elif local.lease_left_s is None or local.lease_left_s <= 0:
        yield "its lease has run out", _DATABASE_HINT
    if local.storage_problem:
        yield f"the database does not answer: {local.storage_problem}", _DATABASE_HINT
    yield from ((problem, _FAILING_HINT) for problem in _failing_tasks(local))


def _failing_tasks(local: LocalFacts) -> Iterator[str]:
    """The runner's own tasks that keep failing: it exits if that goes on."""
    for task in local.failing:
        if task.keeps_failing and not task.seat:
            yield f"its task {task} keeps failing, {task.failures} times within a minute: {task.error}"


def _is_healthy(local: LocalFacts | None, bounds: Bounds) -> bool:
    if (
        local is None
        or not local.is_ready
        or local.storage_problem
        or any(task.keeps_failing for task in local.failing)
    ):
        return False
    return local.lease_left_s is not None and local.lease_left_s > 0 and local.loop_lag_s <= bounds.lag_s


# The whole cluster


def _runners(facts: ClusterFacts, bounds: Bounds) -> Iterator[Reason]:
    rows = facts.view.runners
    if not rows:
        hint = "coterie run app.py starts one"
        yield Reason(status="unhealthy", what="runners", problem="there are none", hint=hint)
    for row in rows:
        for status, problem, hint in _troubles(facts.runners.get(row.id), bounds):
            yield Reason(status=status, what=f"runner {row.name}", problem=problem, hint=hint, runner=row.name)


def _troubles(local: LocalFacts | None, bounds: Bounds) -> Iterator[tuple[Status, str, str]]:
    doctor = "coterie doctor checks the database and the clocks"
    if local is None:
        hint = "if it is gone or frozen it is replaced within 10s; else coterie doctor checks ports and addresses"
        yield "degraded", "it does not answer", hint
        return
    if local.storage_problem:
        yield "unhealthy", f"the database does not answer it: {local.storage_problem}", doctor
    elif local.storage_s is not None and local.storage_s > bounds.storage_s:
        yield "degraded", f"the database takes {local.storage_s:.1f}s to answer it", doctor
    if not local.is_ready and not local.is_draining and local.up_s > bounds.start_s:
        missing = local.missing or "it is still starting"
        yield "degraded", f"not ready for {local.up_s:.0f}s: {missing}", f"coterie runners show {local.name}"
    elif local.is_ready and not local.is_draining and (local.lease_left_s is None or local.lease_left_s <= 0):
        yield "degraded", "its lease has run out", "others take over within 10s what it holds"
    for task in local.failing:
        times = f"{task.failures} times within a minute" if task.failures > 1 else "within the last minute"
        yield "degraded", f"its task {task} failed {times}: {task.error}", _FAILING_HINT
    for row in local.unreadable:
        yield "degraded", row, _UNREADABLE_HINT
    for body in local.stubborn:
        problem = f"{body.what} still runs in its thread, {body.for_s:.0f}s after it was cancelled"
        yield "degraded", problem, _STUBBORN_HINT
    if local.loop_lag_s > bounds.lag_s:
        hint = "something blocks its event loop: its log has the stack; a plain def in its place runs in a thread"
        yield "degraded", f"its event loop was blocked for {local.loop_lag_s:.1f}s", hint
    if local.clock_offset_s is not None and abs(local.clock_offset_s) > bounds.clock_s:
        way = "ahead of" if local.clock_offset_s > 0 else "behind"
        yield "degraded", f"its clock is {abs(local.clock_offset_s):.1f}s {way} the database's", doctor


def _failovers(facts: ClusterFacts, bounds: Bounds) -> Iterator[Reason]:
    """One reason for all runners that have noticed it."""
    ago_s = [
        local.failed_over_s for local in facts.runners.values() if local is not None and local.failed_over_s is not None
    ]
    if ago_s and min(ago_s) <= bounds.failover_s:
        problem = f"failed over {min(ago_s):.0f}s ago: work that was acknowledged and not replicated may be missing"
        hint = "compare with the old server if you can; a synchronous standby loses nothing"
        yield Reason(status="degraded", what="database", problem=problem, hint=hint)


def _shards(facts: ClusterFacts, bounds: Bounds) -> Iterator[Reason]:
    """The shards of each group that have no holder, except those in a takeover, where that can be known."""
    if not facts.view.runners:
        return  # the missing runners are already reported
    all_of: dict[str, list[SeatRow]] = defaultdict(list)
    for seat in facts.view.shards:
        all_of[seat.group].append(seat)
    for group, seats in sorted(all_of.items()):
        free = [seat for seat in seats if seat.holder is None and not _is_moving(seat.name, facts, bounds)]
        if free:
            yield _free(group, free, is_all=len(free) == len(seats), facts=facts, bounds=bounds)


def _free(group: str, free: Sequence[SeatRow], *, is_all: bool, facts: ClusterFacts, bounds: Bounds) -> Reason:
    for_s = max((facts.free_s.get(seat.name) or 0.0 for seat in free), default=0.0)
    names = _named([Seat.split(seat.name)[1] for seat in free])
    since = f" for {for_s:.0f}s" if for_s else ""
    if any(group in row.groups and not row.leaving for row in facts.view.runners):
        hint = "coterie shards shows who holds the others"
    else:
        hint = f"no runner serves group {group!r}: start one with groups={group}"
    return Reason(
        status="unhealthy" if is_all or for_s > bounds.free_s else "degraded",
        what=f"{len(free)} shards" if len(free) > 1 else "1 shard",
        problem=f"no owner{since} ({names})",
        hint=hint,
    )


def _is_moving(seat: str, facts: ClusterFacts, bounds: Bounds) -> bool:
    """Whether the seat lost its holder just now, so that a takeover is expected."""
    for_s = facts.free_s.get(seat)
    return for_s is not None and for_s <= bounds.takeover_s


_ACTIVATION_HINTS = {
    "NewerVersion": "a newer program wrote their state: roll the program forward, or add a migration",
    "MigrationFailed": "the migration of their state fails: correct it; the stored state was not touched",
}


def _entities(facts: ClusterFacts) -> Iterator[Reason]:
    """Types with entities that cannot activate: every call of such an entity fails."""
    found: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for row in facts.view.runners:
        local = facts.runners.get(row.id)
        for name, errors in ({} if local is None else local.failing_entities).items():
            for error, count in errors.items():
                found[name, error][row.name] = count
    for (name, error), runners in sorted(found.items()):
        count = sum(runners.values())
        where = _named(sorted(runners))
        yield Reason(
            status="degraded",
            what=f"entity {name}",
            problem=f"{count} {'entities' if count > 1 else 'entity'} cannot begin on {where}: {error}",
            hint=_ACTIVATION_HINTS.get(error, f"the log of {where} has the stack of the first one"),
            runner=next(iter(runners)) if len(runners) == 1 else None,
        )


def _calls(facts: ClusterFacts, bounds: Bounds) -> Iterator[Reason]:
    """Types whose calls all fail, with errors of the program's own."""
    found: dict[tuple[str, str], dict[str, FailingCalls]] = defaultdict(dict)
    for row in facts.view.runners:
        local = facts.runners.get(row.id)
        for name, failing in ({} if local is None else local.failing_calls).items():
            if _fails_all(failing, bounds):
                found[name, failing.error][row.name] = failing
    for (name, error), runners in sorted(found.items()):
        where, calls = _named(sorted(runners)), sum(each.calls for each in runners.values())
        for_s = max(each.for_s for each in runners.values())
        yield Reason(
            status="degraded",
            what=f"entity {name}",
            problem=f"all its calls fail on {where}, {calls} within {for_s:.0f}s: {error}",
            hint=f"the log of {where} has their stacks",
            runner=next(iter(runners)) if len(runners) == 1 else None,
        )


def _fails_all(failing: FailingCalls, bounds: Bounds) -> bool:
    """Whether so many failures without a success are more than a transient problem, and recent."""
    if failing.calls < bounds.failing_calls or failing.ago_s > bounds.failing_ago_s:
        return False
    return failing.is_first or failing.for_s >= bounds.failing_s


# What runs on seats


def _singletons(facts: ClusterFacts, bounds: Bounds) -> Iterator[tuple[str, Reason]]:
    for info in facts.singletons:
        seat, what = Seat.singleton(info.name), f"singleton {info.name}"
        if info.leader is None:
            # A takeover is not progress: a singleton that was silent for too long stays so during one.
            silent = _silent(info, facts)
            if not silent and _is_moving(seat, facts, bounds) and not _is_left_alone(seat, info.group, facts):
                continue
            yield seat, _unheld(seat, what, info.group, "; ".join(filter(None, [silent, info.problem])), facts)
        elif info.problem:
            yield (
                seat,
                Reason(
                    status="unhealthy",
                    what=what,
                    problem=f"{info.problem}; leader {info.leader}, epoch {info.epoch}",
                    hint=f"{info.leader} still holds it: coterie singletons resign {info.name} moves it",
                    runner=info.leader,
                ),
            )


def _silent(info: SingletonInfo, facts: ClusterFacts) -> str:
    """How long a singleton without a leader has made no progress; empty if that is not too long."""
    if info.expected_interval is None or info.last_heartbeat_at is None:
        return ""
    expected_s, silent_s = info.expected_interval.total_seconds(), (facts.now - info.last_heartbeat_at).total_seconds()
    is_stale = silent_s > facts.staleness * expected_s
    return f"no progress for {silent_s:.0f}s (expected every {expected_s:g}s)" if is_stale else ""


def _crons(facts: ClusterFacts, bounds: Bounds) -> Iterator[tuple[str, Reason]]:
    for info in facts.crons:
        is_held_up = _is_held_up(info, facts.now, bounds)
        if info.paused_at is not None or not (info.problem or is_held_up):
            continue
        seat, what = Seat.cron(info.name), f"cron {info.name}"
        ran = "never executed" if info.last_run_at is None else f"last run {_ago(facts.now, info.last_run_at)}"
        if not info.problem:
            yield seat, _held_up(info, what, ran)
        elif info.runner is None:
            is_late = info.next_at is not None and (facts.now - info.next_at).total_seconds() > bounds.takeover_s
            if is_late or not _is_moving(seat, facts, bounds) or _is_left_alone(seat, info.group, facts):
                yield seat, _unheld(seat, what, info.group, f"{info.problem}; {ran}", facts)
        else:
            yield (
                seat,
                Reason(
                    status="unhealthy",
                    what=what,
                    problem=f"{info.problem}; {ran}",
                    hint=f"coterie cron show {info.name} has its last ticks",
                    runner=info.runner,
                ),
            )


def _is_held_up(info: CronInfo, now: datetime, bounds: Bounds) -> bool:
    """Whether a run is active, and two ticks have passed since it or another one began or sent a heartbeat (H1)."""
    if not info.running or not info.schedule:
        return False
    signs = [at for at in (info.last_run_at, info.last_heartbeat_at) if at is not None]
    if not signs:
        return False
    from coterie.cron.schedule import Schedule  # zones and calendars: only where there are crons

    schedule = Schedule(info.schedule, timezone=info.timezone, cron=info.name)
    second = schedule.next_after(schedule.next_after(max(signs)))
    return (now - second).total_seconds() > bounds.takeover_s


def _held_up(info: CronInfo, what: str, ran: str) -> Reason:
    return Reason(
        status="unhealthy",
        what=what,
        problem=f"a run goes on without a heartbeat while two ticks have passed; {ran}",
        hint=f"coterie cron show {info.name} has its last ticks; timeout= ends a run that hangs, and one that is slow "
        "says so with tick.heartbeat()",
        runner=info.runner,
    )


def _unheld(seat: str, what: str, group: str, problem: str, facts: ClusterFacts) -> Reason:
    """A singleton or cron without a holder. One that no program defines may have been removed on purpose."""
    known = [row for row in facts.view.runners if seat in row.knows]
    if not known:
        hint = "no runner's program defines it: deploy one that does, unless it was removed on purpose"
    elif not any(group in row.groups for row in known):
        hint = f"no runner that defines it serves group {group!r}: start one with groups={group}"
    elif _is_left_alone(seat, group, facts):
        kind, name = Seat.split(seat)
        hint = f"coterie {'singletons' if kind == 'singleton' else kind} show {name} has the error"
    else:
        hint = f"{_named([_name(row) for row in known])} may take it: the logs there say why not"
    problem = "; ".join(filter(None, [problem, excluded(seat, facts)]))
    return Reason(status="unhealthy" if known else "degraded", what=what, problem=problem, hint=hint)


def _exclusions(seat: str, facts: ClusterFacts) -> dict[str, ExcludedSeat]:
    """Why runners do not claim a seat, by the runner's incarnation."""
    replies = {row.id: facts.runners.get(row.id) for row in facts.view.runners}
    found = ((runner, each) for runner, local in replies.items() if local is not None for each in local.excluded)
    return {runner: each for runner, each in found if each.seat == seat}


def _is_left_alone(seat: str, group: str, facts: ClusterFacts) -> bool:
    """Whether every runner that may claim a seat has failed on it and is excluded: no takeover is under way."""
    able = {row.id for row in facts.view.runners if seat in row.knows and group in row.groups and not row.leaving}
    failed = {runner for runner, each in _exclusions(seat, facts).items() if each.cause != "resigned"}
    return bool(able) and able <= failed


def excluded(seat: str, facts: ClusterFacts) -> str:
    """Which runners do not claim a seat just now, why, and for how long; empty: none. Without texts of the program."""
    names, found = {row.id: row.name for row in facts.view.runners}, _exclusions(seat, facts)
    return _named([_excluded(names[runner], each) for runner, each in found.items()], between="; ")


def _excluded(name: str, each: ExcludedSeat) -> str:
    error = worded(each.error, texts=False) or "an error"
    if each.left_s is None:
        return f"{name} cannot begin it: {error}"
    again = f"takes it again in {each.left_s:.0f}s"
    if each.cause == "resigned":
        return f"{name} resigned, and {again}"
    return f"{name} failed{f' {each.times} times' if each.times > 1 else ''} with {error}, and {again}"


def _messages(facts: ClusterFacts, waiting: Iterable[Overdue], bounds: Bounds) -> Iterator[Reason]:
    """The message that has waited longest, if for too long, and the number of seats with such messages."""
    late = [each for each in waiting if each.late_s > bounds.late_s]
    if not late:
        return
    oldest = max(late, key=lambda each: each.late_s)
    holders = {seat.name: seat.holder for seat in facts.view.seats}
    row = next((row for row in facts.view.runners if row.id == holders.get(oldest.seat)), None)
    held = "nobody holds its shard" if row is None else f"on {row.name}"
    others = f"; so do messages of {len(late) - 1} more shards" if len(late) > 1 else ""
    yield Reason(
        status="unhealthy" if oldest.late_s > bounds.stuck_s else "degraded",
        what=f"message {oldest.what}",
        problem=f"due for {oldest.late_s:.0f}s and not done, {held}{others}",
        hint=f"coterie messages show {oldest.id}",
        runner=None if row is None else row.name,
    )


def _incoming(facts: ClusterFacts, bounds: Bounds) -> Iterator[Reason]:
    """What SQL has sent, if no runner takes it: most often none has the type."""
    late = [each for each in facts.incoming if each.waited_s > bounds.late_s]
    for each in late[:_NAMED]:
        yield Reason(
            status="degraded",
            what=f"calls from SQL to {each.what}",
            problem=f"the oldest waits for {each.waited_s:.0f}s, and no runner moves it",
            hint=f"start a runner whose program has {each.what}, or drop them: {_DROP}",
        )
    if len(late) > _NAMED:
        problem = f"calls to {len(late) - _NAMED} more types wait"
        yield Reason(status="degraded", what="calls from SQL", problem=problem)


def queue_reasons(queue: QueueFacts, facts: ClusterFacts, bounds: Bounds = BOUNDS) -> Iterator[Reason]:
    """What is wrong with a queue. None of it is a runner's fault, so none becomes unready by it."""
    holders = {seat.name: seat.holder for seat in facts.view.seats}
    free = sum(holders.get(seat) is None and not _is_moving(seat, facts, bounds) for seat in queue.seats)
    for problem, hint in queues.troubles(queue, free=free):
        yield Reason(status="degraded", what=f"queue {queue.name}", problem=problem, hint=hint)


def _pruning(facts: ClusterFacts, bounds: Bounds) -> Iterator[Reason]:
    """Tables whose oldest rows are long overdue for pruning."""
    for table, late_s in sorted(facts.unpruned.items()):
        if late_s > bounds.unpruned_s:
            yield Reason(
                status="degraded",
                what=f"table {table}",
                problem=f"pruning is behind: its oldest row should have been deleted {late_s:.0f}s ago, and it grows",
                hint="the runners' logs say why ('not pruned'); each minute they delete all that is due",
            )


# Helpers


def _named(names: Sequence[str], *, between: str = ", ") -> str:
    """The first few names, and the number of the others."""
    more = len(names) - _NAMED
    return between.join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _name(row: RunnerRow) -> str:
    return row.name


def _ago(now: datetime, at: datetime) -> str:
    return f"{(now - at).total_seconds():.0f}s ago"
