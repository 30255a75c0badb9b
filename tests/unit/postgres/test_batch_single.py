"""Writes that are alone: a shorter statement, and what it leaves open is found out by the longer one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest

from coterie.storage.contracts.messages import Commit, Insert, Message, StateChange
from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.interface import Claim, StateSave
from coterie.storage.postgres.batch import plan, single
from tests.unit.postgres.conftest import new_storage
from tests.unit.postgres.test_ownership import S1, A, runner

if TYPE_CHECKING:
    from coterie.storage.interface import Write

MINE = Claim("me", "s", 1)
MESSAGE = Message(id="m", seat="s", entity_type="E", entity_id="e", method="m", payload=b"")
KEYED = Message(id="k", seat="s", entity_type="E", entity_id="e", method="m", payload=b"", key="x")
STEP = StepWrite(MINE, "u", "", 0, "step", "n", value=b"a")


@pytest.mark.parametrize(
    ("write", "shape"),
    [
        (STEP, "add_step"),
        (StepWrite(MINE, "u", "", 0, "step", "n", error=b"e"), None),
        (StepWrite(MINE, "u", "", 0, "sleep", "n"), None),
        (StepWrite(MINE, "u", "", 0, "deferred", "n", done=False), None),
        (StepWrite(MINE, "u", "", 0, "step", "n", due_s=1.0), None),
        (Insert(MESSAGE), "add_message"),
        (Insert(KEYED), "insert_message"),
        (Insert(msgspec.structs.replace(MESSAGE, delay_s=1.0)), "insert_message"),
        (Insert(msgspec.structs.replace(MESSAGE, due_at=datetime.now(UTC))), "insert_message"),
        (Commit(MINE, "m", b"r"), "end_message"),
        (Commit(MINE, "m", b"r", StateChange("k", b"v", 1)), None),
        (Commit(MINE, "m", b"r", None, (MESSAGE,)), None),
        (Commit(MINE, None, b"r"), None),
        (StateSave(MINE, "k", b"v", 1, None, 20), "save_state"),
        (StateSave(MINE, "k", b"v", 0, None, 20), None),
        (StateSave(MINE, "k", b"v", 1), None),
        (UnitEnd(MINE, "u", "done"), None),
    ],
)
def test_which_writes_have_a_statement_of_their_own(write: Write, shape: str | None) -> None:
    assert single.shape_of(write) == shape
    assert shape is None or single.is_shape(shape)


def test_inside_of_a_transaction_statements_are_taken_that_do_not_fail() -> None:
    """A failed one would take its neighbours with it."""
    assert [bucket.shape for bucket in plan.fold([STEP])] == ["add_steps"]
    assert [bucket.shape for bucket in plan.fold([Insert(MESSAGE)])] == ["insert_messages"]
    for sent, shape in ((MESSAGE, "insert_messages"), (KEYED, "insert_message")):
        both = [bucket.shape for bucket in plan.fold([STEP, Insert(sent)])]
        assert sorted(both) == ["add_steps", shape]


@pytest.mark.postgres
@pytest.mark.parametrize("audit", [False, True])
async def test_a_lone_step_that_stands_there_already_is_told_so(postgres_url: str, audit: bool) -> None:
    async with new_storage(postgres_url, audit=audit) as storage, runner(storage, A) as a:
        (granted,) = await a.acquire([S1])
        claim = Claim(A, S1, granted.epoch)
        assert await storage.units.open(claim, unit="u", kind="leader", name="one", id="1") is not None
        first = await storage.units.step(StepWrite(claim, "u", "", 0, "step", "n", value=b"a"))
        again = await storage.units.step(StepWrite(claim, "u", "", 0, "step", "n", value=b"b"))
        later = await storage.units.step(StepWrite(claim, "u", "", 1, "step", "n", value=b"c"))
    assert (first.told, again.told, later.told) == ("written", "there", "written")
    assert again.row == first.row


@pytest.mark.postgres
async def test_a_lone_message_that_stands_there_already_is_its_senders_own(postgres_url: str) -> None:
    """As somebody finds it whose first try is not known."""
    async with new_storage(postgres_url) as storage:
        first, again = [await storage.messages.insert(MESSAGE) for _ in range(2)]
        (row,) = await storage.messages.look(["m"])
    assert (first.fresh, again.fresh, again.id, again.due_at) == (True, True, "m", first.due_at)
    assert row.status == "pending"


@pytest.mark.postgres
async def test_a_lone_end_that_is_not_written_is_told_why(postgres_url: str) -> None:
    async with new_storage(postgres_url) as storage, runner(storage, A) as a:
        (granted,) = await a.acquire([S1])
        claim, late = Claim(A, S1, granted.epoch), Claim(A, S1, granted.epoch + 1)
        sent = msgspec.structs.replace(MESSAGE, seat=S1)
        await storage.messages.insert(sent)
        told = [await storage.messages.commit(write) for write in (Commit(late, "m", b"r"), Commit(claim, "m", b"r"))]
        told += [await storage.messages.commit(write) for write in (Commit(claim, "m", b"r"), Commit(claim, "x", b"r"))]
        told.append(await storage.messages.commit(Commit(late, "m", b"r")))
    assert told == ["fenced", "written", "written", "gone", "fenced"]
