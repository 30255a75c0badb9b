"""A user's SQL transaction on any engine: opened by its first statement, rolled back at its time limit [C3, m18].

new ──a statement──▶ open ──commit──▶ ended
 │                    ├──an error, rollback──▶ ended, nothing is written
 │                    └──the limit──▶ late: rolled back, whatever the user's code is awaiting
 └──commit──▶ ended: without SQL and workflows to start, the handler's writes join a group commit
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from coterie.errors import PersistenceError, TransactionTimeout
from coterie.kernel import metrics
from coterie.storage.contracts.messages import Transaction
from coterie.storage.contracts.units import require_same

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from coterie.kernel.service import Tasks
    from coterie.storage.contracts.jobs import JobEnd, NewJob
    from coterie.storage.contracts.messages import Commit, Committed, Message
    from coterie.storage.contracts.units import UnitStart

T = TypeVar("T")

_FAILED = "an earlier statement of it failed"
_ENDED = "it has ended"
_BACK = "it was rolled back"
_HINTS = {_ENDED: "use it inside of its block only", _BACK: "nothing of it is written"}

UNDONE = "the transaction is rolled back, nothing of it is written"
"""The hint of an error that has ended a transaction."""


class SqlResult(NamedTuple):
    """The rows of a statement, by column name, and the number of rows that it changed."""

    rows: Sequence[Mapping[str, Any]]
    changed: int


class Collected(NamedTuple):
    """What a transaction starts and sends with its commit, beside its statements."""

    starts: Sequence[UnitStart]
    sends: Sequence[Message]
    jobs: Sequence[NewJob]


def overtaken() -> PersistenceError:
    """The error of a transaction that sends with a key which another one has got since it was looked up."""
    return PersistenceError(
        doing="commit a transaction",
        problem="another message or job with the key of one that it sends was stored meanwhile",
        hint="nothing of it is written; run it again, and the send finds that one",
    )


class TransactionEngine(Protocol):
    """What an engine does for one transaction. Calls are serial; `close` comes last."""

    async def begin(self, *, over: float) -> None:
        """Open it; `over` is its deadline on the loop's clock."""
        ...

    async def run(self, sql: str, params: Sequence[Any]) -> SqlResult:
        """Run a statement."""
        ...

    async def commit(self, write: Commit | JobEnd | None, collected: Collected) -> Committed:
        """Add what was collected and the handler's writes, and commit; any result but "written" means rolled back.

        Raises:
            TimeoutError: The deadline passed before the commit began.
            KeyConflict: There is a run with the id of one of the workflows, and another payload.
            PersistenceError: Among others: `overtaken`.
        """
        ...

    async def close(self) -> None:
        """Roll back what is not committed and release the connection. Never raises."""
        ...


class OpenedTransaction(Transaction):
    """A transaction that a storage has opened, encrypted or not."""

    tasks: Tasks
    """Those of its storage: by them a transaction of another storage is told."""


