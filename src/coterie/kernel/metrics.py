"""Metrics: plain numbers that the code counts in, each declared once, and read when they are published.

>>> calls = Meter("calls_total", "counter", "Calls that were handled", ("type",))
>>> accounts = calls.of("Account")  # once: this looks it up
>>> accounts.value += 1  # for each call

No locks: each number is counted by one thread, usually the runner's loop, and may be read by any. Several runners in
one process, as in tests, share them.

All metrics that coterie publishes are declared here; their documentation is generated from the declarations.

Four have the names by which singletons are monitored everywhere; all others begin with `coterie_`. A label has few
values: names of the program, or words from a short list. A runner publishes what happened in its own process; gauges
whose help says so count the whole cluster, as its health does, and are equal on all runners.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, product
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a local call to a long run."""

SERIES_MOST = 5_000
"""Label values are names of a program, which are few: beyond this number they share one series, `…`."""

_REST = "…"


class Series:
    """One number."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Spread:
    """The distribution of the values of a histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Counts up to each bound, and beyond the last one: not cumulative."""
        self.total = 0.0

    def see(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """The number of values up to each bound, by its text; the last one, `+Inf`, is all of them."""
        names = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


class Meter:
    """A metric: its declaration, and its numbers by the values of its labels. One for the whole process.

    Args:
        name: As published.
        kind: For counters and gauges `of` returns a `Series`, for histograms `spread` returns a `Spread`.
        help: Its description.
        labels: The names of its labels. Their values are names that the program chose, never ids.
        bounds: The upper bounds of a histogram.
    """

    __slots__ = ("bounds", "help", "kind", "labels", "name", "series", "spreads")

    def __init__(
        self, name: str, kind: Kind, help: str, labels: tuple[str, ...] = (), *, bounds: Sequence[float] = SECONDS
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.labels = labels
        self.bounds = bounds
        self.series: dict[tuple[str, ...], Series] = {}
        self.spreads: dict[tuple[str, ...], Spread] = {}

    def of(self, *values: str) -> Series:
        """The number for these label values."""
        assert self.kind != "histogram", f"{self.name} has a spread"
        found = self.series.get(values)
        if found is None:
            found = self.series.setdefault(self._bounded(values, len(self.series)), Series())
        return found

    def spread(self, *values: str) -> Spread:
        """The distribution for these label values."""
        assert self.kind == "histogram", f"{self.name} has no spread"
        found = self.spreads.get(values)
        if found is None:
            found = self.spreads.setdefault(self._bounded(values, len(self.spreads)), Spread(self.bounds))
        return found

    def forget(self) -> None:
        """Publish nothing until it is set again: for a gauge whose value is no longer known."""
        assert self.kind == "gauge", f"{self.name} counts what has happened, and that stays so"
        self.series.clear()

    def together(self) -> list[int]:
        """The counts per bound of the histogram, summed over all labels."""
        spreads = [spread.counts for spread in list(self.spreads.values())]
        return [sum(counts) for counts in zip(*spreads, strict=True)] or [0] * (len(self.bounds) + 1)

    def _bounded(self, values: tuple[str, ...], known: int) -> tuple[str, ...]:
        assert len(values) == len(self.labels), f"{self.name} has the labels {self.labels}, not {values}"
        return values if known < SERIES_MOST else (_REST,) * len(values)


_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 500.0)
_LONG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
_LEASE_SECONDS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 30.0)

ALL: list[Meter] = []
"""All metrics, in the order in which they are published."""


def _counter(name: str, help: str, labels: str = "") -> Meter:
    ALL.append(Meter(name, "counter", help, tuple(labels.split())))
    return ALL[-1]


def _gauge(name: str, help: str, labels: str = "") -> Meter:
    ALL.append(Meter(name, "gauge", help, tuple(labels.split())))
    return ALL[-1]


def _histogram(name: str, help: str, labels: str = "", *, bounds: Sequence[float] = SECONDS) -> Meter:
    ALL.append(Meter(name, "histogram", help, tuple(labels.split()), bounds=bounds))
    return ALL[-1]


# Singletons and crons

EXECUTION_DURATION = _histogram(
    "singleton_duration_seconds",
    "How long a run of a singleton's body, or an attempt of a cron's tick, took until it ended",
    "singleton type",
    bounds=_LONG_SECONDS,
)
EXECUTIONS = _counter(
    "singleton_executions_total",
    "Runs of a singleton's body, or attempts of a cron's ticks, that began here",
    "singleton type",
)
LAST_EXECUTION = _gauge(
    "singleton_last_execution",
    "When one of them last began, gave a sign of life or ended here, in seconds since 1970",
    "singleton type",
)
STATE_ERRORS = _counter(
    "singleton_state_errors_total",
    "States of a singleton that could not be read or saved, notes on a cron's tick that could not be written at once",
    "singleton type",
)
SINGLETON_FAILURES = _counter("coterie_singleton_failures_total", "Runs of a singleton's body that raised", "singleton")
CRON_TICKS = _counter(
    "coterie_cron_ticks_total", "Ticks that are over: ran, failed, or skipped for a reason", "cron outcome"
)
CRON_LATENESS = _histogram(
    "coterie_cron_lateness_seconds", "How long after it was due a tick began", "cron", bounds=_LONG_SECONDS
)

# The cluster

RUNNERS = _gauge("coterie_runners", "Runners that are registered, of the whole cluster")
HEALTHY_RUNNERS = _gauge("coterie_runners_healthy", "Runners that are healthy, of the whole cluster")
SHARDS = _gauge("coterie_shards", "Shards that are owned and orphaned, of the whole cluster", "state")
SINGLETONS = _gauge("coterie_singletons", "Singletons that are defined, of the whole cluster")
CRONS = _gauge("coterie_crons", "Crons that are defined, of the whole cluster")
HEALTH = _gauge("coterie_health", "1 for the word that the whole cluster's health comes to, 0 for the others", "status")
OLDEST_MESSAGE = _gauge(
    "coterie_oldest_message_seconds",
    "How long the persisted message has waited that is due longest, of the whole cluster",
)
PRUNE_OVERDUE = _gauge(
    "coterie_prune_overdue_seconds",
    "For how long the oldest row that should be gone should have been pruned, of the whole cluster",
    "table",
)
PRUNED_ROWS = _counter("coterie_pruned_rows_total", "Rows that were deleted because their time was over", "table")
OLDEST_INCOMING = _gauge(
    "coterie_oldest_incoming_seconds", "How long the oldest call from SQL has waited to be moved, of the whole cluster"
)
QUEUE_JOBS = _gauge(
    "coterie_queue_jobs",
    "Jobs that are waiting, running, scheduled (for later, or another attempt), parked (no runner has the task) or "
    "dead, of the whole cluster, counted up to a bound; default:* are the tasks of group default without a queue",
    "queue state",
)
QUEUE_OLDEST = _gauge(
    "coterie_queue_oldest_seconds",
    "How long the oldest job of a queue that may run has waited, of the whole cluster",
    "queue",
)
QUEUE_PAUSED = _gauge("coterie_queue_paused", "1 while a queue is paused, of the whole cluster", "queue")
DEAD_LETTERS = _gauge(
    "coterie_dead_letters", "Messages that were given up, of the whole cluster, counted up to a bound"
)

# This runner

READY = _gauge("coterie_ready", "1 while this runner is ready")
SEATS = _gauge("coterie_seats", "Seats (shards, singletons, crons) that this runner holds")
ENTITIES = _gauge("coterie_entities", "Entities that live on this runner", "type")
RUNNING = _gauge("coterie_calls_running", "Handlers at work")
WAITING = _gauge("coterie_mailbox_waiting", "Calls that wait in mailboxes")
THREADS = _gauge(
    "coterie_thread_bodies",
    "Plain functions that run in a thread (busy), wait for one (waiting), or were cancelled and still run (stubborn)",
    "state",
)
LOOP_LAG = _gauge("coterie_loop_lag_seconds", "The longest that the loop made a timer wait in the last seconds")
TLS_EXPIRES = _gauge(
    "coterie_tls_expires_timestamp_seconds", "When the certificate of this process, or every authority in tls_ca, ends"
)
LEASE_LEFT = _gauge("coterie_lease_left_seconds", "How long this runner may still trust its lease")
STORAGE_LATENCY = _gauge("coterie_storage_latency_seconds", "How long the database's last answer took")
CLOCK_OFFSET = _gauge("coterie_clock_offset_seconds", "This machine's clock, compared with the database's")
MEMORY = _gauge("coterie_memory_bytes", "Memory of this process that is resident")
CPU = _counter("coterie_cpu_seconds_total", "CPU time of this process")
LOOP_STALLS = _counter("coterie_loop_stalls_total", "Times that the loop was found blocked, for a second each")
TASK_FAILURES = _counter(
    "coterie_task_failures_total",
    "Times that an unexpected error ended a standing task, which begins again or is given up",
    "task",
)

# Calls

CALLS = _counter(
    "coterie_calls_total",
    "Calls that a handler has ended: ok, declared (an error that its rpc declares) or failed (any other)",
    "type rpc outcome",
)
CALL_DURATION = _histogram(
    "coterie_call_duration_seconds",
    "How long handlers took, of calls and of persisted messages, with what they committed",
    "type rpc",
)
MAILBOX_WAIT = _histogram(
    "coterie_mailbox_wait_seconds", "How long calls waited in a mailbox, of those that had to", "type"
)
REFUSED = _counter(
    "coterie_calls_refused_total",
    "Calls that this runner has not run to their end, by the code of the error, or not_mine",
    "type reason",
)
SENT_FAILED = _counter(
    "coterie_sent_calls_failed_total",
    "Calls from this process that ended with an error of the cluster, by its code",
    "type reason",
)
SENT_AGAIN = _counter(
    "coterie_sent_calls_repeated_total",
    "Attempts of calls from this process that followed one without an answer",
    "type",
)
ACTIVATIONS = _counter("coterie_activations_total", "Lives of entities that began, or could not", "type outcome")

# Persisted messages

MESSAGES_SENT = _counter("coterie_messages_sent_total", "Messages that this process has stored", "type rpc")
JOBS_SENT = _counter("coterie_jobs_sent_total", "Jobs that this process has stored", "task")
MESSAGES = _counter(
    "coterie_messages_total",
    "Attempts of persisted messages that have ended: ok, declared, retried (there will be another one),"
    " snoozed (put off), discarded or dead",
    "type rpc outcome",
)

INCOMING = _counter(
    "coterie_incoming_total",
    "Calls and starts of workflows from SQL that this runner has moved: sent, started, same (key as before) or dead",
    "outcome",
)

# Schedules and timers

SCHEDULED = _counter(
    "coterie_scheduled_total", "Instants of schedules and timers that this runner has sent or skipped", "outcome"
)

# Jobs

JOBS_STARTED = _counter("coterie_jobs_started_total", "Attempts of jobs that have begun here", "queue task")
JOBS = _counter(
    "coterie_jobs_total",
    "Attempts of jobs that have ended: ok, declared (an error that the task declares), retried (there will be another "
    "one), snoozed (put off), discarded, dead, cancelled or returned (given back)",
    "queue task outcome",
)
JOB_DURATION = _histogram(
    "coterie_job_duration_seconds", "How long an attempt of a job took, with its commit", "task", bounds=_LONG_SECONDS
)
JOB_WAIT = _histogram(
    "coterie_job_wait_seconds", "How long after it was due an attempt of a job began", "task", bounds=_LONG_SECONDS
)

# Workflows

WORKFLOWS = _counter(
    "coterie_workflows_total",
    "Times that a workflow was done, failed, interrupted, suspended or stuck, or began again",
    "workflow outcome",
)
STEPS = _counter(
    "coterie_steps_total", "Steps of workflows, ticks and leaders that have ended, ok or failed", "outcome"
)

# Storage

COMMIT_DURATION = _histogram("coterie_commit_duration_seconds", "How long the commit of a group of writes took")
GROUP_SIZE = _histogram("coterie_commit_group_size", "How many writes shared a commit", bounds=_SIZES)
STORAGE_ERRORS = _counter(
    "coterie_storage_errors_total",
    "Commits, reads and renewals of the lease that failed: refused, unreachable, or unknown whether they happened",
    "operation outcome",
)
UNREADABLE_ROWS = _counter(
    "coterie_unreadable_rows_total", "Times that a row could not be read and was left out, by its table", "table"
)
FENCED = _counter("coterie_fenced_writes_total", "Writes that were refused because their seat had another holder")

# Transport

FRAMES = _counter("coterie_frames_total", "Frames sent to and received from other processes", "direction")
BYTES = _counter("coterie_transport_bytes_total", "Bytes of those frames", "direction")
CONNECTIONS = _gauge("coterie_connections", "Connections to other processes that are open")
CONNECTIONS_OPENED = _counter(
    "coterie_connections_opened_total", "Connections that were opened, by us or by the peer", "by"
)

# Ownership

SEATS_ACQUIRED = _counter("coterie_seats_acquired_total", "Seats that this runner took", "kind")
TAKEOVERS = _counter("coterie_takeovers_total", "Those of them that their holder before had not given back", "kind")
EVICTIONS = _counter(
    "coterie_evictions_total",
    "Runners that this one evicted: lease (run out), process (gone), or itself for a blocked loop: stall",
    "reason",
)
FAILOVERS = _counter(
    "coterie_failovers_total",
    "Times that the database was found to be another server or timeline: acknowledged work may be missing",
)
RENEWALS = _counter("coterie_lease_renewals_total", "Renewals of this runner's lease, ok or failed", "outcome")
LEASE_MARGIN = _histogram(
    "coterie_lease_margin_seconds",
    "How long the lease could still be trusted when it was renewed",
    bounds=_LEASE_SECONDS,
)

# Series that are certain to come are published from the start: a rate misses the first value of a new series.

_KNOWN: list[tuple[Meter, Sequence[tuple[str, ...]]]] = [
    *((each, [()]) for each in ALL if each.kind == "counter" and not each.labels),
    (STORAGE_ERRORS, list(product(("commit", "read", "write", "lease"), ("refused", "unreachable", "unknown")))),
    (EVICTIONS, [("lease",), ("process",), ("stall",)]),
    (RENEWALS, [("ok",), ("failed",)]),
    (STEPS, [("ok",), ("failed",)]),
    (SCHEDULED, [("sent",), ("skipped",)]),
    (INCOMING, [("sent",), ("started",), ("same",), ("dead",)]),
    *((each, [("shard",), ("singleton",), ("cron",), ("incoming",)]) for each in (SEATS_ACQUIRED, TAKEOVERS)),
]
for _meter, _known in _KNOWN:
    for _values in _known:
        _meter.of(*_values)
