"""Builds the pages of the read model from one reading of the cluster. Pure, except for `ViewReader`."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.entities.persisted.api import Messages
from coterie.kernel.ids import Seat
from coterie.observe import failures
from coterie.observe.failures import worded
from coterie.observe.health import excluded, judge, queue_reasons
from coterie.observe.jobs import queues
from coterie.observe.rates import Rate, rates, together
from coterie.observe.view import (
    PAGES,
    CronLine,
    EntityLine,
    JobsPage,
    MessagesPage,
    OverdueLine,
    Overview,
    RunnerLine,
    Shard,
    ShardGroup,
    Shards,
    SingletonLine,
    View,
    WorkflowLine,
)
from coterie.ownership.assignment import targets
from coterie.storage.contracts.jobs import JobFilter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime
    from typing import Literal

    from coterie.client import Client
    from coterie.cron.api import CronInfo
    from coterie.entities.persisted.api import MessageInfo
    from coterie.observe.facts import ClusterFacts, LocalFacts
    from coterie.observe.health import Health
    from coterie.observe.view import QueueLine
    from coterie.singletons.api import SingletonInfo
    from coterie.storage.contracts.jobs import JobRow
    from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow
    from coterie.workflows.api import WorkflowInfo


def runners(facts: ClusterFacts, happening: Mapping[str, Rate]) -> tuple[RunnerLine, ...]:
    """The runners, by name."""
    held: dict[str | None, list[str]] = {}
    for seat in facts.view.seats:
        held.setdefault(seat.holder, []).append(seat.name)
    rows = sorted(facts.view.runners, key=lambda row: (row.name, row.id))
    return tuple(_runner(row, facts, held.get(row.id, []), happening.get(row.id)) for row in rows)


def _runner(row: RunnerRow, facts: ClusterFacts, held: Sequence[str], happening: Rate | None) -> RunnerLine:
    local = facts.runners.get(row.id)
    others = sorted(Seat.split(seat) for seat in held if not Seat.is_shard(seat))
    line = RunnerLine(
        id=row.id,
        name=row.name,
        address=row.address,
        groups=row.groups,
        weight=row.weight,
        started_at=row.started_at,
        state=_state(row, local),
        missing="" if local is None else local.missing,
        shards=len(held) - len(others),
        leads=tuple(name for kind, name in others if kind == "singleton"),
        crons=tuple(name for kind, name in others if kind == "cron"),
    )
    return line if local is None or happening is None else _said(line, local, happening)


def _said(line: RunnerLine, local: LocalFacts, happening: Rate) -> RunnerLine:
    """The line with the runner's own facts added."""
    return msgspec.structs.replace(
        line,
        version=local.version,
        up_s=local.up_s,
        entities=sum(local.entities.values()),
        waiting=local.waiting,
        running=local.running,
        calls_s=happening.calls_s,
        p50_s=happening.p50_s,
        p99_s=happening.p99_s,
        cpu=happening.cpu,
        memory_bytes=local.memory_bytes,
        loop_lag_s=local.loop_lag_s,
        storage_s=local.storage_s,
        clock_offset_s=local.clock_offset_s,
        lease_left_s=local.lease_left_s,
        threads_busy=local.threads_busy,
        threads_most=local.threads_most or None,
        threads_waiting=local.threads_waiting,
        stubborn=local.stubborn,
    )


def _state(row: RunnerRow, local: LocalFacts | None) -> Literal["ready", "starting", "draining", "no answer"]:
    if row.leaving or (local is not None and local.is_draining):
        return "draining"
    if local is None:
        return "no answer"
    return "ready" if local.is_ready else "starting"


def shards(view: ClusterSnapshot) -> Shards:
    """All shards, by group and number."""
    wanted, names = targets(view.runners, view.shards), {row.id: row.name for row in view.runners}
    all_of = sorted((_shard(seat, wanted, names) for seat in view.shards), key=attrgetter("group", "number"))
    groups = sorted({each.group for each in all_of})
    return Shards(groups=tuple(_group(group, all_of, view.runners) for group in groups), shards=tuple(all_of))


