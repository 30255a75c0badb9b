"""The read model: what is shown of a cluster, as plain data, the same for the command line, the web page and scripts.

A `View` has the requested pages. In JSON, ids are strings, instants are RFC 3339 in UTC, fields that end in `_s` are in
seconds. Unknown values are null, never 0. Names of fields stay; later versions may add some.

overview    `Overview`: health, leaders, next cron runs, failures
runners     a list of `RunnerLine`
shards      `Shards`: groups, and every shard
singletons  a list of `SingletonLine`
cron        a list of `CronLine`
entities    a list of `EntityLine`
messages    `MessagesPage`: pending and dead messages
jobs        `JobsPage`: queues, and dead jobs
workflows   a list of `WorkflowLine`, those that changed last first
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.observe.facts import Incoming
    from coterie.observe.health import Reason, Status
    from coterie.work.threads import StubbornBody

PAGES = ("overview", "runners", "shards", "singletons", "cron", "entities", "messages", "jobs", "workflows")


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Pages, all read at one moment."""

    revision: int
    """Increases with each reading by the process that answers."""
    at: datetime
    """The time of reading, by the database's clock."""
    runner: str | None
    """The name of the runner that answers; None: a client."""
    data: dict[str, Any]
    """The pages by name."""


class RunnerLine(msgspec.Struct, frozen=True, kw_only=True):
    """A runner. The fields from `version` on are its own facts: all of them are None if it did not reply."""

    id: str
    name: str
    address: str
    groups: tuple[str, ...]
    weight: float
    started_at: datetime
    state: Literal["ready", "starting", "draining", "no answer"]
    missing: str
    """What it waits for before it is ready."""
    shards: int
    leads: tuple[str, ...]
    """Singletons that it leads."""
    crons: tuple[str, ...]
    version: str | None = None
    up_s: float | None = None
    entities: int | None = None
    """Active entities."""
    waiting: int | None = None
    """Calls in mailboxes."""
    running: int | None = None
    """Running handlers."""
    calls_s: float | None = None
    """Calls and messages handled per second."""
    p50_s: float | None = None
    p99_s: float | None = None
    cpu: float | None = None
    """Share of one core that it uses: 1.0 is all of it."""
    memory_bytes: int | None = None
    loop_lag_s: float | None = None
    storage_s: float | None = None
    clock_offset_s: float | None = None
    lease_left_s: float | None = None
    threads_busy: int | None = None
    """Plain functions that run in threads."""
    threads_most: int | None = None
    """How many may run at once; None also if its version does not say it."""
    threads_waiting: int | None = None
    """Plain functions that wait for a thread."""
    stubborn: tuple[StubbornBody, ...] = ()
    """Those that were cancelled and still run, the first few."""


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard."""

    shard: str
    """`default:42`."""
    group: str
    number: int
    owner: str | None
    """The name of the runner that holds it."""
    epoch: int
    state: Literal["owned", "moving", "no owner"]
    target: str | None
    """The runner that should hold it; None: no runner serves its group."""


class ShardGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of one group."""

    group: str
    shards: int
    owned: int
    moving: int
    runners: dict[str, int]
    """The number that each runner of the group holds, by its name."""
    balance: float | None
    """The largest number on a runner divided by the smallest, by their weights; None: a runner has none."""
    oldest_epoch: int
    newest_epoch: int


class Shards(msgspec.Struct, frozen=True, kw_only=True):
    """All shards."""

    groups: tuple[ShardGroup, ...]
    shards: tuple[Shard, ...]


class SingletonLine(msgspec.Struct, frozen=True, kw_only=True):
    """A singleton."""

    name: str
    group: str
    leader: str | None
    epoch: int
    since_at: datetime | None
    """When this leadership began."""
    alive_at: datetime | None
    """The last heartbeat."""
    progress_at: datetime | None
    last_run_at: datetime | None
    runs: int
    note: str
    """The last progress note of its body, with `done` of `total`."""
    done: int | None
    total: int | None
    error: str | None
    error_at: datetime | None
    expected_interval_s: float | None
    problem: str
    """What is wrong; empty: nothing."""


