"""Planted bugs of messages to runs, of what these publish, of maps, races and children, found by the talks workload."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie.durable.branches import BranchedWork
from coterie.durable.position import Places
from coterie.durable.run_messages import MessagingWork
from coterie.durable.waits import Lane
from coterie.storage.sqlite import run_messages, unit_writes
from coterie.storage.sqlite.run_messages import SqliteRunMessages
from coterie.storage.sqlite.store import writes
from coterie.workflows.registry import HeldWorkflows
from tests.simulation.workloads import talks as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence
    from contextlib import AbstractContextManager

    from coterie.durable.position import Place
    from coterie.storage.contracts.run_messages import Publish, Receive
    from coterie.storage.contracts.units import StepResult

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


def _swapped(sql: dict[str, str], name: str, old: str, new: str) -> AbstractContextManager[Any]:
    assert old in sql[name], f"{old!r} is no longer in {name}: bring the plant up to date"
    return patch.dict(sql, {name: sql[name].replace(old, new)})


def _newest_first() -> AbstractContextManager[Any]:
    return _swapped(run_messages.SQL, "first", "order by seq limit 1", "order by seq desc limit 1")  # type: ignore[arg-type]


def _suspended_beside_a_message() -> AbstractContextManager[Any]:
    return _swapped(unit_writes.SQL, "ready", "from run_messages\n    where", "from run_messages\n    where false and")


def _kept_by_the_loser() -> AbstractContextManager[Any]:
    return patch.object(Lane, "note_received", lambda *_: None)


def _given_back_at_the_end() -> AbstractContextManager[Any]:
    return _swapped(
        run_messages.SQL,  # type: ignore[arg-type]
        "give_back",
        "set received_at_ns = null,",
        "set received_at_ns = null, seq = seq + 1000,",
    )


@contextmanager
def _published_again() -> Iterator[None]:
    """A replay publishes what it finds stored."""
    right = run_messages.publish

    def again(connection: Any, scope: Any, write: Publish) -> StepResult:
        told = right(connection, scope, write)
        if told.told == "there":
            names = {"cluster": scope.cluster, "now_ns": scope.now_ns, "unit": write.unit, "name": write.name}
            connection.execute(run_messages.SQL["publish"], {**names, "value": write.value})
        return told

    row_at = MessagingWork._row_at

    def unseen(self: MessagingWork, place: Place) -> Any:
        return None if place.kind == "publish" else row_at(self, place)

    with (
        patch.object(SqliteRunMessages, "publish", writes(again, "publish a value")),
        patch.object(MessagingWork, "_row_at", unseen),
    ):
        yield


@contextmanager
def _timed_out_without_a_look() -> Iterator[None]:
    right = run_messages.receive

    def hasty(connection: Any, scope: Any, write: Receive) -> StepResult:
        names = {"cluster": scope.cluster, "unit": write.unit, "branch": write.branch, "position": write.position}
        sql = "select due_at_ns from steps where cluster = :cluster and unit = :unit and branch = :branch"
        rows = connection.execute(f"{sql} and position = :position and not done", names).fetchall()
        if not rows or rows[0][0] is None or rows[0][0] > scope.now_ns:
            return right(connection, scope, write)
        with _swapped(run_messages.SQL, "first", "where", "where false and"):  # type: ignore[arg-type]
            return right(connection, scope, write)

    with patch.object(SqliteRunMessages, "receive", writes(hasty, "receive a message")):
        yield


def _branches_by_order_of_calls() -> AbstractContextManager[Any]:
    return patch.object(Places, "begin_below", lambda *_: None)


@contextmanager
def _winner_forgotten() -> Iterator[None]:
    right = BranchedWork._outcome_of

    async def forgetful(self: BranchedWork, place: Place, value: int | None) -> None:
        if place.kind != "first":
            await right(self, place, value)

    with patch.object(BranchedWork, "_outcome_of", forgetful):
        yield


@contextmanager
def _failure_forgotten() -> Iterator[None]:
    """Which item of a map has failed: the next runner lets all of them run."""
    right = BranchedWork._outcome_of

    async def forgetful(self: BranchedWork, place: Place, value: int | None) -> None:
        await right(self, place, None if place.kind == "map" else value)

    with patch.object(BranchedWork, "_outcome_of", forgetful):
        yield


@contextmanager
def _children_left_alone() -> Iterator[None]:
    async def idle(self: HeldWorkflows, seats: Sequence[str]) -> None:
        del self, seats

    with patch.object(HeldWorkflows, "_interrupt_children", idle):
        yield


PLANTED: tuple[Planted, ...] = (
    ("the newest message first", _newest_first, workload.main, ("W6",)),
    ("suspended beside a message", _suspended_beside_a_message, workload.main, ("W3",)),
    ("messages that the loser keeps", _kept_by_the_loser, workload.main, ("W3", "W6")),
    ("given back behind the others", _given_back_at_the_end, workload.main, ("W6",)),
    ("published in each replay", _published_again, workload.main, ("W7",)),
    ("timed out without a look", _timed_out_without_a_look, workload.main, ("W6",)),
    ("branches by the order of calls", _branches_by_order_of_calls, workload.main, ("W3", "W13")),
    ("the winner of a race forgotten", _winner_forgotten, workload.main, ("W3", "W13")),
    ("the failure of a map forgotten", _failure_forgotten, workload.main, ("W3", "W13")),
    ("children left alone", _children_left_alone, workload.main, ("W10", "W3")),
)
"""Name, how it is planted, what finds it, and the promises that are then broken, if it says so."""
SAMPLE = {
    "the newest message first",
    "published in each replay",
    "timed out without a look",
    "children left alone",
}
"""Those that every change is held against; the others take longer."""