def _shard(seat: SeatRow, wanted: dict[str, str], names: dict[str, str]) -> Shard:
    (_, shard), target = Seat.split(seat.name), wanted.get(seat.name)
    return Shard(
        shard=shard,
        group=seat.group,
        number=int(shard.rpartition(":")[2]),
        owner=None if seat.holder is None else names.get(seat.holder),
        epoch=seat.epoch,
        state="no owner" if seat.holder is None else "owned" if target in (None, seat.holder) else "moving",
        target=None if target is None else names[target],
    )


def _group(group: str, all_of: list[Shard], runners: tuple[RunnerRow, ...]) -> ShardGroup:
    mine = [each for each in all_of if each.group == group]
    serving = sorted((row for row in runners if group in row.groups), key=lambda row: row.name)
    owned = Counter(each.owner for each in mine)
    counts = {row.name: owned[row.name] for row in serving}
    shares = [counts[row.name] / row.weight for row in serving if not row.leaving]
    least = min(shares, default=0.0)
    return ShardGroup(
        group=group,
        shards=len(mine),
        owned=sum(each.owner is not None for each in mine),
        moving=sum(each.state == "moving" for each in mine),
        runners=counts,
        balance=max(shares) / least if least else None,
        oldest_epoch=min(each.epoch for each in mine),
        newest_epoch=max(each.epoch for each in mine),
    )


def singleton(info: SingletonInfo, facts: ClusterFacts, *, texts: bool = True) -> SingletonLine:
    """A singleton."""
    why = excluded(Seat.singleton(info.name), facts) if info.leader is None else ""
    return SingletonLine(
        name=info.name,
        group=info.group,
        leader=info.leader,
        epoch=info.epoch,
        since_at=info.since_at,
        alive_at=info.alive_at,
        progress_at=info.last_heartbeat_at,
        last_run_at=info.last_run_at,
        runs=info.run_count,
        note=info.note if texts else "",
        done=info.done,
        total=info.total,
        error=None if info.last_error is None else worded(info.last_error, texts=texts),
        error_at=info.last_error_at,
        expected_interval_s=None if info.expected_interval is None else info.expected_interval.total_seconds(),
        problem="; ".join(filter(None, [info.problem, why])),
    )


def cron(info: CronInfo, facts: ClusterFacts, *, texts: bool = True) -> CronLine:
    """A cron."""
    latest = info.latest
    is_overdue = info.problem.startswith("overdue") and info.next_at is not None
    failed = latest is not None and latest.outcome == "failed" and latest.errors
    return CronLine(
        name=info.name,
        schedule=info.schedule,
        timezone=info.timezone,
        explained=info.explained,
        group=info.group,
        runner=info.runner,
        epoch=info.epoch,
        next_at=info.next_at,
        overdue_s=(facts.now - info.next_at).total_seconds() if is_overdue and info.next_at else None,
        missed=_missed(info, facts.now) if is_overdue else 0,
        paused_at=info.paused_at,
        last_run_at=info.last_run_at,
        took_s=None if latest is None or latest.took is None else latest.took.total_seconds(),
        outcome=None if latest is None else latest.outcome,
        error=worded(latest.errors[-1], texts=texts) if latest is not None and failed else None,
        failures=info.failures,
        running=info.running,
        runs=info.run_count,
        problem=_why(info, facts) if info.problem else "",
    )


def _missed(info: CronInfo, now: datetime) -> int:
    """The number of ticks since the overdue one, including it."""
    from coterie.cron.schedule import Schedule  # zones and calendars: only where there are crons

    assert info.next_at is not None, "it is overdue"
    schedule = Schedule(info.schedule, timezone=info.timezone, cron=info.name)
    return max(schedule.count(info.next_at, now), 1)


def _why(info: CronInfo, facts: ClusterFacts) -> str:
    """Why it is overdue, or has no holder."""
    view = facts.view
    if info.runner is not None:
        return f"{info.runner} holds it"
    knowing = [row for row in view.runners if Seat.cron(info.name) in row.knows]
    if not any(info.group in row.groups for row in view.runners):
        return f'no runner serves group "{info.group}"'
    if not knowing:
        return "no runner's program defines it"
    if not any(info.group in row.groups for row in knowing):
        return f'no runner that defines it serves group "{info.group}"'
    return "; ".join(filter(None, ["nobody holds it", excluded(Seat.cron(info.name), facts)]))


