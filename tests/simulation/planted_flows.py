"""Planted bugs of workflows and units, each with the workload that finds it."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from coterie.durable import waits
from coterie.durable.position import Places
from coterie.durable.steps import DurableWork
from coterie.errors import PersistenceError
from coterie.kernel.clock import Dial, to_datetime
from coterie.storage.contracts.units import StepResult, StepRow, StepWrite
from coterie.storage.sqlite import unit_writes
from coterie.storage.sqlite.units import SqliteUnits
from coterie.workflows.execution import Execution
from coterie.workflows.registry import HeldWorkflows
from tests.simulation.workloads import flows as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from contextlib import AbstractContextManager

    from coterie.durable.position import Place
    from coterie.storage.contracts.units import UnitSnapshot

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


# ── storage ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _swapped(name: str, old: str, new: str) -> AbstractContextManager[Any]:
    assert old in unit_writes.SQL[name], f"{old!r} is no longer in {name}: bring the plant up to date"
    return patch.dict(unit_writes.SQL, {name: unit_writes.SQL[name].replace(old, new)})


@contextmanager
def _not_fenced() -> Iterator[None]:
    right = unit_writes._proven

    def trusting(connection: Any, scope: Any, writes: Sequence[Any]) -> list[Any]:
        if writes and isinstance(writes[0], StepWrite):
            return list(writes)
        return right(connection, scope, writes)

    with patch.object(unit_writes, "_proven", trusting):
        yield


def _suspended_without_a_look() -> AbstractContextManager[Any]:
    return _swapped("ready", "name in", "name not in")


def _timers_forgotten() -> AbstractContextManager[Any]:
    return _swapped("wakes", "min(u.wake_at_ns)", "max(null)")


def _two_winners() -> AbstractContextManager[Any]:
    return _swapped("resolve", "where deferreds.life <> excluded.life", "where true")


def _nobody_woken() -> AbstractContextManager[Any]:
    return _swapped(
        "wake",
        "iif(status = 'suspended' and starts_at_ns is null, 'running', status), wake_at_ns = starts_at_ns",
        "status",
    )


def _parent_not_told() -> AbstractContextManager[Any]:
    return _swapped("end_looks", "p.ended_at_ns is null", "false")


def _steps_left_behind() -> AbstractContextManager[Any]:
    return _swapped("forget_steps", "cluster = :cluster", "cluster = :cluster and done")


# ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _what_is_stored_run_again() -> Iterator[None]:
    right = Places.row_at

    def forgetful(self: Places, place: Place) -> StepRow | None:
        row = right(self, place)
        return None if row is not None and place.kind == "step" and place.position > 1 else row

    with patch.object(Places, "row_at", forgetful):
        yield


@contextmanager
def _unanswered_step_taken_as_stored() -> Iterator[None]:
    right = SqliteUnits.step

    async def sure(self: SqliteUnits, write: StepWrite) -> StepResult:
        try:
            return await right(self, write)
        except PersistenceError as error:
            if error.outcome != "unknown" or not write.done:
                raise
            facts = {name: getattr(write, name) for name in ("branch", "position", "kind", "name", "value", "error")}
            return StepResult("written", StepRow(done=True, **facts), to_datetime(self._clock.wall_ns()))

    with patch.object(SqliteUnits, "step", sure):
        yield


def _run_without_the_seat() -> AbstractContextManager[Any]:
    return patch.object(DurableWork, "require_held", lambda _: None)


def _given_up_without_a_look() -> AbstractContextManager[Any]:
    return patch.object(DurableWork, "_has_read_at", lambda *_: True)


def _others_not_waited_for() -> AbstractContextManager[Any]:
    return patch.object(waits, "_TURNS", 0)


@contextmanager
def _clock_never_set_back() -> Iterator[None]:
    right = Dial.observe
    with patch.object(Dial, "observe", lambda self, now, **_: right(self, now)):
        yield


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _interrupted_and_nothing_undone() -> Iterator[None]:
    right = Execution._compensate

    async def idle(self: Execution) -> None:
        if not self._is_interrupted:
            await right(self)

    with patch.object(Execution, "_compensate", idle):
        yield


@contextmanager
def _undone_from_the_first_on() -> Iterator[None]:
    right = Execution._compensate

    async def forwards(self: Execution) -> None:
        self._undo.reverse()
        await right(self)

    with patch.object(Execution, "_compensate", forwards):
        yield


@contextmanager
def _interrupt_forgotten_by_who_takes_over() -> Iterator[None]:
    right = Execution._load

    async def deaf(self: Execution) -> UnitSnapshot | None:
        loaded = await right(self)
        if loaded is None:
            return None
        row = msgspec.structs.replace(loaded.row, interrupting=False)
        return msgspec.structs.replace(loaded, row=row)

    with patch.object(Execution, "_load", deaf):
        yield


@contextmanager
def _suspended_while_a_branch_goes_on() -> Iterator[None]:
    def any_waits(self: DurableWork) -> bool:
        return bool(self.waits or self.parked)

    def here(self: DurableWork) -> None:
        self._branches[asyncio.current_task()] = None

    def gone(self: DurableWork) -> None:
        self._branches.pop(asyncio.current_task(), None)

    with (
        patch.object(DurableWork, "is_quiet", property(any_waits)),
        patch.object(DurableWork, "_count_in", here),
        patch.object(DurableWork, "_count_out", gone),
    ):
        yield


@contextmanager
def _no_sweep() -> Iterator[None]:
    async def never(self: HeldWorkflows) -> None:
        del self
        await asyncio.Event().wait()

    with patch.object(HeldWorkflows, "_sweep", never):
        yield


F2 = "INV-F2"

PLANTED: tuple[Planted, ...] = (
    ("suspended without another look", _suspended_without_a_look, workload.main, ("W3", "W4")),
    ("step stored without the fence", _not_fenced, workload.late, (F2, "W1", "W4", "B5")),
    ("timers forgotten", _timers_forgotten, workload.main, ("W3", "W4")),
    ("two winners of a resolution", _two_winners, workload.main, ("W4",)),
    ("a value that wakes nobody", _nobody_woken, workload.main, ("W4",)),
    ("a parent that is not told", _parent_not_told, workload.main, ("W3",)),
    ("rows of a run left behind", _steps_left_behind, workload.main, ("W5",)),
    ("what is stored run again", _what_is_stored_run_again, workload.main, ("W1",)),
    ("unanswered step taken as stored", _unanswered_step_taken_as_stored, workload.late, ("W1", "B5")),
    ("a step run without the seat", _run_without_the_seat, workload.main, ("W1", "B5")),
    ("given up without a last look", _given_up_without_a_look, workload.late, ("W4",)),
    ("a clock that is never set back", _clock_never_set_back, workload.main, ("S11",)),
    ("other branches not waited for", _others_not_waited_for, workload.nested, ("B5",)),
    ("interrupted, and nothing undone", _interrupted_and_nothing_undone, workload.main, ("B5",)),
    ("undone from the first one on", _undone_from_the_first_on, workload.main, ("B5",)),
    ("interruption forgotten at a takeover", _interrupt_forgotten_by_who_takes_over, workload.main, ("B5",)),
    ("suspended while a branch goes on", _suspended_while_a_branch_goes_on, workload.main, ("W1", "W3", "W4", "B5")),
    ("runs not swept", _no_sweep, workload.main, ("W3", "W4")),
)
"""Name, how it is planted, what finds it, and the promises that are then broken, if it says so."""
SAMPLE = {
    "two winners of a resolution",
    "a value that wakes nobody",
    "rows of a run left behind",
    "what is stored run again",
    "undone from the first one on",
}
"""Those that every change is held against; the others take longer."""
