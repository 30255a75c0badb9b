"""Group commit: writes that arrive while a commit is under way share the next one [M3].

One task per process folds what has queued. Nobody waits for a timer: a lone write is committed at once, and a
busy queue makes large groups by itself. Members stay independent: each gets its own result, and a group that
the database refuses as a whole is run again member by member, so nobody sees a neighbour's error.

An engine whose writers take turns lets those in that queued while it waited for its own (`Group.close`): they share its
commit, instead of waiting for another turn.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading  # noqa: TID251 a lock only: the thread that closes a group is its engine's
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from coterie.errors import PersistenceError
from coterie.kernel import chaos, metrics
from coterie.kernel.coroutines import enter_task, leave_task, remaining_steps
from coterie.kernel.service import Service, State
from coterie.kernel.supervisor import Supervisor
from coterie.storage.interface import GROUP_MOST, WAITING_MOST, Write

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from coterie.errors import Outcome

    Commit = Callable[["Group"], Awaitable[Sequence[Any]]]
    Member = tuple[Write, "Waiter"]

log = logging.getLogger("coterie")

_IN_A_ROW = 8
"""After so many groups of one the next write is begun at once. Where more come together it would only be the first one
of them, split off: a commit for itself."""

_took, _sizes, _fenced = metrics.COMMIT_DURATION.spread(), metrics.GROUP_SIZE.spread(), metrics.FENCED.of()


class Waiter(Protocol):
    """Who is told what became of a write, on the loop: a future, or something that needs no turn of its own for it."""

    def set_result(self, result: Any, /) -> None:
        """It is durable. May raise `InvalidStateError`: nobody wants to know any more."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """It is not, or nobody knows. The same."""
        ...


class Group(list[Write]):
    """Writes that share a transaction, in the order in which they queued.

    Args:
        members: Those that it begins with.
        queue: Where others wait.
        most: How many there may be.
    """

    __slots__ = ("_most", "_queue", "members")
    _lock = threading.Lock()  # nobody may join while it is decided who is to be told of a failure; one does for all

    def __init__(self, members: list[Member], *, queue: deque[Member] | None = None, most: int = 0) -> None:
        super().__init__([write for write, _ in members])
        self.members = members
        self._queue = queue
        self._most = most

    def close(self) -> None:
        """Let those in that have queued since; nobody joins later. From any thread."""
        with self._lock:
            queue, self._queue = self._queue, None
            while queue and len(self.members) < self._most:
                member = queue.popleft()
                self.members.append(member)
                self.append(member[0])

    def seal(self) -> None:
        """Let nobody in any more: what it has now is all that is told, also if it is written later."""
        with self._lock:
            self._queue = None


class GroupWriter(Service):
    """Folds concurrent writes into few transactions.

    Args:
        commit: Runs a group in one transaction and returns one result per member, in order; it may `close` the group
            when its turn has come. It raises `PersistenceError`; with the outcome "refused" nothing of the group was
            written.
        most: Members of one group at most.
        waiting_most: Writes that may wait; the next one is refused.
        supervisor: The one of this process.

    Promise:
        A write whose `write()` returned is durable. A caller that is cancelled leaves its write in the queue:
        it may or may not happen, like any write whose caller is gone.
    """

    def __init__(
        self,
        commit: Commit,
        *,
        most: int = GROUP_MOST,
        waiting_most: int = WAITING_MOST,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(what="group writer")
        self._supervisor = supervisor or Supervisor()
        self._commit = commit
        self._most = most
        self._waiting_most = waiting_most
        self._queue: deque[Member] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._is_lent = False  # somebody commits in a task of its own
        self._alone = 0  # so many groups of one in a row
        self._begun: _Begun | None = None
        self.groups = 0
        self.members = 0
        self.reruns = 0

    async def write(self, write: Write) -> Any:
        """Return the write's result once it is durable."""
        return await self.submit(write)

    async def write_here(self, write: Write) -> Any:
        """As `write`, but if nobody else writes, in the task of the caller, which need not wait for another one.

        For those who are hardly ever cancelled in the middle: what they have begun is cancelled, too, and with some
        engines the connection goes with it.
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
            if self._queue and self._idle is not None:  # another one than before if the fold has begun again
                self._wake(self._idle)
        return done.result()

    def submit(self, write: Write) -> asyncio.Future[Any]:
        """Queue a write; what is returned has its result once it is durable. For those who need no task to wait."""
        if self.state is not State.RUNNING:
            self.require_running()
        done = self._create_future()
        self.post(write, done)
        return done

    def post(self, write: Write, waiter: Waiter) -> None:
        """Queue a write; `waiter` is told what became of it."""
        if self.state is not State.RUNNING:
            self.require_running()
        queue, idle = self._queue, self._idle
        if len(queue) >= self._waiting_most:
            raise PersistenceError(
                doing="queue a write",
                problem=f"{len(queue)} writes are waiting already",
                hint="slow down, or wait for earlier writes first",
            )
        queue.append((write, waiter))
        if idle is not None and not self._is_lent:
            self._wake(idle)

    def _wake(self, idle: asyncio.Future[None]) -> None:
        """Have what has queued committed: where it is always one, at once, as far as that goes without waiting."""
        self._idle = None
        if idle.done():
            return  # cancelled
        idle.set_result(None)
        if self._alone >= _IN_A_ROW and not chaos.on:
            self._begun = self._ahead(self._taken(self._most))

    def _ahead(self, group: Group) -> _Begun | None:
        """Take a group to the engine; None: it has ended already."""
        commit, loop, caller, me = self._commit_and_tell(group), self._loop, asyncio.current_task(), self._folder
        if caller is not None:
            leave_task(loop, caller)
        enter_task(loop, me)  # what it takes for its task goes on with it
        try:
            return _Begun(group, commit, self._context.run(commit.send, None))
        except StopIteration:
            return None
        finally:
            leave_task(loop, me)
            if caller is not None:
                enter_task(loop, caller)

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[Any]] = loop.create_future
        self._loop = loop
        self._call_soon = loop.call_soon
        self._time = loop.time
        self._context = contextvars.copy_context()
        self._folder = self.tasks.supervise(self._fold, name="commit groups", supervisor=self._supervisor)

    async def _stop(self) -> None:
        while self._queue:
            _tell_failure(self._queue.popleft()[1], _stopping("unreachable"))

    async def _fold(self) -> None:
        self._idle = None  # of the fold before, if an error ended that one
        while True:
            if not self._queue or self._is_lent:
                self._idle = self._create_future()
                try:
                    await self._idle
                except BaseException as error:
                    begun, self._begun, self._idle = self._begun, None, None
                    if begun is not None:
                        begun.commit.close()
                        _fail(begun.group, _cut_short(error))
                    raise
            begun, self._begun = self._begun, None
            commit: Awaitable[None]
            if begun is not None:
                group, commit = begun.group, remaining_steps(self._context, begun.commit, begun.waits_for)
            elif self._queue:
                if chaos.on:
                    await chaos.point("groups.before_commit")
                group = self._taken(1 if chaos.on and chaos.flip("groups.of_one") else self._most)
                commit = self._commit_and_tell(group)
            else:
                continue  # what was begun ahead has ended
            try:
                await commit
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
        except PersistenceError as error:
            group.seal()
            metrics.STORAGE_ERRORS.of("commit", error.outcome).value += 1
            if error.outcome == "refused" and len(group) > 1:
                self.reruns += 1
                while group.members:
                    await self._commit_and_tell(Group(group.members[:1]))
                    del group.members[0]  # it has been told: should the next one be cut short, those are that are left
            else:
                _fail(group, error)
        except Exception as error:
            log.exception("a commit of %d writes was cut short; whether it happened is not known", len(group))
            unknown = _cut_short(error)
            unknown.__cause__ = error
            _fail(group, unknown)
        else:
            self._count(results, self._time() - began_s)
            if self._queue and len(results) > 1:  # the next group comes first: to tell them takes a while
                self._call_soon(_tell, group.members, results)
            else:
                _tell(group.members, results)

    def _count(self, results: Sequence[Any], took_s: float) -> None:
        self.members += len(results)
        self._alone = self._alone + 1 if len(results) == 1 else 0
        _took.see(took_s)
        _sizes.see(len(results))
        _fenced.value += fenced(results)


class _Begun(NamedTuple):
    """A commit whose first step was taken elsewhere."""

    group: Group
    commit: Coroutine[Any, Any, None]
    waits_for: Any


def _cut_short(error: BaseException) -> PersistenceError:
    """What those are told whose commit was cut short: whether it happened is not known."""
    if isinstance(error, asyncio.CancelledError):
        return _stopping("unknown")
    return PersistenceError(doing="write", problem=f"the commit was cut short by {error!r}", outcome="unknown")


def _stopping(outcome: Outcome) -> PersistenceError:
    return PersistenceError(doing="write", problem="the process is shutting down", outcome=outcome)


def fenced(results: Sequence[Any]) -> int:
    """How many writes were refused because their seat is somebody else's; some tell more than that word."""
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
            pass  # it has left
        except Exception as error:  # noqa: BLE001 a bug above must not cost the neighbours their results
            _report(error)


def _fail(group: Group, error: Exception) -> None:
    group.seal()
    for _, waiter in group.members:
        _tell_failure(waiter, error)


def _tell_failure(waiter: Waiter, error: Exception) -> None:
    try:
        waiter.set_exception(error)
    except asyncio.InvalidStateError:
        pass  # it has left
    except Exception as problem:  # noqa: BLE001 as above
        _report(problem)


def _report(error: Exception) -> None:
    message = "whoever waited for a write failed"
    asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
