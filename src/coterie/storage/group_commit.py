"""Group commit: writes that arrive while a commit is in progress share the next transaction [M3].

One task per process commits what has queued. There is no timer: a lone write is committed at once, and a busy queue
forms large groups by itself. Members stay independent: each gets its own result, and a group that the database
refuses as a whole is run again member by member, so that no caller sees the error of another caller's write.

A member that would keep the others waiting for a key, which a user's transaction holds, leaves: the engine raises
`WriteBlocked` when it is alone, and it is written apart from then on, with later messages of its key.

An engine that waits for a write lock adds the writes that queued meanwhile (`Group.close`): they share its commit
instead of waiting for the lock again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading  # noqa: TID251 a lock only: the engine's thread closes the group
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Protocol

from coterie.errors import PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.service import Service, State
from coterie.kernel.supervisor import Supervisor
from coterie.storage.contracts.jobs import JobInsert
from coterie.storage.contracts.messages import Insert
from coterie.storage.interface import GROUP_MOST, WAITING_MOST, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from coterie.errors import Outcome
    from coterie.kernel.fork_guard import ProcessOrigin
    from coterie.storage.contracts.jobs import JobEnd, JobEnded, JobReceipt, JobSetback
    from coterie.storage.contracts.messages import Commit, Committed, Message, Receipt, Setback, Suffered

    CommitGroup = Callable[["Group"], Awaitable[Sequence[Any]]]
    Member = tuple[Write, "Waiter"]

log = logging.getLogger("coterie")

_APART_MOST = 1_000
"""Members that may be written apart at once."""

_took, _sizes, _fenced = metrics.COMMIT_DURATION.spread(), metrics.GROUP_SIZE.spread(), metrics.FENCED.of()


class WriteBlocked(Exception):
    """Raised by an engine for a lone write that waits for a key of another transaction."""


class Waiter(Protocol):
    """Receives the result of a write on the event loop. Usually a future; hot paths pass a plain callback object."""

    def set_result(self, result: Any, /) -> None:
        """The write is durable. May raise `InvalidStateError` if the caller no longer waits."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """The write failed, or its outcome is unknown. May raise like `set_result`."""
        ...


class Group(list[Write]):
    """Writes that share a transaction, in the order in which they queued.

    Args:
        members: The initial members.
        queue: The queue of writes that may still join.
        most: The maximum number of members.
    """

    __slots__ = ("_most", "_queue", "members")
    _lock = threading.Lock()  # no write may join while a failure is reported to the members; one for all groups

    def __init__(self, members: list[Member], *, queue: deque[Member] | None = None, most: int = 0) -> None:
        super().__init__([write for write, _ in members])
        self.members = members
        self._queue = queue
        self._most = most

    def close(self) -> None:
        """Add the writes that have queued since; none can join later. Thread-safe."""
        with self._lock:
            queue, self._queue = self._queue, None
            while queue and len(self.members) < self._most:
                member = queue.popleft()
                self.members.append(member)
                self.append(member[0])

    def seal(self) -> None:
        """Let no more writes join: only the present members get a result, even if the engine writes later."""
        with self._lock:
            self._queue = None


def _forked() -> None:
    """In a forked child: another thread of the parent may have held the lock [P13]."""
    Group._lock = threading.Lock()  # noqa: SLF001 the module's own class


os.register_at_fork(after_in_child=_forked)


class GroupWriter(Service):
    """Combines concurrent writes into few transactions.

    Args:
        commit: Runs a group in one transaction and returns one result per member, in order; it may `close` the group
            once it holds the write lock. It raises `PersistenceError`; with the outcome "refused" nothing of the group
            was written.
        apart: Writes one that was blocked, however long that takes, beside all others.
        most: Maximum number of members of a group.
        waiting_most: Maximum number of queued writes; further ones are refused.
        supervisor: The supervisor of this process.

    Promise:
        A write whose `write()` returned is durable. A caller that is cancelled leaves its write in the queue:
        it may or may not happen, like any write whose caller is gone.
    """

    def __init__(
        self,
        commit: CommitGroup,
        *,
        apart: Callable[[Write], Awaitable[Any]] | None = None,
        most: int = GROUP_MOST,
        waiting_most: int = WAITING_MOST,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(what="group writer")
        self._supervisor = supervisor or Supervisor()
        self._commit = commit
        self._apart = apart
        self._blocked: Counter[Hashable] = Counter()
        """What is written apart, by the key of the message; None: a handler's commit."""
        self._most = most
        self._waiting_most = waiting_most
        self._queue: deque[Member] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._is_lent = False  # a caller commits in its own task (`write_here`)
        self.groups = 0
        self.members = 0
        self.reruns = 0

    async def write(self, write: Write) -> Any:
        """Return the write's result once it is durable."""
        return await self.submit(write)

    async def write_here(self, write: Write) -> Any:
        """Like `write`, but commits in the caller's task if no other write is in progress, which saves a task switch.

        For callers that are rarely cancelled: cancellation also cancels the commit, and with some engines closes the
        connection.
        """
        idle = self._idle
        if idle is None or self._is_lent:
            return await self.submit(write)
        self.require_running()
        done = self._create_future()
        self._is_lent = True
        try:
            await self._commit_and_tell(Group([(write, done)]))
        finally:
            self._is_lent = False
            if self._queue and self._idle is not None:  # a new future if `_fold` was restarted meanwhile
                self._wake(self._idle)
        return done.result() if done.done() else await done

    def submit(self, write: Write) -> asyncio.Future[Any]:
        """Queue a write; the returned future has its result once durable. Saves callers a task to wait in."""
        if self.state is not State.RUNNING:
            self.require_running()
        done = self._create_future()
        self.post(write, done)
        return done

    def post(self, write: Write, waiter: Waiter) -> None:
        """Queue a write; `waiter` receives its result."""
        if self.state is not State.RUNNING:
            self.require_running()
        queue, idle = self._queue, self._idle
        if len(queue) >= self._waiting_most:
            raise PersistenceError(
                doing="queue a write",
                problem=f"{len(queue)} writes are waiting already",
                hint="slow down, or wait for earlier writes first",
            )
        if self._blocked and (key := _key(write)) is not None and key in self._blocked:
            self._leave(write, waiter)
            return
        queue.append((write, waiter))
        if idle is not None and not self._is_lent:
            self._wake(idle)

    def _wake(self, idle: asyncio.Future[None]) -> None:
        """Start committing the queue."""
        self._idle = None
        if not idle.done():  # else it was cancelled
            idle.set_result(None)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[Any]] = loop.create_future
        self._call_soon = loop.call_soon
        self._time = loop.time
        self.tasks.supervise(self._fold, name="commit groups", supervisor=self._supervisor)

    async def _stop(self) -> None:
        while self._queue:
            _tell_failure(self._queue.popleft()[1], _stopping("unreachable"))

    async def _fold(self) -> None:
        while True:
            while not self._queue or self._is_lent:
                self._idle = self._create_future()
                try:
                    await self._idle
                finally:
                    self._idle = None
            if chaos.on:
                await chaos.point("groups.before_commit")
            group = self._taken(1 if chaos.on and chaos.flip("groups.of_one") else self._most)
            try:
                await self._commit_and_tell(group)
            except BaseException as error:
                _fail(group, _cut_short(error))
                raise

    def _taken(self, most: int) -> Group:
        queue = self._queue
        return Group([queue.popleft() for _ in range(min(most, len(queue)))], queue=queue, most=most)

    async def _commit_and_tell(self, group: Group) -> None:
        self.groups += 1
        began_s = self._time()
        try:
            results = await self._commit(group)
        except WriteBlocked:
            group.seal()
            for member in group.members:
                self._leave(*member)
        except PersistenceError as error:
            group.seal()
            metrics.STORAGE_ERRORS.of("commit", error.outcome).value += 1
            if error.outcome == "refused" and len(group) > 1:
                self.reruns += 1
                while group.members:
                    await self._commit_and_tell(Group(group.members[:1]))
                    del group.members[0]  # it has its result: if the next commit fails, only the others get the error
            else:
                _fail(group, error)
        except Exception as error:
            log.exception("a commit of %d writes was cut short; whether it happened is not known", len(group))
            unknown = _cut_short(error)
            unknown.__cause__ = error
            _fail(group, unknown)
        else:
            self._count(results, self._time() - began_s)
            if self._queue and len(results) > 1:  # start the next group first: delivering many results takes a while
                self._call_soon(_tell, group.members, results)
            else:
                _tell(group.members, results)

    def _leave(self, write: Write, waiter: Waiter) -> None:
        """Write a member apart from the groups."""
        assert self._apart is not None, "an engine that blocks has a way"
        if self._blocked.total() >= _APART_MOST:
            _tell_failure(waiter, _held_up(self._blocked.total()))
            return
        self._blocked[_key(write)] += 1
        self.tasks.spawn(self._write_apart(self._apart, write, waiter), name="write apart", report=False)

    async def _write_apart(self, apart: Callable[[Write], Awaitable[Any]], write: Write, waiter: Waiter) -> None:
        began_s = self._time()
        try:
            result = await apart(write)
        except PersistenceError as error:
            metrics.STORAGE_ERRORS.of("commit", error.outcome).value += 1
            _tell_failure(waiter, error)
        except BaseException as error:
            _tell_failure(waiter, _cut_short(error))
            raise
        else:
            self._count([result], self._time() - began_s)
            _tell([(write, waiter)], [result])
        finally:
            key = _key(write)
            self._blocked[key] -= 1
            if not self._blocked[key]:
                del self._blocked[key]

    def _count(self, results: Sequence[Any], took_s: float) -> None:
        self.members += len(results)
        _took.see(took_s)
        _sizes.see(len(results))
        _fenced.value += fenced(results)


