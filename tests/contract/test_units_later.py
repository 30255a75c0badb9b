"""Runs that begin later, debounced starts, time limits and tags, on every engine (W14)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.run_messages import RunMessage
from coterie.storage.contracts.units import NextLife, require_same
from tests.contract.units import (
    end_unit,
    grant,
    list_units,
    new_start,
    resolve,
    runner_a,
    runner_b,
    start_unit,
    stored_unit,
    suspend_unit,
    take_units,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from coterie.storage.contracts.units import UnitStartResult
    from coterie.storage.interface import Ownership, Storage

__all__ = ["runner_a", "runner_b"]  # fixtures

U = unit_key()
SOON_S, LONG_S = 0.05, 3600.0


async def push(storage: Storage, life: int, delay_s: float = LONG_S, **options: Any) -> UnitStartResult:
    plain = {"payload": f"payload {life}".encode(), "digest": f"digest {life}".encode(), "version": str(life)}
    return await storage.units.start(new_start(life=life, delay_s=delay_s, debounced=True, **{**plain, **options}))


async def take_until(storage: Storage, claim: Any, is_there: Any) -> Any:
    """Take until something is there; the database's clock decides when."""
    while True:
        taken = await take_units(storage, claim)
        if is_there(taken):
            return taken


async def begin(storage: Storage, claim: Any) -> Any:
    """The row of the run, once it has begun."""
    (row,) = (await take_until(storage, claim, lambda taken: taken.rows)).rows
    return row