def entities(facts: ClusterFacts) -> tuple[EntityLine, ...]:
    """Entity types, by name."""
    replies = {row.name: facts.runners.get(row.id) for row in facts.view.runners}
    types = sorted({name for each in replies.values() if each is not None for name in each.entities})
    is_complete = None not in replies.values()
    return tuple(_entities(each, replies, is_complete=is_complete) for each in types)


def _entities(name: str, replies: Mapping[str, LocalFacts | None], *, is_complete: bool) -> EntityLine:
    known = {runner: each.entities.get(name, 0) for runner, each in replies.items() if each is not None}
    where = {runner: count for runner, count in known.items() if count}
    return EntityLine(type=name, resident=sum(where.values()), runners=where, is_complete=is_complete)


def workflow(info: WorkflowInfo) -> WorkflowLine:
    """A run of a workflow."""
    return WorkflowLine(
        name=info.name,
        id=info.id,
        kind=info.kind,
        status=info.status,
        interrupting=info.interrupting,
        steps=info.steps,
        started_at=info.started_at,
        changed_at=info.changed_at,
        ended_at=info.ended_at,
        wake_at=info.wake_at,
        error=info.error,
        stuck=info.stuck,
    )


def without_text(line: WorkflowLine) -> WorkflowLine:
    """The same without the messages of its errors."""
    error, stuck = (each and worded(each, texts=False) for each in (line.error, line.stuck))
    return msgspec.structs.replace(line, error=error, stuck=stuck)


_DEAD_MOST = 200
"""Dead messages that are read: enough to show why they died."""
_OVERDUE_MOST = 20
_WORKFLOWS_MOST = 100


class ViewReader:
    """Reads a cluster for display, and keeps the previous reading to compute rates.

    Args:
        here: The process that reads: a runner or a client.
    """

    def __init__(self, here: Client) -> None:
        self._here = here
        self._revision = 0
        self._facts: ClusterFacts | None = None
        self._rates: dict[str, Rate] = {}

    async def read(self, pages: Collection[str] = PAGES, *, within_s: float = 0.0, texts: bool = True) -> View:
        """Read pages, all from one collection of facts.

        Args:
            pages: Which ones.
            within_s: How old the facts may be: concurrent callers share one read.
            texts: Whether to include texts of the program: notes, and error messages besides their type.

        Raises:
            PersistenceError: The database could not be read.
        """
        assert set(pages) <= set(PAGES), f"there are {PAGES}"
        facts = await self._fresh(within_s)
        dead = await self._dead(facts) if {"overview", "messages"} & set(pages) else []
        workflows = await self._workflows() if "workflows" in pages else ()
        dead_jobs = await self._dead_jobs(facts) if {"overview", "jobs"} & set(pages) else ()
        data = Pages(judge(facts), self._rates, dead, workflows, dead_jobs=dead_jobs, texts=texts)
        local = self._here.facts()
        self._revision += 1  # messages and workflows are read each time
        return View(
            revision=self._revision,
            at=facts.now,
            runner=None if local is None else local.name,
            data={page: getattr(data, page)() for page in PAGES if page in pages},
        )

    async def _fresh(self, within_s: float) -> ClusterFacts:
        collector = self._here.collector
        recent = await collector.recent(within_s=within_s) if within_s else None
        is_fresh = recent is not None and recent.facts is not None and recent.age_s <= within_s
        facts = (
            recent.facts if is_fresh and recent is not None and recent.facts is not None else await collector.collect()
        )
        if facts is not self._facts:
            before: Mapping[str, LocalFacts | None] = {} if self._facts is None else self._facts.runners
            self._rates = rates(before, facts.runners)
            self._facts = facts
        return facts

    async def _dead(self, facts: ClusterFacts) -> Sequence[MessageInfo]:
        if not facts.dead:
            return []
        messages = Messages(lambda: self._here.storage.messages)
        return await messages.list(status="dead", limit=_DEAD_MOST)

    async def _dead_jobs(self, facts: ClusterFacts) -> Sequence[JobRow]:
        if not any(each.dead for each in facts.queues):
            return ()
        return await self._here.storage.jobs.list(JobFilter(state="dead"), most=_DEAD_MOST)

    async def _workflows(self) -> tuple[WorkflowLine, ...]:
        from coterie.workflows.api import Workflows

        found = await Workflows(lambda: self._here).list(limit=_WORKFLOWS_MOST)
        return tuple(workflow(each) for each in found)


