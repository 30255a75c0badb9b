"""The acts on runs of workflows that go on from what is stored: retried, forked, sent a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.durable.position import named
from coterie.kernel.text import require_text
from coterie.web.act_plan import ActBody, Done, Plan, counted
from coterie.web.responses import HttpRefusal
from coterie.workflows import recovery, run_messages
from coterie.workflows.definition import require_id, unit_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from coterie.client import Client
    from coterie.storage.contracts.units import UnitRow


class FailedRunBody(ActBody):
    """A run that has failed."""

    workflow: str
    id: str


class ForkBody(ActBody):
    """A run, the step before which another one goes on, and its id."""

    workflow: str
    id: str
    before: str
    new_id: str


class RunMessageBody(ActBody):
    """A run, and what is sent to it."""

    workflow: str
    id: str
    name: str
    value: Any


def plans() -> Mapping[str, tuple[type[ActBody], Callable[[Client, Any], Awaitable[Plan]]]]:
    """By act: the body of its request, and what plans it."""
    return {
        "retry-workflow": (FailedRunBody, _retry_run),
        "fork-workflow": (ForkBody, _fork_run),
        "send-to-workflow": (RunMessageBody, _send_to_run),
    }


async def _retry_run(here: Client, body: FailedRunBody) -> Plan:
    """Have a failed run go on."""
    row = await _run_of(here, body.workflow, body.id)
    run = f"{row.name}/{row.id}"
    if row.status != "failed":
        raise HttpRefusal(409, f"{run} has not failed: {row.status}")

    async def do() -> Done:
        await recovery.retry(here, row.name, row.id, row.unit)
        return Done(f"{run} goes on from the step that failed")

    return Plan(f"workflow {run}", f"{run} will go on from the step that failed", 1, do)


async def _fork_run(here: Client, body: ForkBody) -> Plan:
    """Start a run with the steps of another one before a step."""
    row = await _run_of(here, body.workflow, body.id)
    run = f"{row.name}/{row.id}"
    try:
        new = require_id(body.new_id)
        kept = recovery.steps_before(await here.storage.units.records(row.unit), body.before, run=run)
    except ValueError as error:
        raise HttpRefusal(400, str(error)) from None

    async def do() -> Done:
        seat = await recovery.seat_beside(here, row, new)
        await recovery.fork(here, row.name, row.id, before=body.before, new_id=new, seat=seat, version=row.version)
        return Done(f"{row.name}/{new} goes on before {body.before}")

    will = f"{row.name}/{new} will be started with {counted(len(kept), 'step')} of {run}, before {body.before}"
    return Plan(f"workflow {run}", will, 1, do)


async def _send_to_run(here: Client, body: RunMessageBody) -> Plan:
    """Send a message to a run."""
    row = await _run_of(here, body.workflow, body.id)
    run = f"{row.name}/{row.id}"
    if row.ended_at is not None:
        raise HttpRefusal(409, f"{run} is over: {row.status}")
    try:
        name = named(body.name, "a message")
    except ValueError as error:
        raise HttpRefusal(400, str(error)) from None

    async def do() -> Done:
        await run_messages.send(here, row.name, row.id, name, body.value, key=None)
        return Done(f"message {name} is sent to {run}")

    return Plan(f"workflow {run}", f"{run} will be sent the message {name}", 1, do)


async def _run_of(here: Client, workflow: str, id: str) -> UnitRow:
    name, id_ = require_text(workflow, what="workflow"), require_text(id, what="id")
    row = await here.storage.units.get(unit_of(name, id_))
    if row is None:
        raise HttpRefusal(404, f"there is no run {name}/{id_}, or none any more")
    return row