class TestLater:
    async def test_it_is_not_taken_before_its_time(self, storage: Storage, runner_a: Ownership) -> None:
        claim, before = await grant(runner_a), await storage.now()
        row = await start_unit(storage, delay_s=LONG_S)
        assert row.status == "suspended"
        assert row.starts_at is not None
        assert row.starts_at == row.wake_at
        assert row.starts_at >= before + timedelta(seconds=LONG_S)
        taken = await take_units(storage, claim)
        assert (taken.rows, taken.wake_at) == ((), row.starts_at)

    async def test_it_begins_when_it_is_due(self, storage: Storage, runner_a: Ownership) -> None:
        claim, stored = await grant(runner_a), await start_unit(storage, delay_s=SOON_S)
        row = await begin(storage, claim)
        assert (row.status, row.starts_at, row.wake_at) == ("running", None, None)
        assert stored.starts_at is not None
        assert row.started_at >= stored.starts_at, "its time counts from here"

    async def test_at_an_instant(self, storage: Storage, runner_a: Ownership) -> None:
        at = datetime(2199, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
        assert (await start_unit(storage, starts_at=at)).starts_at == at
        assert (await stored_unit(storage, U)).wake_at == at

    async def test_an_instant_that_is_past_is_now(self, storage: Storage, runner_a: Ownership) -> None:
        claim, row = await grant(runner_a), await start_unit(storage, starts_at=datetime(2001, 1, 1, tzinfo=UTC))
        assert (row.status, row.starts_at) == ("running", None)
        assert (await take_units(storage, claim)).rows == (row,)

    async def test_nothing_that_comes_for_it_begins_it(self, storage: Storage, runner_a: Ownership) -> None:
        claim, row = await grant(runner_a), await start_unit(storage, delay_s=LONG_S, life=1)
        await storage.run_messages.send(RunMessage(unit=U, name="approve", id="1", digest=b"d", value=b"v"))
        assert await resolve(storage, U, life=1) == "resolved"
        await storage.units.resume(U)
        after = await stored_unit(storage, U)
        assert (after.status, after.wake_at, after.starts_at) == ("suspended", row.starts_at, row.starts_at)
        assert (await take_units(storage, claim)).rows == ()

    async def test_one_that_is_interrupted_is_taken_and_has_not_begun(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """Its runner ends it without its body."""
        claim, row = await grant(runner_a), await start_unit(storage, delay_s=LONG_S)
        await storage.units.interrupt(U)
        (taken,) = (await take_units(storage, claim)).rows
        assert (taken.interrupting, taken.status, taken.starts_at) == (True, "running", row.starts_at)
        assert (await end_unit(storage, claim, U, status="interrupted")).told == "written"
        assert (await stored_unit(storage, U)).starts_at is None

    async def test_the_same_start_again_changes_nothing(self, storage: Storage, runner_a: Ownership) -> None:
        row = await start_unit(storage, delay_s=LONG_S)
        again = await storage.units.start(new_start(delay_s=2 * LONG_S))
        assert (again.told, again.row) == ("there", row)
        other = await storage.units.start(new_start(digest=b"other"))
        assert (other.told, other.row) == ("conflict", row)

    async def test_another_life_that_begins_later(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await end_unit(storage, claim, U)
        found = await storage.units.start(new_start(life=2, again=True, delay_s=LONG_S))
        assert (found.told, found.row.status, found.row.life) == ("started", "suspended", 2)
        assert found.row.starts_at is not None


class TestTimeout:
    async def test_it_is_asked_to_end(self, storage: Storage, runner_a: Ownership) -> None:
        claim, row = await grant(runner_a), await start_unit(storage, timeout_s=SOON_S)
        assert row.times_out_at == row.started_at + timedelta(seconds=SOON_S)
        taken = await take_until(storage, claim, lambda taken: taken.rows[0].interrupting)
        assert (taken.rows[0].interrupted_for, taken.rows[0].times_out_at) == ("timeout", None)
        assert taken.wake_at is None

    async def test_a_suspended_one_goes_on_to_its_end(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, timeout_s=SOON_S)
        await suspend_unit(storage, claim, U, "never")
        (row,) = (await take_until(storage, claim, lambda taken: taken.rows)).rows
        assert (row.interrupting, row.interrupted_for, row.status, row.wake_at) == (True, "timeout", "running", None)

    async def test_it_counts_from_the_begin(self, storage: Storage, runner_a: Ownership) -> None:
        claim, stored = await grant(runner_a), await start_unit(storage, delay_s=SOON_S, timeout_s=LONG_S)
        assert stored.times_out_at is None
        row = await begin(storage, claim)
        assert row.times_out_at is not None
        assert row.times_out_at - row.started_at == pytest.approx(timedelta(seconds=LONG_S), abs=timedelta(seconds=1))
        assert (await take_units(storage, claim)).wake_at == row.times_out_at

    async def test_whoever_asked_before_is_the_reason(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, timeout_s=SOON_S)
        await storage.units.interrupt(U)
        (row,) = (await take_until(storage, claim, lambda taken: taken.rows[0].times_out_at is None)).rows
        assert (row.interrupting, row.interrupted_for) == (True, "")

    async def test_one_that_is_over_has_no_time_left(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, timeout_s=SOON_S)
        await end_unit(storage, claim, U)
        assert (await stored_unit(storage, U)).times_out_at is None
        assert (await take_units(storage, claim)).wake_at is None

    async def test_the_next_life_of_the_run_has_what_is_left(self, storage: Storage, runner_a: Ownership) -> None:
        claim, before = await grant(runner_a), await start_unit(storage, life=1, timeout_s=LONG_S)
        await storage.units.renew(NextLife(claim=claim, unit=U, life=1, next=2, payload=b"", version=""))
        assert (await stored_unit(storage, U)).times_out_at == before.times_out_at


class TestDebounce:
    async def test_a_start_puts_it_off_and_replaces_its_payload(self, storage: Storage, runner_a: Ownership) -> None:
        first = await push(storage, 1)
        assert (first.told, first.row.status) == ("started", "suspended")
        second = await push(storage, 2, 2 * LONG_S, timeout_s=5.0)
        assert second.told == "pushed"
        row = await stored_unit(storage, U)
        assert row == second.row
        assert (row.payload, row.digest, row.version, row.life) == (b"payload 2", b"digest 2", "2", 2)
        assert first.row.starts_at is not None
        assert row.starts_at is not None
        assert row.starts_at == row.wake_at
        assert row.starts_at - first.row.starts_at >= timedelta(seconds=LONG_S)

    async def test_it_may_come_sooner_too(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await push(storage, 1)
        assert (await push(storage, 2, SOON_S)).told == "pushed"
        assert (await begin(storage, claim)).payload == b"payload 2"

    async def test_no_further_than_the_first_one_said(self, storage: Storage, runner_a: Ownership) -> None:
        first = await push(storage, 1, LONG_S, latest_s=1.5 * LONG_S)
        for life in range(2, 5):
            latest = (await push(storage, life, life * LONG_S, latest_s=life * LONG_S)).row
        assert first.row.starts_at is not None
        assert latest.starts_at is not None
        assert latest.starts_at - first.row.starts_at == timedelta(seconds=0.5 * LONG_S)

    async def test_an_instant_bounds_it(self, storage: Storage, runner_a: Ownership) -> None:
        at = await storage.now() + timedelta(seconds=10)
        assert (await push(storage, 1, latest_at=at)).row.starts_at == at
        assert (await push(storage, 2, 1.0)).row.starts_at != at
        assert (await push(storage, 3)).row.starts_at == at, "a start without a bound keeps that of the first"

    async def test_it_puts_off_what_was_to_begin_later(self, storage: Storage, runner_a: Ownership) -> None:
        before = await start_unit(storage, life=1, delay_s=1.0)
        after = await push(storage, 2)
        assert after.told == "pushed"
        assert before.starts_at is not None
        assert after.row.starts_at is not None
        assert after.row.starts_at > before.starts_at

    async def test_of_a_run_that_has_begun_it_is_the_next_life(self, storage: Storage, runner_a: Ownership) -> None:
        claim, before = await grant(runner_a), await start_unit(storage, life=1)
        for life in (2, 3):
            found = await push(storage, life, SOON_S, timeout_s=LONG_S, tags='{"n":"3"}')
            assert (found.told, found.row.life, found.row.next_life) == ("kept", 1, life)
        row = await stored_unit(storage, U)
        assert (row.payload, row.digest, row.status, row.tags) == (before.payload, before.digest, "running", None)
        await write_step(storage, claim, U)
        await end_unit(storage, claim, U)
        row = await begin(storage, claim)
        assert (row.life, row.payload, row.digest, row.version) == (3, b"payload 3", b"digest 3", "3")
        assert (row.next_life, row.next_at, row.steps, row.value, row.ended_at) == (None, None, 0, None, None)
        assert row.times_out_at is not None
        assert [each.unit for each in await list_units(storage, tag=("n", "3"))] == [U]

    async def test_its_next_life_waits_for_its_time(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        kept = await push(storage, 2)
        await end_unit(storage, claim, U, status="failed")
        taken = await take_units(storage, claim)
        row = await stored_unit(storage, U)
        assert (taken.rows, taken.wake_at) == ((), kept.row.next_at)
        assert (row.status, row.starts_at, row.life, row.error) == ("suspended", kept.row.next_at, 2, None)
        assert (await push(storage, 3)).told == "pushed"

    async def test_children_of_the_life_that_failed_are_none_of_the_next(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await start_unit(storage, "child", parent=U, waited_as="w")
        await push(storage, 2, 0.0)
        await end_unit(storage, claim, U, status="failed")
        await take_until(storage, claim, lambda taken: U in {row.unit for row in taken.rows})
        assert (await stored_unit(storage, unit_key("child"))).interrupting

    async def test_of_a_run_that_is_over_a_new_life_begins(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await write_step(storage, claim, U)
        await end_unit(storage, claim, U)
        found = await push(storage, 2)
        assert (found.told, found.row.status, found.row.life, found.row.steps) == ("started", "suspended", 2, 0)
        assert (await push(storage, 3)).told == "pushed"

    async def test_a_start_whose_answer_was_lost_does_not_run_twice(
        self, storage: Storage, runner_a: Ownership
    ) -> None:
        """It has begun before it is tried again."""
        claim, _ = await grant(runner_a), await push(storage, 1)
        await push(storage, 2, SOON_S)
        await begin(storage, claim)
        again = await push(storage, 2, SOON_S)
        assert (again.told, again.row.next_life) == ("there", None)
        await end_unit(storage, claim, U)
        assert (await push(storage, 2, SOON_S)).told == "there"
        assert (await stored_unit(storage, U)).ended_at is not None

    async def test_one_that_is_to_end_does_not_begin_with_it(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await push(storage, 1)
        await storage.units.interrupt(U)
        assert (await push(storage, 2, 0.0)).told == "kept"
        await end_unit(storage, claim, U, status="interrupted")
        row = await begin(storage, claim)
        assert (row.life, row.interrupting, row.payload) == (2, False, b"payload 2")

    async def test_another_payload_is_no_conflict(self, storage: Storage) -> None:
        await push(storage, 1)
        start = new_start(life=2, digest=b"other", debounced=True)
        require_same(start, (await storage.units.start(start)).row.digest)

    async def test_the_purge_leaves_a_run_that_goes_on(self, storage: Storage, runner_a: Ownership) -> None:
        claim, _ = await grant(runner_a), await start_unit(storage, life=1)
        await push(storage, 2)
        await end_unit(storage, claim, U)
        await storage.units.purge(older_s=0.0, most=10)
        assert (await stored_unit(storage, U)).next_life == 2


class TestTags:
    async def test_runs_are_found_by_them(self, storage: Storage, runner_a: Ownership) -> None:
        claim = await grant(runner_a)
        await start_unit(storage, "a", tags='{"order":"7","tenant":"acme"}')
        await start_unit(storage, "b", tags='{"order":"8"}', delay_s=LONG_S)
        await start_unit(storage, "c")

        async def found(*tag: str, **options: Any) -> list[str]:
            return [row.id for row in await list_units(storage, tag=tag, **options)]

        assert await found("order", "7") == ["a"]
        assert await found("order", "8") == ["b"]
        assert await found("order", "8", status="running") == []
        assert await found("tenant", "7") == []
        assert await found("order", "7", name="Other") == []
        assert (await stored_unit(storage, unit_key("c"))).tags is None
        await end_unit(storage, claim, unit_key("a"))
        assert await found("order", "7") == ["a"]
        while await stored_or_none(storage, "a"):
            await storage.units.purge(older_s=0.0, most=10)
        assert await found("order", "7") == []

    async def test_a_debounced_start_replaces_them(self, storage: Storage) -> None:
        await push(storage, 1, tags='{"order":"7"}')
        await push(storage, 2, tags='{"order":"8"}')
        await push(storage, 3)
        assert not await list_units(storage, tag=("order", "7"))
        assert [row.id for row in await list_units(storage, tag=("order", "8"))] == ["one"]


async def stored_or_none(storage: Storage, id: str) -> Any:
    return await storage.units.get(unit_key(id))