class UserTransaction(OpenedTransaction):
    """The user's own SQL, committed with a handler's writes. See `storage.contracts.messages.Transaction`.

    Args:
        ground: The engine's part.
        what: Names the database in errors.
        limit_s: How long it may be open, from its first statement to the commit.
        tasks: Runs the rollback in the background.
        alone: Commits the handler's writes if there was no statement.

    Promise:
        At its time limit it is rolled back, even while the user's code awaits something else. Any error rolls it back,
        too. A commit in progress is not interrupted; its result is reported.
    """

    def __init__(
        self,
        ground: TransactionEngine,
        *,
        what: str,
        limit_s: float,
        tasks: Tasks,
        alone: Callable[[Commit | JobEnd], Awaitable[Committed]],
    ) -> None:
        self._ground = ground
        self._what = what
        self._doing = f"use a transaction of {what}"
        self._limit_s = limit_s
        self.tasks = tasks
        self._alone = alone
        self._turn = asyncio.Lock()  # a handler may use it from several tasks
        self._began: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._step: asyncio.Timeout | None = None
        self._closing: asyncio.Task[None] | None = None
        self._open = False
        self._ended = ""
        self._late = False
        self._starts: dict[str, UnitStart] | None = {}
        self._sends: list[Message] = []
        self._jobs: list[NewJob] = []
        self._then: list[Callable[[], object]] = []

    def start(self, start: UnitStart, *, then: Callable[[], object]) -> None:
        """Start a workflow with the commit; `then` is called after that."""
        starts = self._collected()
        if start.debounced:  # the last one counts
            starts[start.unit] = start
        require_same(start, starts.setdefault(start.unit, start).digest)
        self._then.append(then)

    @property
    def sends(self) -> Sequence[Message]:
        """The messages that it sends so far; raises if nothing can be added any more."""
        self._collected()
        return self._sends

    def send(self, message: Message, *, then: Callable[[], object]) -> None:
        """Send a message with the commit; `then` is called after that."""
        self._collected()
        self._sends.append(message)
        self._then.append(then)

    @property
    def jobs(self) -> Sequence[NewJob]:
        """The jobs that it stores so far; raises if nothing can be added any more."""
        self._collected()
        return self._jobs

    def add_job(self, job: NewJob, *, then: Callable[[], object]) -> None:
        """Store a job with the commit; `then` is called after that."""
        self._collected()
        self._jobs.append(job)
        self._then.append(then)

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Return the number of rows changed."""
        return (await self._run(lambda: self._ground.run(sql, params))).changed

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Return the rows, by column name."""
        return (await self._run(lambda: self._ground.run(sql, params))).rows

    async def commit(self, write: Commit | JobEnd | None) -> Committed:
        """Commit with the writes of a handler or job, if there are any; any result but "written" means rolled back."""
        starts, self._starts = self._starts or {}, None
        if (starts or self._sends or self._jobs) and self._began is None:
            await self._run(_nothing)
        collected = Collected([starts[unit] for unit in sorted(starts)], self._sends, self._jobs)  # in one order [M3]
        told = await self._commit(write, collected)
        for then in self._then if told == "written" else ():
            then()
        return told

    def _collected(self) -> dict[str, UnitStart]:
        """The workflows that it starts so far; raises if nothing can be added any more."""
        self._require_open()
        if self._starts is None:
            raise PersistenceError(doing=self._doing, problem=_ENDED, hint=_HINTS[_ENDED])
        return self._starts

    async def _commit(self, write: Commit | JobEnd | None, collected: Collected) -> Committed:
        async with self._turn:
            self._require_open()
            if self._began is None:
                self._ended = _ENDED
                return "written" if write is None else await self._alone(write)
            self._stop_the_clock()  # the engine enforces the deadline now: a commit must not be interrupted
            try:
                told = await self._ground.commit(write, collected)
                metrics.FENCED.of().value += told == "fenced"
                return told
            except TimeoutError as error:
                self._expire()
                raise self._over() from error
            finally:
                self._end(_ENDED)

    async def rollback(self) -> None:
        """Roll back. Never raises."""
        if self._began is None:
            self._ended = self._ended or _BACK
        else:
            await asyncio.shield(asyncio.gather(self._end(_BACK), return_exceptions=True))

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        async with self._turn:
            self._require_open()
            over = self._start_the_clock()
            try:
                async with asyncio.timeout_at(over) as self._step:
                    if not self._open:
                        await self._ground.begin(over=over)
                        self._open = True
                    return await work()
            except TimeoutError as error:
                if self._time() >= over:  # else it was ended by another task
                    self._expire()
                raise self._over() from error
            except BaseException:
                self._end(_FAILED)
                raise
            finally:
                self._step = None

    def _require_open(self) -> None:
        if self._ended:
            raise self._over()

    def _over(self) -> TransactionTimeout | PersistenceError:
        """The error for a transaction that has ended."""
        if self._late and not self._open:
            problem = f"no connection for it was free within {self._limit_s:g}s"
            hint = "let fewer of them be open at once, or raise pool_size"
            return PersistenceError(doing=self._doing, problem=problem, outcome="unreachable", hint=hint)
        if self._late:
            waited_s = self._time() - (self._began or 0.0)
            return TransactionTimeout(target=self._what, waited_s=round(waited_s, 3), limit_s=self._limit_s)
        hint = _HINTS.get(self._ended, UNDONE)
        return PersistenceError(doing=self._doing, problem=self._ended, hint=hint)

    def _start_the_clock(self) -> float:
        if self._began is None:
            self._began = self._time()
            self._timer = asyncio.get_running_loop().call_at(self._began + self._limit_s, self._expire)
        return self._began + self._limit_s

    def _stop_the_clock(self) -> None:
        assert self._timer is not None, "it runs since the first statement"
        self._timer.cancel()

    def _expire(self) -> None:
        if not self._ended:
            self._late = True
            self._end("its time is over")

    def _end(self, why: str) -> asyncio.Task[None]:
        """Refuse further statements and roll back in the background, once."""
        if self._closing is None:
            self._ended = why
            self._stop_the_clock()
            self._closing = self.tasks.spawn(self._close(), name="end a transaction")
        return self._closing

    async def _close(self) -> None:
        try:
            if self._step is not None and not self._step.expired():
                self._step.reschedule(self._time())  # interrupts the running statement
            async with self._turn:
                pass
        finally:
            await self._ground.close()

    def _time(self) -> float:
        return asyncio.get_running_loop().time()


async def _nothing() -> None:
    """Opens a transaction that has no statements of its own."""
