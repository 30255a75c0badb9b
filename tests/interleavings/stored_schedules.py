"""Rows of schedules, and what fires, changes and removes them; handlers set and cancel them as timers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.messages import Commit
from coterie.storage.contracts.schedules import NewSchedule, ScheduleRow, TimerChange
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import sends
from coterie.storage.postgres.schedules import WRITTEN
from tests.interleavings.database import CLUSTER
from tests.interleavings.stored_messages import message
from tests.support.interleaving import atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.jobs import NewJob
    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Step

MINE = Claim("a", "s1", 1)
KEY = "timer/E/e/t"
_AT = datetime(2024, 1, 1, tzinfo=UTC)
_LATER = datetime(3000, 1, 1, tzinfo=UTC)


def rows(*, next_at: str = "now() - interval '1 day'") -> str:
    """One row that has been due, or over, for a day."""
    return (
        ";insert into coterie.schedules (cluster, key, seat, life, stamp, definition, target, entity_type, entity_id,"
        " method, payload, since_at, next_at, outcomes, changed_at)"
        f" values ('{CLUSTER}', '{KEY}', 's1', 7, 1, '{{}}', 's1', 'E', 'e', 'm', 'p', now(), {next_at}, '[]',"
        " now() - interval '1 day')"
    )


def _timer(life: int) -> NewSchedule:
    return NewSchedule(
        key=KEY,
        seat="s1",
        life=life,
        definition="{}",
        target="s1",
        entity_type="E",
        entity_id="e",
        method="m",
        payload=b"p",
        since_at=_AT,
        next_at=_AT,
    )


SET = Commit(MINE, timers=(TimerChange(KEY, _timer(8)),))
SET_ANEW = Commit(MINE, timers=(TimerChange(KEY, _timer(9)),))
CANCELLED = Commit(MINE, timers=(TimerChange(KEY, None),))


def firing(
    s: Steps, *, is_over: bool = False, asks: str | None = None, jobs: Sequence[NewJob] = ()
) -> tuple[Step, ...]:
    """Fire the row on s1, in the name of a: a message, or jobs."""
    moved: list[list[Any]] = [[_AT], [_LATER], [_AT], ["f1"], ["[1]"], [is_over], [asks]]
    columns = [["s1"], [1], [KEY], [7], [1], *moved]
    columns += [[], *sends.message_columns([])] if jobs else [[1], *sends.message_columns([message("f1")])]
    columns += [[1] * len(jobs), *sends.job_columns(jobs)]
    return atomic(s.step("fire_schedules", "a", *columns, step="fire"))


def _row(life: int) -> list[Any]:
    plain = _timer(life)
    row = ScheduleRow(**{name: getattr(plain, name) for name in plain.__struct_fields__}, stamp=1)
    return [getattr(row, name) for name in WRITTEN]


def adding(s: Steps) -> tuple[Step, ...]:
    """Put a row where there is none."""
    return atomic(s.step("add_schedule", KEY, *_row(10), step="add"))


def swapping(s: Steps) -> tuple[Step, ...]:
    """Put another one in place of the one that was read."""
    return atomic(s.step("swap_schedule", KEY, *_row(11), 7, 1, step="swap"))
