"""One side of a run: where its script stands, what it was told, whether it waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import asyncpg

from tests.support.interleaving.scripts import COMMIT, Rows, Script, Side, Step
from tests.support.interleaving.sessions import HELD_COMMIT, Gone, Session

if TYPE_CHECKING:
    import asyncio

    from coterie.kernel.service import Tasks

End = Literal["", "done", "stopped", "given up", "lost"]

AGAIN = {"40P01", "55P03", "40001"}
"""Deadlock, lock timeout, serialization failure: the database asks for another try."""


@dataclass(slots=True)
class SessionOutcome:
    """What a session knows after a run.

    Attributes:
        reads: The rows of each step, of its last try.
        committed: The steps that it knows to be committed.
        failures: SQLSTATEs of what was refused, in order.
        end: "done", "stopped" by its own rule, "given up" after its tries, or "lost".
    """

    reads: dict[str, Rows] = field(default_factory=dict)
    committed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    end: End = ""

    def rows(self, step: str) -> Rows | None:
        """What a step returned, if the session knows that it is committed."""
        return self.reads[step] if step in self.committed else None


class Track:
    """Plays one script, a step at each turn."""

    def __init__(self, side: Side, script: Script, session: Session, tasks: Tasks) -> None:
        self.side = side
        self.told = SessionOutcome()
        self.session = session
        self.zombie = False  # the client is gone, the server may still be at work for it
        self.waiting = False
        self._script = script
        self._tasks = tasks
        self._place = 0
        self._opened: int | None = None  # where the open transaction began
        self._tries = 1
        self.task: asyncio.Task[Rows] | None = None

    @property
    def next(self) -> Step:
        """The step whose turn is next."""
        return self._script.steps[self._place]

    @property
    def doing(self) -> str:
        """The step whose turn it was last."""
        return self._script.steps[self._place - 1].name

    @property
    def ready(self) -> bool:
        """Whether it can take a turn. One that waits for a lock cannot, but can get lost there."""
        if self.told.end or self.task is None:
            return not self.told.end
        return self._place < len(self._script.steps) and self.next.act in ("end", "cut")

    def send(self) -> None:
        """Send the next statement; `settle` takes its answer."""
        step = self._take()
        if step.opens:
            self._opened = self._place - 1
        sql, values = (HELD_COMMIT, ()) if step.act == "hang" else step.given(self.told.reads)
        work = self.session.run(sql, values, opens=step.opens)
        self.task = self._tasks.spawn(work, name=f"{self.side} {step.name}", report=False)
        self.task.add_done_callback(_seen)

    def lose(self) -> Step:
        """The session is gone from here on."""
        step = self._take()
        self.told.end = "lost"
        return step

    def cut(self) -> None:
        """The client is gone; the server may be at work still."""
        self.session.cut()
        self.task = None
        self.zombie = True

    async def settle(self) -> str:
        """Take the answer of the statement that is done; what it was, in words."""
        assert self.task is not None
        task, self.task, self.waiting = self.task, None, False
        step = self._script.steps[self._place - 1]
        try:
            rows = task.result()
        except Gone:
            self.told.end = "lost"
            return f"{step.name}: connection lost"
        except asyncpg.PostgresError as error:
            if error.sqlstate in step.nothing:
                await self._came_to_nothing(step)
            else:
                await self._refused(error.sqlstate or "")
            return f"{step.name}: refused, {error.sqlstate} {error.args[0]}"
        await self._answered(step, rows)
        return f"{step.name}: " + ("done" if step is COMMIT else ", ".join(str(dict(row)) for row in rows) or "no rows")

    def _take(self) -> Step:
        step = self.next
        self._place += 1
        return step

    async def _answered(self, step: Step, rows: Rows) -> None:
        if step is not COMMIT:
            self.told.reads[step.name] = rows
        verdict = step.then(rows)
        if verdict != "go":
            await self._leave(again_at=0 if verdict == "restart" else None, end="stopped")
            return
        if step is COMMIT or self._opened is None:
            first = self._place - 1 if self._opened is None else self._opened
            self.told.committed += [s.name for s in self._script.steps[first : self._place] if s is not COMMIT]
            self._opened = None
        if self._place == len(self._script.steps):
            self.told.end = "done"

    async def _came_to_nothing(self, step: Step) -> None:
        if self._opened is not None:
            self._opened = None
            await self.session.run("rollback", ())
            if self.next is COMMIT:
                self._place += 1
        await self._answered(step, [])

    async def _refused(self, state: str) -> None:
        self.told.failures.append(state)
        begin = self._place - 1 if self._opened is None else self._opened
        await self._leave(again_at=begin if state in AGAIN else None, end="given up")

    async def _leave(self, *, again_at: int | None, end: End) -> None:
        if self._opened is not None:
            self._opened = None
            await self.session.run("rollback", ())
        if again_at is None or self._tries == self._script.tries:
            self.told.end = "given up" if again_at is not None else end
            return
        self._tries += 1
        self._place = again_at


def _seen(task: asyncio.Task[Rows]) -> None:
    """Nobody asks for the answer of a statement whose client is gone."""
    if not task.cancelled():
        task.exception()
