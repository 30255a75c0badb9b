"""A process that is killed around the commit of its own transaction: no message is lost, none is a ghost (O1)."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.cluster.outbox_program import program

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = Path(__file__).with_name("outbox_program.py")
ROUNDS = 4
ROUNDS_NIGHTLY = 500
OPEN = "select count(*) from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()"
pytestmark = pytest.mark.postgres


async def killed(url: str, *, number: int, at: str, after: int) -> Sequence[str]:
    """Run a shop and kill it when it has said `at` for the given time. What it has said."""
    process = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, url, str(number), stdout=subprocess.PIPE)
    assert process.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(120):
            while sum(line.startswith(at) for line in said) < after:
                line = await process.stdout.readline()
                assert line, "the shop ended by itself"
                said.append(line.decode().strip())
    finally:
        process.kill()
    rest = (await process.stdout.read()).decode()
    await process.wait()
    return [*said, *(line for line in rest.splitlines(keepends=False) if line)]


async def names(database: asyncpg.Connection[Any], table: str) -> list[str]:
    return sorted(row[0] for row in await database.fetch(f"select name from {table}"))


async def kill_shops(url: str, rounds: int) -> None:
    chance = random.Random(1)
    database: asyncpg.Connection[Any] = await asyncpg.connect(url, timeout=120)
    try:
        await judge_kills(url, database, rounds, chance)
    finally:
        await database.close()


async def judge_kills(url: str, database: asyncpg.Connection[Any], rounds: int, chance: random.Random) -> None:
    # No key: what ran twice is there twice.
    await database.execute("create table orders (name text); create table confirmed (name text)")
    acknowledged: set[str] = set()
    async with program(url) as runner:
        await runner.ready(timeout="2m")
        for number in range(rounds):
            # Between the insert and the commit, and right after a commit.
            said = await killed(url, number=number, at=("sent", "committed")[number % 2], after=chance.randint(1, 30))
            acknowledged |= {line.split()[1] for line in said if line.startswith("committed ")}
        async with asyncio.timeout(120):  # its sessions end when the server notices; then nothing more commits
            while await database.fetchval(OPEN):
                await asyncio.sleep(0.05)
            while await names(database, "confirmed") != await names(database, "orders"):
                await asyncio.sleep(0.05)
        assert acknowledged <= set(await names(database, "confirmed"))
        assert len(acknowledged) > rounds
        messages = await database.fetch("select key, status from coterie.messages")
        assert len(messages) == len(await names(database, "orders")), "none is without its order"
        assert {row["status"] for row in messages} == {1}


async def test_a_killed_shop_loses_no_message_and_leaves_no_ghost(postgres_url: str) -> None:
    await kill_shops(postgres_url, ROUNDS)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
async def test_500_killed_shops_lose_no_message_and_leave_no_ghost(postgres_url: str) -> None:
    await kill_shops(postgres_url, ROUNDS_NIGHTLY)
