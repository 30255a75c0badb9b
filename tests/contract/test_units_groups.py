"""What is written about many units at once, on every engine: the effect of one after another [M3]."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage.contracts.units import StepWrite, UnitEnd
from coterie.storage.interface import Claim, KvPut, StateSave
from tests.contract.test_states import A, B, evict
from tests.contract.test_ticks_groups import writer
from tests.contract.units import (
    LEADER,
    S2,
    end_unit,
    foreign_claims,
    grant,
    joined,
    list_units,
    load_unit,
    open_unit,
    pending_step,
    positions,
    runner_a,
    runner_b,
    start_unit,
    step_write,
    stored_unit,
    suspend_unit,
    unit_key,
    write_step,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.storage.interface import Ownership, Storage

__all__ = ["runner_a", "runner_b"]  # fixtures


async def submit(storage: Storage, write: StepWrite | UnitEnd) -> str:
    return (await (storage.units.step(write) if isinstance(write, StepWrite) else storage.units.end(write))).told


async def test_many_units_share_few_transactions(storage: Storage, runner_a: Ownership) -> None:
    claim = await grant(runner_a)
    units = [(await start_unit(storage, f"{number:03}")).unit for number in range(150)]
    before = writer(storage).groups
    waits = await asyncio.gather(*(storage.units.step(pending_step(claim, unit, kind="deferred")) for unit in units))
    steps = await asyncio.gather(
        *(write_step(storage, claim, unit, 1, branch=branch, value=unit.encode()) for unit in units for branch in "01")
    )
    dones = await asyncio.gather(*(write_step(storage, claim, unit, kind="deferred") for unit in units))
    assert {each.told for each in (*waits, *steps, *dones)} == {"written"}
    found = await load_unit(storage, claim, units[7])
    assert found.steps == (dones[7].row, steps[14].row, steps[15].row)
    assert found.row.steps == 3
    ended = (end_unit(storage, claim, unit, value=unit.encode(), parent=None) for unit in units)
    assert {each.told for each in await asyncio.gather(*ended)} == {"written"}
    assert writer(storage).groups - before <= 12
    rows = await list_units(storage)
    assert len(rows) == len(units)
    assert all((row.status, row.value) == ("done", row.unit.encode()) for row in rows)
    assert (await load_unit(storage, claim, units[7])).steps == found.steps


async def test_members_of_a_group_are_strangers(storage: Storage, runner_a: Ownership, runner_b: Ownership) -> None:
    """M3: steps, ends, states and keys in one commit; those that are refused write nothing."""
    one, two, leader = await grant(runner_a), await grant(runner_b, B, S2), await grant(runner_a, A, LEADER)
    gone = Claim(A, one.seat, one.epoch + 1)
    u, v = (await start_unit(storage, "u")).unit, (await start_unit(storage, "v", seat=S2)).unit
    w = (await start_unit(storage, "w")).unit
    run = (await open_unit(storage, leader)).row.unit
    await write_step(storage, one, u)
    results = await asyncio.gather(
        storage.kv.put(KvPut("k", b"kv", 1)),
        submit(storage, step_write(one, u)),
        submit(storage, step_write(one, u, 1)),
        submit(storage, step_write(gone, u, 2)),
        submit(storage, step_write(one, v)),
        submit(storage, step_write(two, v)),
        submit(storage, UnitEnd(gone, w, "done")),
        submit(storage, step_write(leader, run)),
        submit(storage, UnitEnd(one, unit_key("none"), "done")),
        submit(storage, step_write(one, unit_key("none"))),
        storage.states.save(StateSave(one, "s", b"state", 0)),
        submit(storage, UnitEnd(two, v, "failed")),
        submit(storage, step_write(one, w)),
    )
    assert results == [
        *(None, "there", "written", "fenced", "over", "written", "fenced", "written", "over", "over"),
        *("written", "written", "written"),
    ]
    assert positions(await load_unit(storage, one, u)) == [("", 0), ("", 1)]
    assert ((await stored_unit(storage, v)).status, (await stored_unit(storage, v)).steps) == ("failed", 1)
    assert ((await stored_unit(storage, w)).status, (await stored_unit(storage, run)).steps) == ("running", 1)


async def test_a_group_may_have_steps_of_one_unit_and_its_end(storage: Storage, runner_a: Ownership) -> None:
    """In their order: what comes after the end is over, and what came before is stored."""
    claim, leader = await grant(runner_a), await grant(runner_a, A, LEADER)
    unit, run = (await start_unit(storage)).unit, (await open_unit(storage, leader)).row.unit
    writes: list[StepWrite | UnitEnd] = [
        pending_step(claim, unit),
        step_write(leader, run),
        step_write(claim, unit, kind="sleep"),
        step_write(claim, unit, kind="sleep", value=b"other"),
        step_write(claim, unit, 1),
        UnitEnd(claim, unit, "done", value=b"first"),
        UnitEnd(leader, run, "done"),
        step_write(claim, unit, 2),
        UnitEnd(claim, unit, "failed"),
        step_write(leader, run, 1),
    ]
    results = await asyncio.gather(*(submit(storage, write) for write in writes))
    assert results == ["written", "written", "written", "there", *["written"] * 3, "over", "over", "over"]
    found = await load_unit(storage, claim, unit)
    assert (found.row.status, found.row.value, [each.position for each in found.steps]) == ("done", b"first", [0, 1])
    assert await storage.units.get(run) is None
    assert (await open_unit(storage, leader)).steps == ()


async def test_a_child_and_its_parent_may_end_in_one_group(storage: Storage, runner_a: Ownership) -> None:
    """Whatever the order: the parent is told while it goes on, and not after."""
    claim, other = await grant(runner_a), await grant(runner_a, A, S2)
    for number in range(6):
        parent = (await start_unit(storage, f"p{number}", seat=S2)).unit
        child = (await start_unit(storage, f"c{number}", parent=parent, waited_as="w")).unit
        await suspend_unit(storage, other, parent, "w")
        ends = [UnitEnd(claim, child, "done", outcome=b"o"), UnitEnd(other, parent, "interrupted")]
        ends = ends if number % 2 else ends[::-1]
        told = await asyncio.gather(*map(storage.units.end, ends))
        assert [each.told for each in told] == ["written", "written"]
        found = await load_unit(storage, other, parent)
        assert (found.row.status, len(found.deferreds)) in (("interrupted", 0), ("interrupted", 1))
        assert (await stored_unit(storage, child)).status == "done"


@pytest.mark.parametrize("parent_first", [False, True])
async def test_a_parent_whose_end_is_refused_hears_of_its_child(
    storage: Storage, runner_a: Ownership, parent_first: bool
) -> None:
    """W4: that both ends stand in one group says nothing."""
    claim, other = await grant(runner_a), await grant(runner_a, A, S2)
    parent = (await start_unit(storage, "parent", seat=S2)).unit
    child = (await start_unit(storage, "child", parent=parent, waited_as="w")).unit
    await suspend_unit(storage, other, parent, "w")
    ends = [UnitEnd(claim, child, "done", outcome=b"o"), UnitEnd(foreign_claims(other)[1], parent, "done")]
    told = await asyncio.gather(*map(storage.units.end, reversed(ends) if parent_first else ends))
    assert {each.told for each in told} == {"written", "fenced"}
    found = await load_unit(storage, other, parent)
    assert (found.row.status, [each.value for each in found.deferreds]) == ("running", [b"o"])


async def test_many_children_of_one_parent_end_in_one_group(storage: Storage, runner_a: Ownership) -> None:
    claim, other = await grant(runner_a), await grant(runner_a, A, S2)
    parent = (await start_unit(storage, "parent", seat=S2)).unit
    children = [(await start_unit(storage, str(n), parent=parent, waited_as=f"w{n}")).unit for n in range(20)]
    await suspend_unit(storage, other, parent, "w3")
    told = await asyncio.gather(*(end_unit(storage, claim, child, outcome=child.encode()) for child in children))
    assert {(each.told, each.wake) for each in told} == {("written", S2)}
    found = await load_unit(storage, other, parent)
    assert found.row.status == "running"
    assert {each.name: each.value for each in found.deferreds} == {
        f"w{number}": child.encode() for number, child in enumerate(children)
    }


async def test_children_of_several_parents_end_in_one_group_and_wake_each_of_them(
    storage: Storage, runner_a: Ownership
) -> None:
    claim, other = await grant(runner_a), await grant(runner_a, A, S2)
    parents = [(await start_unit(storage, f"p{n}", seat=S2)).unit for n in range(3)]
    children = [(await start_unit(storage, f"c{n}", parent=each, waited_as="w")).unit for n, each in enumerate(parents)]
    for each in parents:
        await suspend_unit(storage, other, each, "w")
    told = await asyncio.gather(*(end_unit(storage, claim, child, outcome=b"o") for child in children))
    assert [each.told for each in told] == ["written"] * 3
    assert [(await stored_unit(storage, each)).status for each in parents] == ["running"] * 3


async def test_what_two_lives_of_a_process_write_meets_in_one_group(
    storage: Storage, runner_a: Ownership, runner_b: Ownership
) -> None:
    """An evicted process goes on as another incarnation, while steps of the first still wait in its queue."""
    old, unit = await grant(runner_a), (await start_unit(storage)).unit
    await write_step(storage, old, unit)
    await evict(runner_b, A)
    new = await grant(runner_b, B)
    writes: list[StepWrite | UnitEnd] = [
        step_write(old, unit, 1, value=b"old"),
        step_write(new, unit, 1, value=b"new"),
        UnitEnd(old, unit, "failed"),
        step_write(old, unit, 2, value=b"old"),
        UnitEnd(new, unit, "done"),
        UnitEnd(old, unit, "failed"),
    ]
    results = await asyncio.gather(*(submit(storage, write) for write in writes))
    assert results == ["fenced", "written", "fenced", "fenced", "written", "fenced"]
    assert (await stored_unit(storage, unit)).status == "done"


def members(chance: random.Random, claims: list[Claim], units: list[str]) -> Iterator[StepWrite | UnitEnd]:
    """Writes over few units and places, so that they meet; some of lost seats, some of units that have ended."""
    for _ in range(chance.randint(2, 15)):
        unit, claim = chance.choice(units), chance.choice(claims)
        position, branch = chance.randint(0, 4), chance.choice(["", "0"])
        if chance.random() < 0.12:
            yield UnitEnd(claim, unit, chance.choice(["done", "failed"]), value=b"v", outcome=unit.encode())
        elif chance.random() < 0.4:
            yield pending_step(claim, unit, position, branch=branch, name=f"s{position % 3}")
        else:
            name, value = f"s{chance.choice([position, 0]) % 3}", chance.randbytes(chance.choice([0, 3, 5000]))
            yield step_write(claim, unit, position, branch=branch, kind="sleep", name=name, value=value)


async def left(storage: Storage, claim: Claim) -> list[Any]:
    """All that is there, without what the clock had a part in, and without values for those that are over: whether the
    parent or its child has ended first counts there."""
    found = [
        await load_unit(storage, claim, row.unit) for row in sorted(await list_units(storage), key=lambda row: row.unit)
    ]
    return [
        (
            *(each.row.unit, each.row.status, each.row.value, each.row.steps, each.row.ended_at is None),
            [(row.branch, row.position, row.name, row.done, row.value) for row in each.steps],
            sorted((row.name, row.value) for row in each.deferreds if each.row.ended_at is None),
        )
        for each in found
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_a_group_has_the_effect_of_its_members_one_after_another(
    storage: Storage, neighbour: Storage, seed: int
) -> None:
    """M3: the same writes, in groups here and one by one there, are told the same and leave the same behind."""
    async with joined(storage, A) as here, joined(neighbour, B) as there:
        results: list[list[list[str]]] = [[], []]
        behind: list[Any] = []
        for place, (session, runner, each) in enumerate(((here, A, storage), (there, B, neighbour))):
            chance, held = random.Random(seed), await grant(session, runner)
            units = [unit_key(f"{turn}-{number}") for turn in range(8) for number in range(4)]
            for number, unit in enumerate(units):
                above = units[number - 1] if number % 4 else None  # a chain of parents
                await start_unit(each, unit.partition("/")[2], parent=above, waited_as=f"w{number}")
            for turn in range(8):
                some = units[4 * turn : 4 * turn + 4]
                group = list(members(chance, [held, held, held, foreign_claims(held)[1]], some))
                if each is storage:
                    results[place].append(list(await asyncio.gather(*(submit(each, write) for write in group))))
                else:
                    results[place].append([await submit(each, write) for write in group])
            behind.append(await left(each, held))
        assert results[0] == results[1]
        assert behind[0] == behind[1]
        assert {each for group in results[0] for each in group} == {"written", "there", "over", "fenced"}
        assert any(deferreds for *_, deferreds in behind[0]) or seed, "a parent has heard of a child"
