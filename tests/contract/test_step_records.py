"""Steps as people see them, on every engine: when they began and ended, attempts, runners, and waits that are over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.contract.test_unreadable import TableWriter, hand
from tests.contract.units import (
    LEADER,
    S2,
    end_unit,
    grant,
    load_unit,
    new_start,
    open_unit,
    pending_step,
    resolve,
    runner_a,
    start_unit,
    step_write,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.interface import Ownership, Storage

__all__ = ["hand", "runner_a"]  # fixtures

U = unit_key()
EARLIER = timedelta(seconds=90)


async def test_a_step_has_its_beginning_its_end_its_attempts_and_its_runner(
    storage: Storage, runner_a: Ownership
) -> None:
    claim = await grant(runner_a)
    await start_unit(storage)
    began_at = await storage.now() - EARLIER
    alone = {"began_at": began_at, "attempts": 3, "runner": "anna"}
    await write_step(storage, claim, U, 0, **alone)
    await write_step(storage, claim, U, 1, **alone, value=None, error=b"e")  # not by the statement for one
    first, second = await storage.units.records(U)
    for each in (first, second):
        assert (each.began_at, each.attempts, each.runner, each.done) == (began_at, 3, "anna", True)
        assert each.ended_at is not None
        assert began_at + EARLIER <= each.ended_at <= await storage.now()
    assert (first.value, second.error) == (b"v", b"e")


async def test_a_step_does_not_begin_after_it_was_stored(storage: Storage, runner_a: Ownership) -> None:
    """The runner's idea of the database's clock may be wrong."""
    claim = await grant(runner_a)
    await start_unit(storage)
    await write_step(storage, claim, U, 0, began_at=datetime(2200, 1, 1, tzinfo=UTC))
    await write_step(storage, claim, U, 1, began_at=datetime(2200, 1, 1, tzinfo=UTC), error=b"e")
    assert all(each.began_at == each.ended_at for each in await storage.units.records(U))


async def test_a_wait_began_when_it_was_stored_and_ends_with_its_end(storage: Storage, runner_a: Ownership) -> None:
    claim = await grant(runner_a)
    await start_unit(storage)
    wait = pending_step(claim, U, due_s=60, runner="anna")
    begun = await storage.units.step(wait)
    (waiting,) = await storage.units.records(U)
    assert (waiting.began_at, waiting.ended_at, waiting.attempts) == (begun.now, None, None)
    assert (waiting.done, waiting.runner) == (False, "anna")
    late = datetime(1999, 1, 1, tzinfo=UTC)
    await storage.units.step(step_write(claim, U, kind="sleep", value=None, began_at=late, runner="bert"))
    (over,) = await storage.units.records(U)
    assert (over.began_at, over.done, over.runner) == (begun.now, True, "bert")
    assert over.ended_at is not None
    assert over.ended_at >= begun.now


async def test_a_deferred_ends_when_its_value_comes(storage: Storage, runner_a: Ownership) -> None:
    claim = await grant(runner_a)
    await start_unit(storage)
    for position, name in enumerate(("paid", "refused", "open")):
        await storage.units.step(pending_step(claim, U, position, kind="deferred", name=name, value=b"type"))
    await resolve(storage, U, "paid", value=b"42")
    await resolve(storage, U, "refused", value=None, error="too late")
    paid, refused, waiting = await storage.units.records(U)
    assert (paid.done, paid.value, paid.rejection) == (True, b"42", None)
    assert (refused.done, refused.rejection) == (True, "too late")
    assert (waiting.done, waiting.value, waiting.ended_at) == (False, b"type", None)
    for each in (paid, refused):
        assert each.began_at is not None
        assert each.ended_at is not None
        assert each.began_at <= each.ended_at
    assert [each.done for each in (await load_unit(storage, claim, U)).steps] == [False] * 3, (
        "as its holder stored them"
    )


async def test_a_child_ends_when_its_run_ends(storage: Storage, runner_a: Ownership) -> None:
    claim, other = await grant(runner_a), await grant(runner_a, seat=S2)
    await start_unit(storage)
    await storage.units.start(new_start("part", seat=S2, parent=U, waited_as="child:part:Order"))
    await storage.units.step(pending_step(claim, U, kind="child", name="Order/part"))
    (waiting,) = await storage.units.records(U)
    assert (waiting.done, waiting.ended_at) == (False, None)
    await end_unit(storage, other, unit_key("part"), status="failed", error=b"e")
    (over,) = await storage.units.records(U)
    ended = await storage.units.get(unit_key("part"))
    assert ended is not None
    assert (over.done, over.ended_at, over.error) == (True, ended.ended_at, b"e")


async def test_the_value_of_a_former_life_ends_nothing(storage: Storage, runner_a: Ownership) -> None:
    claim = await grant(runner_a)
    await start_unit(storage, life=2)
    await storage.units.step(pending_step(claim, U, kind="deferred", name="d"))
    await resolve(storage, U, "d", value=b"1", life=1)
    (waiting,) = await storage.units.records(U)
    assert not waiting.done


async def test_rows_of_an_older_version_show_what_is_known(
    storage: Storage, runner_a: Ownership, hand: TableWriter
) -> None:
    claim = await grant(runner_a)
    await start_unit(storage)
    done = await write_step(storage, claim, U, 0)
    waits = await storage.units.step(pending_step(claim, U, 1, kind="sleep"))
    began = next(name for name, _ in await hand.columns("steps") if name.startswith("began_at"))
    await hand.run(f"update steps set {began} = null, attempts = null, runner = null")
    old, waiting = await storage.units.records(U)
    assert (old.began_at, old.ended_at, old.attempts, old.runner) == (None, done.now, None, None)
    assert (waiting.began_at, waiting.ended_at) == (waits.now, None)
    await storage.units.step(step_write(claim, U, 1, kind="sleep", value=None, runner="anna"))
    _, over = await storage.units.records(U)
    assert (over.began_at, over.runner) == (waits.now, "anna"), "its wait is as long as it was"


async def test_w8_what_a_run_has_stored_stays_when_it_has_ended(storage: Storage, runner_a: Ownership) -> None:
    """A value that came for it, too: only that tells what the run has made of it."""
    claim = await grant(runner_a)
    await start_unit(storage)
    await write_step(storage, claim, U)
    await storage.units.step(pending_step(claim, U, 1, kind="deferred", name="paid"))
    await resolve(storage, U, "paid", value=b"42")
    before = await storage.units.records(U)
    await end_unit(storage, claim, U)
    assert list(await storage.units.records(U)) == list(before)
    assert [(each.name, each.value) for each in before] == [("step 0", b"v"), ("paid", b"42")]
    assert (await resolve(storage, U, "paid"), await resolve(storage, U, "other")) == ("over", "over")
    await storage.units.purge(older_s=-60, most=9)
    assert list(await storage.units.records(U)) == []


async def test_nothing_is_left_of_a_unit_of_a_leader_that_has_ended(storage: Storage, runner_a: Ownership) -> None:
    claim = await grant(runner_a, seat=LEADER)
    unit = (await open_unit(storage, claim)).row.unit
    await write_step(storage, claim, unit)
    await end_unit(storage, claim, unit)
    assert list(await storage.units.records(unit)) == []
    assert (await open_unit(storage, claim)).steps == ()
