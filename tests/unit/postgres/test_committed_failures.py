"""What follows a statement that has committed by itself, and fails: nobody is told that nothing was written [M3]."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from coterie.kernel.random import Random
from coterie.storage.postgres import ConnectionLimits
from coterie.storage.postgres.batch.plan import Bucket
from coterie.storage.postgres.errors import Lost
from coterie.storage.postgres.writer import AGAIN_MOST, PostgresWriter


def commits(*, in_transaction: bool) -> PostgresWriter:
    connector: Any = SimpleNamespace(address="test")
    found = PostgresWriter(connector, cluster="c", chance=Random(1), limits=ConnectionLimits())
    session: Any = SimpleNamespace(in_transaction=in_transaction)
    found.adopt(session)
    return found


async def refuse(*_: object, **__: object) -> Any:
    raise asyncpg.PostgresError("no")


@pytest.mark.parametrize(
    ("shape", "in_transaction", "is_known"),
    [
        ("insert_message", False, False),
        ("insert_message", True, True),
        ("end_message", False, True),
    ],
    ids=["committed-by-itself", "in-a-transaction", "nothing-to-commit"],
)
async def test_what_was_committed_before_the_failure_is_not_refused(
    shape: Any, in_transaction: bool, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = commits(in_transaction=in_transaction)
    monkeypatch.setattr(writer, "_told_at_length", refuse)
    monkeypatch.setattr(writer, "_read_back", refuse)
    write: Any = SimpleNamespace(message=None)
    with pytest.raises(asyncpg.PostgresError if is_known else Lost) as raised:
        await writer._complete(refuse, Bucket(shape, [0]), [write], [None])
    if not is_known:
        assert isinstance(raised.value, Lost)
        assert raised.value.sent, "so the outcome is unknown"


async def test_messages_that_come_and_go_are_given_up_after_so_many_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, looks = commits(in_transaction=True), []

    async def look(_: object, left: Any, __: object) -> None:
        looks.append(list(left))

    monkeypatch.setattr(writer, "_look_or_store", look)
    messages: Any = [object(), object()]
    found: Any = [object(), None]
    with pytest.raises(asyncpg.SerializationError):
        await writer._read_back(refuse, messages, found)
    assert looks == [[1]] * AGAIN_MOST, "only those of which nothing is known"


async def test_what_is_found_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = commits(in_transaction=True)

    async def look(_: object, left: Any, found: Any) -> None:
        for place in left:
            found[place] = "receipt"

    monkeypatch.setattr(writer, "_look_or_store", look)
    messages: Any = [object()]
    found: Any = [None]
    await writer._read_back(refuse, messages, found)
    assert found == ["receipt"]
