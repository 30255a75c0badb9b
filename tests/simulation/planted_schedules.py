"""Planted bugs of schedules and timers, each with the workload that finds it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from msgspec.structs import replace

from coterie.entities.host.activation import Resident
from coterie.errors import PersistenceError
from coterie.schedules import api, verdict
from coterie.schedules.api import Schedules
from coterie.storage.contracts.messages import Insert
from coterie.storage.contracts.schedules import schedule_key, timer_key
from coterie.storage.sqlite import schedules
from tests.simulation.workloads import schedules as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from datetime import datetime

    from coterie.storage.contracts.messages import Message
    from coterie.storage.contracts.schedules import Fire, Fired, NewSchedule, ScheduleRow

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


@contextmanager
def _stamp_not_compared() -> Iterator[None]:
    right = schedules._fire

    def careless(connection: Any, scope: Any, fire: Fire, *, is_held: bool) -> Fired:
        names = {"cluster": scope.cluster, "key": fire.key}
        state: Any = connection.execute(schedules.SQL["state"], names).get
        return right(connection, scope, fire if state is None else replace(fire, mark=state[:2]), is_held=is_held)

    with patch.object(schedules, "_fire", careless):
        yield


@contextmanager
def _pause_not_looked_at() -> Iterator[None]:
    state = schedules.SQL["state"].replace("paused_at_ns is not null", "0")
    pause = schedules.SQL["pause"].replace("stamp = stamp + 1, ", "")
    with patch.object(schedules, "SQL", {**schedules.SQL, "state": state, "pause": pause}):
        yield


@contextmanager
def _same_content_counts_anew() -> Iterator[None]:
    with patch.object(Schedules, "_is_same", lambda *_: False):
        yield


@contextmanager
def _timer_cancelled_outside_of_the_commit() -> Iterator[None]:
    def at_once(self: Resident, name: str) -> None:
        storage = self.shard.host.storage
        assert storage is not None
        self.shard.host.tasks.spawn(
            storage.schedules.remove(timer_key(self.hosted.type.name, self.id, name)), name="cancel", report=False
        )

    with patch.object(Resident, "cancel_timer", at_once):
        yield


@contextmanager
def _overlap_judged_from_memory() -> Iterator[None]:
    right = verdict.fire_of
    busy: dict[str, bool] = {}

    def remembered(row: ScheduleRow, *args: Any, **known: Any) -> Fire | None:
        fire = right(replace(row, is_busy=busy.get(row.key, False)), *args, **known)
        return None if fire is None else replace(fire, asks=None)

    with patch.object(verdict, "fire_of", remembered):
        yield


@contextmanager
def _resumed_as_if_never_paused() -> Iterator[None]:
    with patch.object(api, "_resumed", lambda found, _: replace(found, paused_at=None)):
        yield


@contextmanager
def _messages_stored_before_the_row_moves() -> Iterator[None]:
    right = schedules.SqliteSchedules.fire

    async def in_two(self: Any, fires: Sequence[Fire]) -> Sequence[Fired]:
        for each in fires:
            for message in each.sends:
                await self._writer.submit(Insert(message))
        return await right(self, fires)

    with patch.object(schedules.SqliteSchedules, "fire", in_two):
        yield


@contextmanager
def _skipped_without_a_verdict() -> Iterator[None]:
    right = verdict._outcome

    def off_by_one(row: ScheduleRow, terms: Any, each: Any) -> Any:
        found = right(row, terms, each)
        return replace(found, count=found.count - 1) if found.count > 1 else found

    with patch.object(verdict, "_outcome", off_by_one):
        yield


@contextmanager
def _content_put_anew_counts_from_before() -> Iterator[None]:
    right = api._paused

    def as_before(row: ScheduleRow, found: ScheduleRow) -> ScheduleRow:
        return replace(right(row, found), since_at=found.since_at, next_at=found.next_at)

    with patch.object(api, "_paused", as_before):
        yield


@contextmanager
def _ids_of_messages(*, without: str) -> Iterator[None]:
    right = verdict.message_of

    def less(row: NewSchedule, at: datetime, *, kind: verdict.SentKind = "scheduled") -> Message:
        if without == "life":
            return right(replace(row, life=1), at, kind=kind)
        return right(row, at)

    with patch.object(verdict, "message_of", less), patch.object(api, "message_of", less):
        yield


@contextmanager
def _removed_after_it_was_said() -> Iterator[None]:
    right = Schedules.remove

    async def soon(self: Schedules, name: str, *, cancel: bool = False) -> bool:
        here = self._writing("cluster.schedules.remove")
        found = await here.storage.schedules.get(schedule_key(name))
        here.tasks.spawn(right(self, name, cancel=cancel), name="remove", report=False)
        return found is not None

    with patch.object(Schedules, "remove", soon):
        yield


@contextmanager
def _lost_pause_taken_as_done() -> Iterator[None]:
    right = Schedules.pause

    async def careless(self: Schedules, name: str) -> bool:
        try:
            return await right(self, name)
        except PersistenceError:
            return True

    with patch.object(Schedules, "pause", careless):
        yield


@contextmanager
def _timer_kept_after_its_last_message() -> Iterator[None]:
    right = verdict.fire_of

    def kept(*args: Any, **known: Any) -> Fire | None:
        fire = right(*args, **known)
        return None if fire is None else replace(fire, is_over=False)

    with patch.object(verdict, "fire_of", kept):
        yield


C9 = ("C9",)

PLANTED: tuple[Planted, ...] = (
    ("stamp of a schedule not compared", _stamp_not_compared, workload.main, C9),
    ("pause of a schedule not looked at", _pause_not_looked_at, workload.main, C9),
    ("the same schedule counts anew", _same_content_counts_anew, workload.main, C9),
    ("timer cancelled outside of the commit", _timer_cancelled_outside_of_the_commit, workload.main, C9),
    ("overlap judged from memory", _overlap_judged_from_memory, workload.main, C9),
    ("resumed as if never paused", _resumed_as_if_never_paused, workload.main, C9),
    ("messages of a schedule stored before it moves", _messages_stored_before_the_row_moves, workload.main, C9),
    ("content put anew counts from before", _content_put_anew_counts_from_before, workload.main, C9),
    ("id of a message without the life", lambda: _ids_of_messages(without="life"), workload.main, C9),
    ("id of a message without its kind", lambda: _ids_of_messages(without="kind"), workload.main, C9),
    ("a schedule removed after that was said", _removed_after_it_was_said, workload.main, C9),
    ("a lost pause taken as done", _lost_pause_taken_as_done, workload.main, C9),
    ("timer kept after its last message", _timer_kept_after_its_last_message, workload.main, C9),
    ("skipped instants without a verdict", _skipped_without_a_verdict, workload.main, C9),
)
"""Name, how it is planted, what finds it, and the promises that are then broken."""
SAMPLE = {
    "the same schedule counts anew",
    "timer cancelled outside of the commit",
    "id of a message without its kind",
    "a lost pause taken as done",
}
"""Those that every change is held against; the others take longer."""