class CronLine(msgspec.Struct, frozen=True, kw_only=True):
    """A cron."""

    name: str
    schedule: str
    timezone: str
    explained: str
    """The schedule in words."""
    group: str
    runner: str | None
    epoch: int
    next_at: datetime | None
    overdue_s: float | None
    """For how long its next tick has been due, if that is too long."""
    missed: int
    """The number of ticks since then."""
    paused_at: datetime | None
    last_run_at: datetime | None
    took_s: float | None
    outcome: str | None
    """Outcome of the last tick that ran or failed."""
    error: str | None
    """Error of that tick, if it failed."""
    failures: int
    """Consecutive failures, up to now."""
    running: int
    runs: int
    problem: str
    """Why it is overdue, or has no holder; empty: nothing is wrong."""


class EntityLine(msgspec.Struct, frozen=True, kw_only=True):
    """An entity type."""

    type: str
    resident: int
    runners: dict[str, int]
    """The number of active entities by the runner's name."""
    is_complete: bool
    """Whether all runners have replied."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure: messages or jobs that died for one reason, or the last run of a cron."""

    kind: Literal["messages", "jobs", "cron"]
    what: str
    """`Account.charge`, `send_email`, `cleanup`."""
    count: int
    error: str
    first_at: datetime | None
    last_at: datetime | None
    id: str | None
    """Id of the last such message or job."""


class OverdueLine(msgspec.Struct, frozen=True, kw_only=True):
    """The message of a shard that has been overdue longest."""

    id: str
    what: str
    """`Account/alice.charge`."""
    shard: str
    late_s: float


class MessagesPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages."""

    waiting: int | None
    """Calls in mailboxes of all runners; None: not all have replied."""
    running: int | None
    dead: int
    """Counted up to a bound."""
    incoming: tuple[Incoming, ...]
    """What SQL has sent and no runner has taken in yet, by type, the longest waiting first."""
    overdue: tuple[OverdueLine, ...]
    failures: tuple[Failure, ...]
    """Dead messages by failure, as far as they were read."""


class QueueLine(msgspec.Struct, frozen=True, kw_only=True):
    """A queue of jobs. Numbers are counted up to a bound."""

    name: str
    """As the program names it; `default:*` are the tasks of group `default` that have no queue."""
    group: str
    runners: tuple[str, ...]
    """Who holds its seat, and so decides what starts; several without a queue."""
    waiting: int
    oldest_s: float | None
    """How long the oldest waiting job has been due; None: none waits."""
    running: int
    scheduled: int
    """Jobs that wait for their time, or for another attempt."""
    parked: int
    """Jobs of tasks that no living runner of the group has."""
    dead: int
    concurrency: int | None
    """How many may run at once; None: no limit."""
    partition_concurrency: int | None
    rate: float | None
    """How many may start in a second; None: no limit."""
    is_set: bool
    """Whether its limits were set at run time: they beat those of the program."""
    paused_at: datetime | None
    expected_wait_s: float | None
    """The age of the oldest waiting job from which on it is degraded."""
    problem: str
    """What is wrong; empty: nothing."""


class JobsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs."""

    queues: tuple[QueueLine, ...]
    dead: int
    """Of all queues, counted up to a bound in each."""
    failures: tuple[Failure, ...]
    """Dead jobs by failure, as far as they were read."""


class WorkflowLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a workflow, or other durable work that has not ended."""

    name: str
    id: str
    kind: str
    status: str
    interrupting: bool
    steps: int
    started_at: datetime
    changed_at: datetime
    ended_at: datetime | None
    wake_at: datetime | None
    error: str | None
    stuck: str | None = None
    """Why it cannot go on with the present code; it is tried again."""


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The first screen."""

    status: Status
    reasons: tuple[Reason, ...]
    runners: int
    healthy_runners: int
    shards: int
    owned_shards: int
    entities: int | None
    calls_s: float | None
    """Calls and messages handled per second, by the runners that have replied."""
    p50_s: float | None
    p99_s: float | None
    waiting: int | None
    running: int | None
    dead: int
    incoming: int
    """Calls and starts from SQL that no runner has taken in yet, counted up to a bound."""
    overdue_s: float
    """For how long the most overdue message has been due."""
    singletons: tuple[SingletonLine, ...]
    crons: tuple[CronLine, ...]
    queues: tuple[QueueLine, ...]
    dead_jobs: int
    """Counted up to a bound in each queue."""
    failures: tuple[Failure, ...]
