"""The cluster context: which runner runs this work, for which caller, as what; available in every handler [K4]."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypedDict, Unpack

from coterie.errors import ClusterContextRequired

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime

    from coterie.kernel.ids import MessageId, ShardId


class Cancellation:
    """Whether a body in a thread is to end. Set on the loop, read in the thread."""

    __slots__ = ("is_set",)

    def __init__(self) -> None:
        self.is_set = False


_cancellation: ContextVar[Cancellation | None] = ContextVar("coterie_cancellation", default=None)
"""The cancellation of the body that runs in this thread; None: it is no such body."""

_progress: ContextVar[Callable[[float, float | None, str], None] | None] = ContextVar("coterie_progress", default=None)
"""Stores how far the job that runs here is; None: this is no job."""

enter_progress = _progress.set
"""Sets what `current().progress` calls from here on, in this context. It may be called in any thread."""
report_progress = _progress.get
"""What `current().progress` calls here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """What is known about the current work. Fields that do not apply are None."""

    runner_id: str | None = None
    """The incarnation of the runner."""
    runner_address: str | None = None
    """The address at which other runners reach it: `10.0.0.5:7650`."""
    shard: ShardId | None = None
    entity_type: str | None = None
    entity_id: str | None = None
    name: str | None = None
    """The name of the singleton, cron, workflow or task."""
    is_leader: bool = False
    epoch: int | None = None
    """The fencing token: pass it to your own resources that can compare numbers."""
    seat: str | None = None
    """The seat of the work: `shard:default:42`, `singleton:importer`. Durable writes prove that it is held at this
    epoch, and are refused if it no longer is (K1)."""
    message_id: MessageId[Any] | None = None
    key: str | None = None
    """The idempotency key that the caller gave."""
    attempt: int | None = None
    """From 1."""
    deadline: datetime | None = None
    """When the caller stops waiting."""
    trace_id: str | None = None
    _cancellation: Cancellation | None = field(
        default_factory=lambda: _cancellation.get(), init=False, repr=False, compare=False
    )
    _progress: Callable[[float, float | None, str], None] | None = field(
        default_factory=lambda: _progress.get(), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.deadline is not None and self.deadline.tzinfo is None:
            raise ValueError(f"deadline {self.deadline} has no time zone: add one, as in datetime.now(UTC)")

    @property
    def cancelled(self) -> bool:
        """Whether a plain function that runs in a thread should end: its caller has given up, its time is over, or
        its seat was lost. What it returns from then on is discarded. Coroutines get `CancelledError` instead.
        """
        return self._cancellation is not None and self._cancellation.is_set

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far this job is: `current().progress(3, 10, "invoices")`. Page, CLI and `cluster.jobs` show it.

        Call it as often as you like, also from threads: it is stored at most once a second. Nothing happens where there
        is no job, as when its function is called plainly.
        """
        if self._progress is not None:
            self._progress(float(done), None if total is None else float(total), note)


class ContextFields(TypedDict, total=False):
    """The fields of `ClusterContext`, as arguments of `within_cluster`."""

    runner_id: str | None
    runner_address: str | None
    shard: ShardId | None
    entity_type: str | None
    entity_id: str | None
    name: str | None
    is_leader: bool
    epoch: int | None
    seat: str | None
    message_id: MessageId[Any] | None
    key: str | None
    attempt: int | None
    deadline: datetime | None
    trace_id: str | None


class ContextSource(Protocol):
    """Work that makes its context on demand: most handlers never need it, and it costs microseconds."""

    def cluster_context(self) -> ClusterContext: ...


_current: ContextVar[ClusterContext | ContextSource] = ContextVar("coterie_context")


class OpenTransaction(NamedTuple):
    """A transaction whose block must end before anything else is committed."""

    who: str
    """The work that has it open."""
    transaction: Any


transacting: ContextVar[OpenTransaction | None] = ContextVar("coterie_transacting", default=None)
"""The transaction that a leader or a tick has open here; None: there is none."""


def current() -> ClusterContext:
    """The context of the current work.

    Raises:
        ClusterContextRequired: This is no cluster work, nor inside `within_cluster`.
    """
    found = _made()
    if found is None:
        raise ClusterContextRequired
    return found


context_here = _current.get
"""The source of the current context, or that context; the given default if there is neither."""


def trace_here() -> str | None:
    """The trace to which the current work belongs; None if there is none, or no context at all."""
    return None if _current.get(None) is None else current().trace_id


def work_here() -> ClusterContext | None:
    """The context of the current work; None outside of cluster work."""
    return _made()


enter = _current.set
"""Sets the source, or the context, that `current` uses from here on, in this context."""


def enter_thread(cancellation: Cancellation) -> None:
    """Make `current().cancelled` show a cancellation, in the context of a body that begins in a thread."""
    _cancellation.set(cancellation)
    found = _current.get(None)
    if isinstance(found, ClusterContext):  # made before, on the loop
        _current.set(replace(found))


def refuse_in_transaction(what: object, *, instead: str = "") -> None:
    """Refuse a separate commit while database locks are held here: on SQLite it needs the same lock [C3].

    `what` is converted to text only then.
    """
    opened = transacting.get()
    if opened is not None:
        raise RuntimeError(
            f"{what} needs a commit of its own, and {opened.who} has a transaction open, which holds locks until its "
            f"block ends: do it before or after the block{instead and f', {instead}'}"
        )


def within_cluster(**fields: Unpack[ContextFields]) -> AbstractContextManager[ClusterContext]:
    """Open a context by hand, for threads and tests. Inside another one, fields that are not given are inherited.

        >>> with within_cluster(entity_type="Account", entity_id="alice"):
        ...     current().entity_id
        'alice'

    Promise:
        The block and tasks started in it see it; tasks started before and other threads never do.
    """
    return _within(fields)


@contextmanager
def _within(fields: ContextFields) -> Iterator[ClusterContext]:
    outer = _made() or ClusterContext()
    inner = replace(outer, **fields)
    token = _current.set(inner)
    try:
        yield inner
    finally:
        _current.reset(token)


def _made() -> ClusterContext | None:
    found = _current.get(None)
    if found is None or isinstance(found, ClusterContext):
        return found
    made = found.cluster_context()
    _current.set(made)
    return made
