"""What people do about runs that have failed: have them go on from the failed step, or start others before it (W9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import json, msgpack
from msgspec.structs import replace

from coterie.durable import failure
from coterie.durable.unit import new_life
from coterie.errors import AlreadyUndone, DeferredRejected, KeyConflict, WorkflowNotFailed, WorkflowNotFound
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.storage.contracts.units import UnitFork, UnitRetry, UnitStart
from coterie.workflows.definition import unit_of
from coterie.workflows.workflow import Outcome, waited_as_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.storage.contracts.units import StepRecord, StepRow, UnitRow

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


async def fork(here: Client, name: str, id: str, *, before: str, new_id: str, seat: str, version: str) -> int:
    """Start a run with the steps that another one made before a step. Returns its life.

    Raises:
        ValueError: No such step was reached.
        AlreadyUndone: A compensation of the other run has begun.
        KeyConflict: A run of the new id exists already.
        WorkflowNotFound: The other run does not exist, or no longer.
    """
    unit, units = unit_of(name, id), here.storage.units
    while True:
        row = await units.get(unit)
        if row is None:
            raise WorkflowNotFound(workflow=name, id=id)
        stored = {(each.branch, each.position): each for each in await units.steps(unit)}
        steps = [as_stored(each, stored.get((each.branch, each.position)), unit) for each in await units.records(unit)]
        start = UnitStart(
            unit=unit_of(name, new_id),
            name=name,
            id=new_id,
            seat=seat,
            payload=row.payload,
            digest=row.digest,
            version=version,
            life=new_life(here.calling.chance),
        )
        chosen = steps_before(steps, before, run=f"{name}/{id}")
        told = await units.fork(UnitFork(start=start, source=unit, life=row.life, steps=tuple(chosen)))
        if told == "undone":
            raise AlreadyUndone(workflow=name, id=id)
        if told == "there":
            raise KeyConflict(target=f"workflow {name!r}", key=new_id, message_id=start.unit)
        if told == "started":
            await here.wake(start.seat, about=start.unit, fresh=True)
            return start.life


async def seat_beside(here: Client, row: UnitRow, id: str) -> str:
    """The seat of another run of the same workflow, for who does not know its definition: by the cluster's shards."""
    group = ShardId.parse(row.seat.partition(":")[2]).group
    view = await here.storage.view()
    shards = sum(each.name.startswith("shard:") and each.group == group for each in view.seats)
    return Seat.shard(ShardId(group, shard_number(f"workflow {row.name}", id, shards)))


def steps_before(steps: Sequence[StepRecord], name: str, *, run: str) -> list[StepRecord]:
    """The steps that are done and were made before the first one of a name, outside of branches.

    A branch that had begun before that step ended is copied as a whole: what is stored of it does not come from it.

    Raises:
        ValueError: There is no such step.
    """
    root = [each for each in steps if each.branch == "" and each.name == name]
    if not root:
        known = ", ".join(dict.fromkeys(each.name for each in steps if each.branch == "")) or "none"
        raise ValueError(f"{run} has reached no step {name!r} outside of branches; it has reached: {known}")
    end = min(root, key=lambda each: each.position)
    began: dict[str, datetime] = {}
    for each in steps:
        top, at = each.branch.partition(".")[0], each.began_at or each.ended_at
        if at is not None:
            began[top] = min(began.get(top, at), at)

    def is_before(each: StepRecord) -> bool:
        if each.branch == "":
            return each.position < end.position
        at = began.get(each.branch.partition(".")[0])
        return end.ended_at is None or (at is not None and at < end.ended_at)

    chosen = [each for each in steps if each.done and each.kind != "compensation" and is_before(each)]
    return [replace(each, digest=b"") for each in chosen]  # arguments may contain the id of the run


def as_stored(record: StepRecord, stored: StepRow | None, unit: str) -> StepRecord:
    """A step as it is stored once it is done: the value of a wait may stand elsewhere."""
    if stored is None or stored.done or not record.done:
        return record
    if record.kind == "deferred" and record.rejection is not None:
        error = DeferredRejected(unit=unit, name=record.name, problem=record.rejection)
        return replace(record, value=None, error=failure.pack(error))
    if record.kind == "child":
        ended = "failed" if record.error is not None else "interrupted" if record.value is None else "done"
        return replace(record, value=msgpack.encode(Outcome(ended, record.value, record.error)), error=None)
    return record
