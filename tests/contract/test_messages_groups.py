"""Writes of all kinds in one group, on every engine: the effect of its members one after another [M3, M4]."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import LeadershipLost
from coterie.storage.contracts.messages import Commit, Insert, MessageFilter, Receipt, Setback
from coterie.storage.interface import Claim, KvPut, KvRemove, KvSwap, StateSave
from tests.contract.messages import A, B, change, id_of, joined, message, take

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.storage.interface import Storage, Write

OLD = range(12)
"""The messages that are there to be ended, by number."""


async def submit(storage: Storage, write: Write) -> Any:
    """By the way that a write of its kind goes; a coroutine each, so that they queue in order."""
    if isinstance(write, Insert):
        return await storage.messages.insert(write.message)
    if isinstance(write, Commit):
        return await storage.messages.commit(write)
    if isinstance(write, Setback):
        return await storage.messages.setback(write)
    if isinstance(write, StateSave):
        return await storage.states.save(write)
    try:
        if isinstance(write, KvPut):
            return await storage.kv.put(write)
        if isinstance(write, KvRemove):
            return await storage.kv.remove(write)
        assert isinstance(write, KvSwap)
        return await storage.kv.swap(write)
    except LeadershipLost:
        return "fenced"


def group(chance: random.Random, claims: list[Claim], fresh: Iterator[int]) -> list[Write]:
    """Some writes over few messages, keys and states, so that they meet; one in three claims is of a lost seat."""
    return [_write(chance, claims, fresh) for _ in range(chance.randint(5, 25))]


def _write(chance: random.Random, claims: list[Claim], fresh: Iterator[int]) -> Write:
    claim, number, key = chance.choice(claims), next(fresh), chance.choice(["k1", "k2", "k3"])
    known = id_of(chance.choice(OLD))
    new = message(number, key=chance.choice([None, key]), digest=b"%d" % number)
    state = change(key, chance.choice([None, b"%d" % number]), chance.choice([0, 0, 1, 2, 3]))
    kinds: list[Write] = [
        Insert(new),
        Commit(claim, known, b"%d" % number),
        Commit(claim, chance.choice([None, known]), b"%d" % number, chance.choice([None, state])),
        Commit(claim, known, b"", state, (new, message(1_000_000 + number))),
        Setback(claim, known, chance.choice([1, 2, 3]), "boom", chance.choice([0.0, 0.0, None])),
        Setback(claim, known, chance.choice([1, 2, 3]), None, 0.0),
        StateSave(claim, key, b"%d" % number, chance.choice([0, 1, 2])),
        KvPut(key, b"%d" % number, number, claim=chance.choice([None, claim])),
        KvSwap(key, None, b"%d" % number, number, claim=chance.choice([None, claim])),
        KvRemove(key, claim=chance.choice([None, claim])),
    ]
    return chance.choice(kinds)


async def left(storage: Storage, claim: Claim) -> dict[str, Any]:
    """All that is there, without what the clock had a part in."""
    return {
        "messages": [
            (row.id, row.status, row.attempts, [each.number for each in row.errors], row.key, row.reply)
            for row in await storage.messages.list(MessageFilter(), most=10_000)
        ],
        "states": [await storage.states.load(claim, key) for key in ("k1", "k2", "k3")],
        "kv": [(entry.key, entry.value) for entry in await storage.kv.page("", after=None, most=100)],
    }


def told(result: Any) -> Any:
    """A result without the instants in it."""
    if isinstance(result, Receipt):
        return result.id, result.fresh, result.status, result.digest, result.reply
    return result


@pytest.mark.parametrize("seed", range(4))
async def test_a_group_has_the_effect_of_its_members_one_after_another(
    storage: Storage, neighbour: Storage, seed: int
) -> None:
    """M3: the same writes, in groups here and one by one there, are told the same and leave the same behind."""
    chance, fresh = random.Random(seed), iter(range(100, 10_000))
    async with joined(storage, A) as here, joined(neighbour, B) as there:
        mine, theirs = await take(here, A), await take(there, B)
        for each in (storage, neighbour):
            await asyncio.gather(*(each.messages.insert(message(number)) for number in OLD))
            # Its end would be concurrent with whoever brings its key, who may be told of it or not.
            await each.messages.insert(message(99, key="k1"))
        for _ in range(6):
            state = chance.getstate(), next(fresh)
            both = []
            for claim in (mine, theirs):
                chance.setstate(state[0])
                claims = [claim, claim, Claim(claim.runner, claim.seat, claim.epoch + 1)]
                both.append(group(chance, claims, iter(range(100 * state[1], 100 * state[1] + 100))))
            grouped = await asyncio.gather(*(submit(storage, write) for write in both[0]))
            single = [await submit(neighbour, write) for write in both[1]]
            for write, one, other in zip(both[0], grouped, single, strict=True):
                assert told(one) == told(other), write
            assert await left(storage, mine) == await left(neighbour, theirs)