class Pages:
    """The pages, built from collected data. Pure.

    Args:
        health: The health of the cluster, with the facts.
        happening: The rates of each runner, by its incarnation.
        dead: Dead messages, some of them.
        workflows: Runs of workflows.
        dead_jobs: Dead jobs, some of them.
        texts: Whether to include texts of the program.
    """

    def __init__(
        self,
        health: Health,
        happening: Mapping[str, Rate],
        dead: Sequence[MessageInfo] = (),
        workflows: tuple[WorkflowLine, ...] = (),
        *,
        dead_jobs: Sequence[JobRow] = (),
        texts: bool = True,
    ) -> None:
        self._dead_jobs = dead_jobs
        self._health = health
        self._facts = health.facts
        self._happening = happening
        self._dead = dead
        self._workflows = workflows
        self._texts = texts

    def overview(self) -> Overview:
        """Health, leaders, next cron runs, failures."""
        health, all_of = self._health, together(self._happening.values())
        return Overview(
            status=health.status,
            reasons=health.reasons,
            runners=health.runners,
            healthy_runners=health.healthy_runners,
            shards=health.shards,
            owned_shards=health.owned_shards,
            entities=health.entities,
            calls_s=None if all_of is None else all_of.calls_s,
            p50_s=None if all_of is None else all_of.p50_s,
            p99_s=None if all_of is None else all_of.p99_s,
            waiting=self._sum("waiting"),
            running=self._sum("running"),
            dead=self._facts.dead,
            incoming=sum(each.rows for each in self._facts.incoming),
            overdue_s=0.0 if self._facts.oldest is None else self._facts.oldest.late_s,
            singletons=self._singletons,
            crons=self._crons,
            queues=self._queues,
            dead_jobs=sum(each.dead for each in self._facts.queues),
            failures=(
                *failures.messages(self._dead, texts=self._texts),
                *failures.jobs(self._dead_jobs, texts=self._texts),
                *failures.crons(self._facts.crons, texts=self._texts),
            ),
        )

    def runners(self) -> Any:
        """The runners, by name."""
        return runners(self._facts, self._happening)

    def shards(self) -> Any:
        """The shards and their holders."""
        return shards(self._facts.view)

    def singletons(self) -> Any:
        """The singletons and their leaders."""
        return self._singletons

    def cron(self) -> Any:
        """The crons and their ticks."""
        return self._crons

    def entities(self) -> Any:
        """The entity types and where their entities are active."""
        return entities(self._facts)

    def messages(self) -> MessagesPage:
        """Pending and dead messages."""
        overdue = self._facts.overdue[:_OVERDUE_MOST]
        return MessagesPage(
            waiting=self._sum("waiting"),
            running=self._sum("running"),
            dead=self._facts.dead,
            incoming=self._facts.incoming,
            overdue=tuple(
                OverdueLine(id=each.id, what=each.what, shard=Seat.split(each.seat)[1], late_s=each.late_s)
                for each in overdue
            ),
            failures=failures.messages(self._dead, texts=self._texts),
        )

    def jobs(self) -> JobsPage:
        """Queues, and dead jobs."""
        return JobsPage(
            queues=self._queues,
            dead=sum(each.dead for each in self._facts.queues),
            failures=failures.jobs(self._dead_jobs, texts=self._texts),
        )

    def workflows(self) -> Any:
        """Runs of workflows."""
        return self._workflows if self._texts else tuple(without_text(each) for each in self._workflows)

    @cached_property
    def _singletons(self) -> tuple[SingletonLine, ...]:
        return tuple(singleton(each, self._facts, texts=self._texts) for each in self._facts.singletons)

    @cached_property
    def _crons(self) -> tuple[CronLine, ...]:
        return tuple(cron(each, self._facts, texts=self._texts) for each in self._facts.crons)

    @cached_property
    def _queues(self) -> tuple[QueueLine, ...]:
        problems = {each.name: [why.problem for why in queue_reasons(each, self._facts)] for each in self._facts.queues}
        return tuple(queues.line(each, self._facts, problems[each.name]) for each in self._facts.queues)

    def _sum(self, field: str) -> int | None:
        """The sum over all runners; None if not all of them replied."""
        replies = [self._facts.runners.get(row.id) for row in self._facts.view.runners]
        known = [getattr(each, field) for each in replies if each is not None]
        return sum(known) if len(known) == len(replies) else None
