"""O6: nothing that users' code gave stands in the database, if there are keys; searched byte by byte."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from coterie import KeyConflict
from tests.scenario.encryption.payload_program import (
    MARK,
    PayloadProgram,
    columns_of_users,
    columns_with,
    encrypted,
    files_with,
)


async def test_nothing_a_program_gave_is_found_in_the_tables_or_their_files(
    url: str, request: pytest.FixtureRequest
) -> None:
    program = PayloadProgram(url, encrypted("k1"))
    async with program.cluster:
        await program.use_everything()
        await program.read_everything()
        assert await columns_with(url, MARK) == set()
        if url.startswith("sqlite"):
            assert files_with(Path(url.removeprefix("sqlite:///")).parent, MARK) == []
        else:
            server = request.getfixturevalue("postgres_server")
            server.execute("checkpoint")
            assert files_with(server.data / "base", MARK) == []


async def test_without_keys_it_is_found_in_each_of_these_columns(url: str) -> None:
    """Else the other test would find nothing because there is nothing."""
    program = PayloadProgram(url, None)
    async with program.cluster:
        await program.use_everything()
        await program.read_everything()
        assert await columns_with(url, MARK) == columns_of_users()


async def test_what_is_sent_with_the_users_own_rows_is_encrypted_and_found_by_its_key(url: str) -> None:
    """On a connection of the user, and in a transaction that coterie opens."""
    program = PayloadProgram(url, encrypted("k1"))
    cluster = program.cluster
    account = cluster.ref(program.account, "own")
    async with cluster.connect():
        async with cluster.transaction() as tx:
            first = await cluster.send(account.put("o1", MARK), via=tx)
            assert await cluster.send(account.put("o1", MARK), via=tx) == first
            await cluster.start_workflow(program.reverse, MARK, id="own", via=tx)
        if not url.startswith("sqlite"):
            await _use_a_connection(url, program, first)
        assert await columns_with(url, MARK) == set()


async def _use_a_connection(url: str, program: PayloadProgram, first: object) -> None:
    cluster, reference = program.cluster, program.cluster.ref(program.account, "own")
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            assert await cluster.send(reference.put("o1", MARK), via=connection) == first
            with pytest.raises(KeyConflict):
                await cluster.send(reference.put("o1", MARK + "!"), via=connection)
            second = await cluster.send(reference.put("o2", MARK), via=connection)
            await cluster.start_workflow(program.reverse, MARK, id="own", via=connection)
            with pytest.raises(KeyConflict):
                await cluster.start_workflow(program.reverse, MARK + "!", id="own", via=connection)
        (stored,) = await cluster._acting().storage.messages.look([second])
        assert MARK.encode() in stored.payload
    finally:
        await connection.close()
