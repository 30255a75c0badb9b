"""What a failure of the server means to an operator."""

from __future__ import annotations

import asyncpg
import pytest

from coterie.errors import PersistenceError
from coterie.kernel.random import Random
from coterie.storage.postgres import errors
from coterie.storage.postgres.connector import Connector
from tests.unit.postgres.conftest import SHORT


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (asyncpg.TooManyConnectionsError("sorry, too many clients already"), "raise its max_connections"),
        (asyncpg.DiskFullError("could not extend file"), "the server's disk is full: make room there"),
    ],
)
def test_a_server_without_room_is_told_as_such(error: asyncpg.PostgresError, hint: str) -> None:
    """It said "is the server running?" of a server that had answered."""
    refused = errors.refusal(error, doing="save")
    assert hint in refused.hint
    assert errors.hopeless(error) is None, "another try may help"


async def test_a_server_that_is_full_is_not_taken_for_one_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise asyncpg.TooManyConnectionsError("sorry, too many clients already")

    monkeypatch.setattr(asyncpg, "connect", refuse)
    connector = Connector("postgresql://app@db/app", incarnation="b" * 32, chance=Random(1), limits=SHORT)
    with pytest.raises(PersistenceError, match="too many clients already") as told:
        await connector.connect("work", tries=1)
    assert told.value.hint.startswith("the server has no free connection")
