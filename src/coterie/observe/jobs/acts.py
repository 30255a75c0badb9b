"""What people do with queues and jobs, from the command line and the page: pause, limit, run again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.errors import InvalidArgument, quoted
from coterie.kernel.ids import Seat
from coterie.storage.contracts.jobs import JobFilter, QueueLimits
from coterie.tasks.definition import default_burst
from coterie.tasks.frames import QueueChanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from coterie.client import Client
    from coterie.observe.view import QueueLine
    from coterie.storage.contracts.jobs import JobRow, QueueRow


def known_queue(lines: Iterable[QueueLine], name: str) -> QueueLine | None:
    """The queue of this name."""
    return next((each for each in lines if each.name == name), None)


async def pause_queue(here: Client, name: str, *, paused: bool) -> bool:
    """Have a queue start nothing once this has returned, or let it start jobs again. False: it was so already."""
    changed = False
    for row in await _rows(here, name):
        if (row.paused_at is not None) is not paused:
            changed = await here.storage.jobs.pause(row.seat, paused=paused) is not None or changed
            here.jobs.tell(row.seat, QueueChanged(row.seat))
    return changed


async def set_queue_limits(here: Client, name: str, given: Mapping[str, Any], *, reset: bool = False) -> dict[str, Any]:
    """Set some limits of a queue, which beat those of the program until they are reset; returns those in force.

    Raises:
        ValueError: There is no such queue.
        InvalidArgument: It is no queue, but the tasks without one: they have no limits.
    """
    rows = await _rows(here, name)
    if len(rows) > 1 or name.endswith(":*"):
        problem = "tasks without a queue have no limits: give them queue="
        raise InvalidArgument(what="the queue", value=quoted(name), problem=problem)
    (row,) = rows
    limits = None if reset else _limits(row, given)
    changed = await here.storage.jobs.set_limits(row.seat, limits)
    here.jobs.tell(row.seat, QueueChanged(row.seat))
    return _in_force(changed or row)


def _limits(row: QueueRow, given: Mapping[str, Any]) -> QueueLimits:
    wanted = {**_in_force(row), **given}
    if "rate" in given:
        wanted["burst"] = None if wanted["rate"] is None else default_burst(wanted["rate"])
    return QueueLimits(**wanted)


def _in_force(row: QueueRow) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in msgspec.structs.fields(QueueLimits)}


async def _rows(here: Client, name: str) -> list[QueueRow]:
    found = [row for row in await here.storage.jobs.queues() if Seat.queue_name(row.seat) == name]
    if not found:
        raise ValueError(f"there is no queue {name!r}")
    return found


async def revive_jobs(here: Client, rows: Sequence[JobRow]) -> int:
    """Let dead jobs run again, now and with all their attempts. Returns the number of those that were dead."""
    dead = JobFilter(state="dead")
    revived = sum([await here.storage.jobs.revive(dead, id=row.id, most=1) for row in rows])
    for seat in {row.seat for row in rows}:
        here.job_sender.hint_seat(seat)
    return revived
