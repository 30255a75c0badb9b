"""The holder of a seat for incoming work: reads rows, has them checked, and moves them in batches.

wait ──▶ take the first rows of each type ──▶ check ──▶ move: one fenced statement ──▶ hint to the owners
  ▲        │ none                                          │ refused: one by one; the odd one is set aside for a while
  └────────┴───────────────────────────────────────────────┘

A round begins at the first row that waits: a transaction may commit an old id late, so no mark outlives a round. Within
it there is one, since the rows that were moved are in the way of the next read until the database has vacuumed them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import TYPE_CHECKING, TypeAlias

from coterie.errors import LeadershipLost, PersistenceError
from coterie.kernel import metrics
from coterie.storage.contracts.incoming_calls import IncomingRow, MovedCall, MovedStart
from coterie.work.limits import set_within
from coterie.work.occupants import LoopOccupant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextvars import Context

    from coterie.incoming.check import IncomingCheck
    from coterie.ownership.seats import Tenure
    from coterie.runner import Runner
    from coterie.storage.contracts.incoming_calls import Move, Source
    from coterie.work.services import Services

log = logging.getLogger("coterie.incoming")

Member: TypeAlias = tuple[IncomingRow, MovedCall | MovedStart]

_BUSY_S, _IDLE_S = 0.2, 1.0
"""Pause between two rounds: while SQL sends, and else."""
_BUSY_FOR_S = 60.0
"""How long after the last row it counts as sending."""
_MOST = 200
"""Rows of one type in one read, and of all types in one statement."""
_MOST_BYTES = 1 << 20
"""Of the arguments in one read: checking them holds up the event loop."""
_ASIDE_S = 10.0
"""For how long a row is left alone that the database refuses to move: another transaction may hold its key."""
_ASIDE_MOST = 1_000


class IncomingMover(LoopOccupant):
    """Moves the rows of the types of one group.

    Args:
        tenure: The tenure of its seat.
        services: What the runner provides.
        context: The context of its loop.
        runner: Hints to the owners of what was moved.
        sources: Returns what this program can check.
        check: Checks a row.
    """

    def __init__(
        self,
        tenure: Tenure,
        services: Services,
        context: Context,
        *,
        runner: Runner,
        sources: Callable[[], Iterable[Source]],
        check: IncomingCheck,
    ) -> None:
        super().__init__(tenure, services, context)
        self._store = services.storage.incoming
        self._runner = runner
        self._sources = sources
        self._check = check
        self._found_s = -math.inf
        self._aside: dict[str, float] = {}
        """Until when rows are left alone, by id."""
        self._loop = services.supervise(self._live, "move incoming work", tenure, context=context)

    def wake(self, unit: str = "") -> None:
        """There may be rows."""
        del unit
        self._news.set()

    def _running(self) -> Sequence[asyncio.Task[object]]:
        return ()

    # The loop

    async def _live(self) -> None:
        try:
            while not self._closing:
                self._news.clear()
                try:
                    await self._round()
                except PersistenceError as error:
                    log.info("what SQL has sent waits for the database: %s", error)
                is_busy = self._now_s() - self._found_s < _BUSY_FOR_S
                await set_within(self._news, _BUSY_S if is_busy else _IDLE_S)
        except LeadershipLost as error:
            log.info("incoming work is moved elsewhere: %s", error)

    async def _round(self) -> None:
        """Move all that waits and can be checked here."""
        after = dict.fromkeys(self._sources(), "")
        self._aside = {row: until_s for row, until_s in self._aside.items() if until_s > self._now_s()}
        aside = list(self._aside)
        while after and not self._closing:
            self.tenure.require_held()
            rows = await self._store.take(after, without=aside, most=_MOST, most_bytes=_MOST_BYTES)
            if not rows:
                return
            self._found_s = self._now_s()
            after |= {row.source: row.id for row in rows}  # in order of their ids
            for batch in batches([(row, self._check.moved(row)) for row in rows]):
                await self._move(batch)

    async def _move(self, members: Sequence[Member]) -> None:
        """Move rows of one batch; one by one if the database refuses it as a whole."""
        try:
            told = await self._write([each for _, each in members])
        except PersistenceError as error:
            if error.outcome != "refused":
                raise
            if len(members) == 1:
                self._set_aside(members[0][0], error)
            else:
                for member in members:
                    await self._move([member])
            return
        self._follow([each for row, each in members if told[row.id].told == "moved"])
        metrics.INCOMING.of("same").value += sum(told[row.id].told == "same" for row, _ in members)
        conflicts = [member for member in members if told[member[0].id].told == "conflict"]
        if conflicts:
            dead = [(row, self._check.conflict(row, moved, told[row.id].other or "")) for row, moved in conflicts]
            await self._move(dead)

    async def _write(self, members: Sequence[MovedCall | MovedStart]) -> Mapping[str, Move]:
        calls = [each for each in members if isinstance(each, MovedCall)]
        if calls:
            return await self._store.move(self.tenure.claim, calls)
        return await self._store.start(self.tenure.claim, [each for each in members if isinstance(each, MovedStart)])

    def _set_aside(self, row: IncomingRow, error: PersistenceError) -> None:
        if len(self._aside) < _ASIDE_MOST:
            self._aside[row.id] = self._now_s() + _ASIDE_S
        log.warning("call %s from SQL to %s waits %gs: %s", row.id, row.type, _ASIDE_S, error)

    # After the commit

    def _follow(self, moved: Sequence[MovedCall | MovedStart]) -> None:
        """Hint to the owners; polling finds what no hint reaches."""
        seats: dict[str, str] = {}
        for each in moved:
            if isinstance(each, MovedStart):
                metrics.INCOMING.of("started").value += 1
                seats[each.start.seat] = each.start.unit
            elif each.error is not None:
                metrics.INCOMING.of("dead").value += 1
                message = each.message
                target = f"{message.entity_type}/{message.entity_id}.{message.method}"
                log.warning("message %s from SQL to %s is dead: %s", message.id, target, each.error)
            else:
                metrics.INCOMING.of("sent").value += 1
                metrics.MESSAGES_SENT.of(each.message.entity_type, each.message.method).value += 1
                self._runner.calling.persisted.hand_over(each.message)
        for seat, unit in seats.items():
            self._services.tasks.spawn(self._runner.wake(seat, about=unit), name="wake", report=False)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


def batches(members: Sequence[Member]) -> list[list[Member]]:
    """Members in batches for one statement each: calls and starts apart, in order."""
    calls = [member for member in members if isinstance(member[1], MovedCall)]
    starts = [member for member in members if isinstance(member[1], MovedStart)]
    return [some[first : first + _MOST] for some in (calls, starts) for first in range(0, len(some), _MOST)]
