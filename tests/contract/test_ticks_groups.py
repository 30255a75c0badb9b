"""What is written about many crons at once, on every engine: the effect of one after another [M3]."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.kernel.ids import Seat
from coterie.storage.contracts.ticks import TickClaim, TickNote, Verdict
from coterie.storage.interface import Claim, KvPut, StateSave
from tests.contract.test_states import A, B, evict
from tests.contract.ticks import (
    CRON_B,
    at,
    claim_result,
    foreign_claims,
    grant,
    history,
    joined,
    new_claim,
    new_note,
    reread,
    run_verdict,
    runner_a,
    runner_b,
    skip_verdict,
    start_tick,
    stored_cron,
    stored_tick,
    take_cron,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.storage.interface import Ownership, Storage, Write

__all__ = ["runner_a", "runner_b"]  # fixtures


def writer(storage: Any) -> Any:
    """The group writer, which is the engines' own."""
    return storage.groups if hasattr(storage, "groups") else storage.writer


async def submit(storage: Storage, write: TickClaim | TickNote) -> str:
    if isinstance(write, TickClaim):
        return (await storage.ticks.claim(write)).told
    return await storage.ticks.note(write)


async def test_many_crons_share_few_transactions(storage: Storage) -> None:
    """At midnight all of them are due."""
    names = [f"cron {number:03}" for number in range(200)]
    async with joined(storage, A, *names) as session:
        claims = {
            granted.name.partition(":")[2]: Claim(A, granted.name, granted.epoch)
            for granted in await session.acquire([Seat.cron(name) for name in names])
        }
        before = writer(storage).groups
        results = await asyncio.gather(
            *(claim_result(storage, claims[name], None, run_verdict(0), name=name) for name in names)
        )
        assert results == ["written"] * len(names)
        ends = [
            new_note(claims[name], await stored_tick(storage, at(0), name=name), outcome="failed", errors=(name,))
            for name in names
        ]
        assert await asyncio.gather(*map(storage.ticks.note, ends)) == ["written"] * len(names)
        assert writer(storage).groups - before <= 8
        rows = await storage.ticks.list()
        assert [(row.name, row.last, row.runs, row.failures, row.error) for row in rows] == [
            (name, at(0), 1, 1, name) for name in names
        ]


async def test_members_of_a_group_are_strangers(storage: Storage, runner_a: Ownership, runner_b: Ownership) -> None:
    """M3: claims, notes, states and keys in one commit; those that are refused write nothing."""
    one, two = await grant(runner_a, A), await grant(runner_b, B, CRON_B)
    gone = Claim(A, one.seat, one.epoch + 1)
    future = await storage.now() + timedelta(hours=1)
    first = await start_tick(storage, one)
    results = await asyncio.gather(
        storage.kv.put(KvPut("k", b"kv", 1)),
        submit(storage, new_claim(one, at(0), run_verdict(1), skip_verdict(2, 3))),
        submit(storage, new_claim(gone, at(3), run_verdict(4))),
        submit(storage, new_note(one, first, outcome="failed", errors=("e",))),
        submit(storage, new_note(gone, first, outcome="ran")),
        submit(storage, new_claim(one, at(0), run_verdict(1))),
        submit(storage, new_claim(two, None, Verdict(future, future), name=CRON_B)),
        submit(storage, new_note(one, first, outcome="ran")),
        submit(storage, new_claim(one, at(3), run_verdict(4))),
        storage.states.save(StateSave(one, "s", b"state", 0)),
        submit(storage, new_claim(two, None, run_verdict(0), name=CRON_B)),
        submit(storage, TickNote(two, CRON_B, "scheduled", at(0), 0, 1, note="going on")),
    )
    assert results == [
        *(None, "written", "fenced", "written", "fenced", "moved", "early", "conflict", "written"),
        *("written", "written", "written"),
    ]
    known = await stored_cron(storage)
    assert (known.last, known.runs, known.failures, known.error, known.open) == (at(4), 3, 1, "e", 2)
    assert (await stored_tick(storage, at(0), name=CRON_B)).note == "going on"
    assert (await stored_cron(storage, CRON_B)).last == at(0)


