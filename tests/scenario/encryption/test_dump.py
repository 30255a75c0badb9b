"""O6: nothing that users' code gave stands in the database, if there are keys; searched byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.scenario.encryption.payload_program import (
    MARK,
    PayloadProgram,
    columns_of_users,
    columns_with,
    encrypted,
    files_with,
)

if TYPE_CHECKING:
    import pytest


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
