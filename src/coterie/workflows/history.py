"""The steps of a run as people see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.durable import failure
from coterie.kernel.serialization.codec import PLAIN
from coterie.workflows.workflow import Outcome

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.storage.contracts.units import StepKind, StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInfo:
    """A step of a run. All instants are the database's."""

    name: str
    kind: StepKind
    branch: str
    """Empty for the function itself; the tasks that it starts are branches `0`, `1`, `0.0` and so on."""
    done: bool
    """False: it is waited for, or was when the run ended."""
    attempts: int | None
    """The attempts of its last run; None: a wait, or stored by an older version."""
    began_at: datetime | None
    """When its last run, or the wait, began; None: stored by an older version."""
    ended_at: datetime | None
    runner: str | None
    """The name of the runner that stored it; None: stored by an older version."""
    result: Any
    """The result as plain values; None also if it has none."""
    error: str | None


def step_info(record: StepRecord) -> StepInfo:
    """The step of a row."""
    value, error = record.value if record.done else None, record.error
    if record.kind == "child" and record.ended_at is not None and record.done and value:
        value, error = _of_child(value, error)
    problem = record.rejection if error is None else failure.text_of(error)
    return StepInfo(
        name=record.name,
        kind=record.kind,
        branch=record.branch,
        done=record.done,
        attempts=record.attempts,
        began_at=record.began_at,
        ended_at=record.ended_at,
        runner=record.runner,
        result=PLAIN.decode(value) if value else None,
        error=problem,
    )


def _of_child(value: bytes, error: bytes | None) -> tuple[bytes | None, bytes | None]:
    """What a child returned or raised. The parent's row holds its outcome, if it had to poll for it; else the value."""
    try:
        outcome = msgspec.msgpack.decode(value, type=Outcome)
    except msgspec.MsgspecError:
        return value, error
    return outcome.value, outcome.error
