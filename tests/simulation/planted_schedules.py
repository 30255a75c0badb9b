"""Planted bugs of schedules and timers, each with the workload that finds it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from msgspec.structs import replace

from coterie.entities.host.activation import Resident
from coterie.schedules import api, verdict
from coterie.schedules.api import Schedules
from coterie.storage.contracts.messages import Insert
from coterie.storage.contracts.schedules import timer_key
from coterie.storage.sqlite import schedules
from tests.simulation.workloads import schedules as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    from coterie.storage.contracts.schedules import Fire, Fired, ScheduleRow

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

    def off_by_one(row: ScheduleRow, each: Any) -> Any:
        found = right(row, each)
        return replace(found, count=found.count - 1) if found.count > 1 else found

    with patch.object(verdict, "_outcome", off_by_one):
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
    ("skipped instants without a verdict", _skipped_without_a_verdict, workload.main, C9),
)
"""Name, how it is planted, what finds it, and the promises that are then broken."""
SAMPLE = {"the same schedule counts anew", "timer cancelled outside of the commit"}
"""Those that every change is held against; the others take longer."""
