"""What people do about runs that have failed: have them go on from the step whose error has ended them (W9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json

from coterie.errors import AlreadyUndone, WorkflowNotFailed, WorkflowNotFound
from coterie.storage.contracts.units import UnitRetry
from coterie.workflows.workflow import waited_as_of

if TYPE_CHECKING:
    from coterie.client import Client
    from coterie.storage.contracts.units import UnitRow

_ENDINGS = ("failed", "interrupted")


async def retry(here: Client, name: str, id: str, unit: str) -> None:
    """Have a failed run go on, with the children whose failures have ended it.

    Raises:
        AlreadyUndone: A compensation has begun, its own or one of such a child.
        WorkflowNotFailed: It has not failed.
        WorkflowNotFound: No such run exists, or no longer.
    """
    while True:
        row = await here.storage.units.get(unit)
        if row is None or row.kind != "workflow":
            raise WorkflowNotFound(workflow=name, id=id)
        if row.status != "failed":
            raise WorkflowNotFailed(workflow=name, id=id, status=row.status)
        family = await _family(here, row)
        told = await here.storage.units.retry([_retry(each) for each in family])
        if told == "undone":
            raise AlreadyUndone(workflow=name, id=id)
        if told == "retried":
            break
    for each in family:
        await here.wake(each.seat, about=each.unit, fresh=True)


async def _family(here: Client, row: UnitRow) -> list[UnitRow]:
    """A run, and those of its children whose ends have made it fail, with theirs."""
    family = [row]
    for each in family:
        for _, _, kind, name in _failed_steps(each):
            child = await here.storage.units.get(f"workflow:{name}") if kind == "child" else None
            if child is not None and child.parent == each.unit and child.status in _ENDINGS and child not in family:
                family.append(child)
    return family


def _retry(row: UnitRow) -> UnitRetry:
    steps = _failed_steps(row)
    values = [name for _, _, kind, name in steps if kind == "deferred"]
    values += [waited_as_of(*name.split("/", 1)) for _, _, kind, name in steps if kind == "child"]
    return UnitRetry(
        unit=row.unit,
        life=row.life,
        retries=row.retries,
        steps=tuple((branch, position) for branch, position, _, _ in steps),
        values=tuple(values),
    )


def _failed_steps(row: UnitRow) -> list[tuple[str, int, str, str]]:
    return json.decode(row.failed_steps, type=list[tuple[str, int, str, str]]) if row.failed_steps else []