async def test_what_two_lives_of_a_process_write_meets_in_one_group(
    storage: Storage, runner_a: Ownership, runner_b: Ownership
) -> None:
    """An evicted process goes on as another incarnation, while claims of the first still wait in its queue."""
    old = await grant(runner_a, A)
    row = await start_tick(storage, old)
    await evict(runner_b, A)
    new = await grant(runner_b, B)
    (mine,) = (await take_cron(storage, new)).open
    writes: list[TickClaim | TickNote] = [
        new_claim(old, at(0), run_verdict(1)),
        new_claim(new, at(0), run_verdict(1)),
        new_note(old, row, outcome="failed"),
        new_note(new, mine, outcome="ran"),
        new_note(old, row, outcome="failed"),
    ]
    results = await asyncio.gather(*(submit(storage, write) for write in writes))
    assert results == ["fenced", "written", "fenced", "written", "fenced"]
    assert ((await reread(storage, mine)).outcome, (await stored_cron(storage)).failures) == ("ran", 0)


def members(chance: random.Random, claims: dict[str, list[Claim]], last: dict[str, int]) -> Iterator[Write]:
    """Writes over few crons and ticks, so that they meet; some of lost seats, some from what is not the last tick."""
    for _ in range(chance.randint(2, 15)):
        name = chance.choice(sorted(claims))
        claim, minute = chance.choice(claims[name]), last[name] + chance.choice([0, 0, 0, 1])
        if chance.random() < 0.5:
            expected = None if minute < 0 else at(minute)
            verdicts = chance.choice([[run_verdict(minute + 1)], [skip_verdict(minute + 1, minute + 1)]])
            yield new_claim(claim, expected, *verdicts, name=name)
            last[name] += 1
        else:
            tick, attempt = max(0, last[name] - chance.randint(0, 2)), chance.choice([1, 1, 2])
            options: list[dict[str, Any]] = [{"outcome": "ran"}, {"outcome": "failed"}, {"again": True}, {"note": "n"}]
            errors = chance.choice([None, (), ("one", f"error {tick}")])
            yield TickNote(claim, name, "scheduled", at(tick), 0, attempt, errors=errors, **chance.choice(options))


async def left(storage: Storage) -> list[Any]:
    """All that is there, without what the clock had a part in."""
    rows = [
        (row.name, row.last, row.runs, row.error, row.failures, row.failed_at is None, row.error_at is None, row.open)
        for row in await storage.ticks.list()
    ]
    ticks = [
        (row.name, row.at, row.until, row.attempt, row.outcome, row.reason, row.errors, row.note, row.ended_at is None)
        for each in await storage.ticks.list()
        for row in await history(storage, each.name)
    ]
    return [rows, ticks]


@pytest.mark.parametrize("seed", range(4))
async def test_a_group_has_the_effect_of_its_members_one_after_another(
    storage: Storage, neighbour: Storage, seed: int
) -> None:
    """M3: the same writes, in groups here and one by one there, are told the same and leave the same behind."""
    names = [f"cron {number}" for number in range(4)]
    async with joined(storage, A, *names) as here, joined(neighbour, B, *names) as there:
        results: list[list[list[str]]] = [[], []]
        for place, (session, runner, each) in enumerate(((here, A, storage), (there, B, neighbour))):
            chance, last = random.Random(seed), dict.fromkeys(names, -1)
            held = {name: await grant(session, runner, name) for name in names}
            claims = {name: [claim, claim, claim, foreign_claims(claim)[1]] for name, claim in held.items()}
            for _ in range(12):
                group: list[Any] = list(members(chance, claims, last))
                if each is storage:
                    results[place].append(list(await asyncio.gather(*(submit(each, write) for write in group))))
                else:
                    results[place].append([await submit(each, write) for write in group])
        assert results[0] == results[1]
        assert await left(storage) == await left(neighbour)
        assert {each for group in results[0] for each in group} == {"written", "fenced", "moved", "conflict"}
