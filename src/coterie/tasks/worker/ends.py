"""Writes what became of attempts, until it is known what is stored.

outcome ──▶ written ─────────────────▶ over: what it sent is handed over
   ▲  ▲        │ unreachable, unknown: the same write again: a claim ends once
   │  └────────┤
   │           │ refused, a key taken, the user's SQL failed
   └── failed ◀┘
               │ fenced, gone, cancelled
               └─────────────────────▶ over: somebody else has decided
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Literal

from coterie.errors import PersistenceError, ShuttingDown
from coterie.kernel import chaos, metrics
from coterie.kernel.ids import Seat
from coterie.storage.contracts.jobs import JobEnd
from coterie.tasks.frames import REPLY_MOST_BYTES, JobOver

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.storage.contracts.jobs import JobEnded, JobStore
    from coterie.tasks.worker.attempt import AttemptOutcome, JobRun

log = logging.getLogger("coterie.tasks")

_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Pauses between two tries while the database is unreachable: a short outage only delays the end of a job."""


class JobEnds:
    """Writes the ends and setbacks of the jobs of one runner.

    Args:
        store: Where jobs are stored.
        is_mine: Whether an incarnation is the current one of this runner: others can write nothing any more.
        hand_over: Passes on what a job has sent, once that is stored.

    Promise:
        What it returns is what is stored, or the runner is another one by then.
    """

    def __init__(
        self, store: JobStore, *, is_mine: Callable[[str], bool], hand_over: Callable[[JobEnd], object]
    ) -> None:
        self._store = store
        self._is_mine = is_mine
        self._hand_over = hand_over

    async def write(self, run: JobRun, outcome: AttemptOutcome) -> JobOver | None:
        """Write the outcome of an attempt. Returns what its queue's holder is told; None: it is to be given back."""
        told: JobEnded | Literal["given back"] | BaseException
        while True:
            told = await self._written(run, outcome)
            if told == "taken":
                told = PersistenceError(
                    doing=f"end {run}",
                    problem="another message or job with the key of one that it sends was stored meanwhile",
                    hint="nothing of it is written; the next attempt finds that one",
                )
            if not isinstance(told, BaseException):
                break
            outcome = run.failed(told, by_body=False)
        if told == "cancelled" and outcome.transaction is not None:  # it was rolled back: the job still has to end
            run.undo()
            return None
        return None if told == "given back" else self._over(run, outcome, told)

    async def _written(self, run: JobRun, outcome: AttemptOutcome) -> JobEnded | Literal["given back"] | BaseException:
        """Write until the result is known. An error: the attempt has failed by it."""
        if outcome.write is None:
            return "given back"
        if outcome.transaction is not None:
            return await self._with_transaction(outcome)
        pause_s, write = _PAUSE_S, outcome.write
        while self._is_mine(write.runner):
            try:
                if isinstance(write, JobEnd):
                    return await self._store.end(write)
                return await self._store.setback(write)
            except ShuttingDown:
                break
            except PersistenceError as error:
                if error.outcome == "refused" and isinstance(write, JobEnd):
                    return error
                level = logging.WARNING if error.outcome == "refused" else logging.INFO
                log.log(level if pause_s == _PAUSE_S else logging.DEBUG, "the end of %s waits: %s", run, error)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)
        return "fenced"

    async def _with_transaction(self, outcome: AttemptOutcome) -> JobEnded | BaseException:
        """Commit with the user's SQL. An unknown outcome is not repeated: that would need the body to run again.

        The doubt does not last: the setback that follows finds the claim gone if this was committed.
        """
        assert outcome.transaction is not None
        assert isinstance(outcome.write, JobEnd), "whatever else became of it, its effects are undone"
        if chaos.on:
            await chaos.point("committing.before_transaction")
        try:
            told = await outcome.transaction.commit(outcome.write)
        except Exception as error:  # noqa: BLE001 our own errors, or a user's statement that failed
            return error
        assert told != "stale", "a job has no state"
        return told

    def _over(self, run: JobRun, outcome: AttemptOutcome, told: JobEnded) -> JobOver:
        job, claim = run.claim
        name = outcome.name if told == "written" else told
        queue, outcome_name = Seat.queue_name(run.delivery.seat), "cancelled" if name in ("fenced", "gone") else name
        metrics.JOBS.of(queue, run.delivery.task, outcome_name).value += 1
        if told != "written":
            log.info("%s has ended otherwise, nothing of this attempt is stored: %s", run, told)
            return JobOver(job, claim)
        write = outcome.write
        if isinstance(write, JobEnd):
            if write.sends or write.jobs:
                self._hand_over(write)
            return JobOver(job, claim, reply=write.reply if len(write.reply) <= REPLY_MOST_BYTES else None)
        assert write is not None, "it was written"
        if write.again_s is None:
            log.error("%s is dead after %d attempts: %r", run, run.delivery.failures + 1, outcome.error)
            return JobOver(job, claim)
        return JobOver(job, claim, "later", again_s=write.again_s)