class MessageWriter:
    """The part of a `storage.contracts.messages.MessageStore` that writes through the group writer."""

    _writer: GroupWriter
    _origin: ProcessOrigin

    def insert(self, message: Message) -> asyncio.Future[Receipt]:
        """Store a message."""
        return self._submit(Insert(message))

    def commit(self, write: Commit) -> asyncio.Future[Committed]:
        """Durable when it results in "written"."""
        return self._submit(write)

    def setback(self, write: Setback) -> asyncio.Future[Suffered]:
        """Record a failed attempt."""
        return self._submit(write)

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        """Insert or commit; `waiter` receives the result."""
        self._origin.require_same()
        self._writer.post(write, waiter)

    def _submit(self, write: Insert | Commit | Setback) -> asyncio.Future[Any]:
        self._origin.require_same()
        return self._writer.submit(write)


class JobWriter:
    """The part of a `storage.contracts.jobs.JobStore` that writes through the group writer."""

    _writer: GroupWriter
    _origin: ProcessOrigin

    def insert(self, write: JobInsert) -> asyncio.Future[tuple[JobReceipt, ...]]:
        """Store jobs, all or none."""
        return self._submit(write)

    def end(self, write: JobEnd) -> asyncio.Future[JobEnded]:
        """End a job, with what it sends."""
        return self._submit(write)

    def setback(self, write: JobSetback) -> asyncio.Future[JobEnded]:
        """Record a failed attempt, or one that is put off."""
        return self._submit(write)

    def _submit(self, write: JobInsert | JobEnd | JobSetback) -> asyncio.Future[Any]:
        self._origin.require_same()
        return self._writer.submit(write)


