"""Messages to runs of workflows and what these publish, on PostgreSQL: single statements, which go to the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from coterie.storage import statements
from coterie.storage.contracts.run_messages import PUBLISHED_MOST, PublishedRow, RunMessageSent, WaitingMessages
from coterie.storage.contracts.units import StepResult, StepRow
from coterie.storage.postgres.batch.single import LONGEST_S
from coterie.storage.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from coterie.storage.contracts.run_messages import Publish, RaceEnd, Receive, RunMessage


class PostgresRunMessages(PostgresStore):
    """See `storage.contracts.run_messages.RunMessageStore`."""

    _sql = statements.load("coterie.storage.postgres.sql", "run_messages.sql")

    # All of them come to the same when they are repeated after a lost answer: ids and places are given.

    async def send(self, message: RunMessage) -> RunMessageSent:
        """Store a message for a run that has not ended, and make the run running."""
        named = message.unit, message.name, message.id
        (row,) = await self._read("send_to_run", *named, message.digest, message.value)
        return RunMessageSent(row["told"], row["digest"] or b"", row["wake"], row["status"])

    async def receive(self, write: Receive) -> StepResult:
        """Take the oldest message of a name into a step; or store its time-out; or that it waits."""
        due_s = None if write.due_s is None else min(write.due_s, LONGEST_S)
        (row,) = await self._read("receive_message", *_place(write), due_s, write.late, write.runner, write.life)
        return _result(row)

    async def publish(self, write: Publish) -> StepResult:
        """Store a value and its step, unless the step is stored."""
        values = write.value, write.runner, PUBLISHED_MOST, write.life
        (row,) = await self._read("publish_value", *_place(write), *values)
        return _result(row)

    async def give_back(self, write: RaceEnd) -> StepResult:
        """Store a step, and let the messages of others wait again, unless the step is stored."""
        places = [branch for branch, _ in write.received], [position for _, position in write.received]
        values = write.value, write.runner, *places, write.life
        (row,) = await self._read("give_back_messages", *_place(write), *values)
        return _result(row)

    async def published(self, unit: str, name: str, *, after: int | None, most: int) -> Sequence[PublishedRow]:
        """Return the next values after a number, in order; None: the last one alone."""
        if after is None:
            rows = await self._read("last_published", unit, name)
        else:
            rows = await self._read("published_after", unit, name, after, most)
        return [PublishedRow(*row) for row in rows]

    async def published_names(self, unit: str, *, most: int) -> Sequence[tuple[str, PublishedRow]]:
        """Return the names under which a run has published, each with its last value, by name."""
        rows = await self._read("published_names", unit, most)
        return [(row["name"], PublishedRow(row["seq"], row["value"], row["at"])) for row in rows]

    async def waiting(self, unit: str, *, most: int) -> Sequence[WaitingMessages]:
        """Return what was sent to a run and waits, by name."""
        return [WaitingMessages(*row) for row in await self._read("waiting_messages", unit, most)]

    async def purge(self, *, older_s: float, most: int) -> int:
        """Delete some messages that are old: received ones, and those to runs that never began."""
        return cast("int", (await self._write("purge_run_messages", min(older_s, LONGEST_S), most))[0]["most"])


def _place(write: Receive | Publish | RaceEnd) -> tuple[object, ...]:
    claim = write.claim
    return claim.runner, claim.seat, claim.epoch, write.unit, write.branch, write.position, write.name


def _result(row: asyncpg.Record) -> StepResult:
    if row["branch"] is None:
        return StepResult(row["told"], None, row["now"])
    fields = {name: row[name] for name in StepRow.__struct_fields__}
    return StepResult(row["told"], StepRow(**fields), row["now"])