def _key(write: Write) -> Hashable:
    """What the key of a message or job must be unique for; None: it has none, or the write is no insert of one."""
    if type(write) is JobInsert and len(write.jobs) == 1 and write.jobs[0].key is not None:
        return "job", write.jobs[0].task, write.jobs[0].key
    if type(write) is not Insert or write.message.key is None:
        return None
    message = write.message
    return message.entity_type, message.entity_id, message.method, message.key


def _held_up(waiting: int) -> PersistenceError:
    return PersistenceError(
        doing="write",
        problem=f"{waiting} writes wait already for keys that open transactions hold",
        hint="commit or roll back transactions with via= soon; pg_stat_activity shows open ones",
    )


def _cut_short(error: BaseException) -> PersistenceError:
    """The error for the members of an interrupted commit: its outcome is unknown."""
    if isinstance(error, asyncio.CancelledError):
        return _stopping("unknown")
    return PersistenceError(doing="write", problem=f"the commit was cut short by {error!r}", outcome="unknown")


def _stopping(outcome: Outcome) -> PersistenceError:
    return PersistenceError(doing="write", problem="the process is shutting down", outcome=outcome)


def fenced(results: Sequence[Any]) -> int:
    """The number of writes refused because another runner holds their seat; some results carry it as `told`."""
    if len(results) == 1:
        return int(getattr(results[0], "told", results[0]) == "fenced")
    if all(kind is str or not hasattr(kind, "told") for kind in set(map(type, results))):
        return results.count("fenced")
    return sum(getattr(result, "told", result) == "fenced" for result in results)


def _tell(members: Sequence[Member], results: Sequence[Any]) -> None:
    for (_, waiter), result in zip(members, results, strict=True):
        try:
            waiter.set_result(result)
        except asyncio.InvalidStateError:
            pass  # the caller no longer waits
        except Exception as error:  # noqa: BLE001 a bug in one waiter must not cost the other members their results
            _report(error)


def _fail(group: Group, error: Exception) -> None:
    group.seal()
    for _, waiter in group.members:
        _tell_failure(waiter, error)


def _tell_failure(waiter: Waiter, error: Exception) -> None:
    try:
        waiter.set_exception(error)
    except asyncio.InvalidStateError:
        pass  # the caller no longer waits
    except Exception as problem:  # noqa: BLE001 as above
        _report(problem)


def _report(error: Exception) -> None:
    message = "the callback of a committed write raised"
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
