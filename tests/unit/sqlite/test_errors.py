"""What callers learn when SQLite fails, and that it recovers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.errors import PersistenceError
from coterie.kernel.random import Random
from coterie.storage.interface import KvPut
from coterie.storage.sqlite.database import Patience, open_memory, writing
from coterie.storage.sqlite.errors import commit_failed, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Opener


async def on_writer(storage: SqliteStorage, work: Callable[[apsw.Connection], Any]) -> Any:
    return await storage._main._writer.run(lambda desk: work(desk.main))


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (apsw.BusyError, "try again"),
        (apsw.FullError, "free space"),
        (apsw.IOError, "kernel's log"),
        (apsw.CorruptError, "backup"),
        (apsw.ReadOnlyError, "writable"),
    ],
)
def test_each_failure_has_a_hint_that_fits(kind: type[apsw.Error], word: str) -> None:
    error = failed(kind("what SQLite said"), doing="write")
    assert error.outcome == "refused"
    assert word in error.hint
    assert "what SQLite said" in error.message


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(apsw.BusyError, "refused"), (apsw.FullError, "refused"), (apsw.IOError, "unknown")],
)
def test_only_a_failing_disk_leaves_the_outcome_of_a_commit_open(kind: type[apsw.Error], outcome: str) -> None:
    assert commit_failed(kind("x"), doing="write").outcome == outcome


@pytest.mark.parametrize("file", [True, False])
async def test_a_full_disk_refuses_the_write_and_is_recovered_from(new: Opener, file: bool) -> None:
    """Incident "disk full"."""
    async with new(url=None if file else "sqlite://") as storage:
        await storage.kv.put(KvPut("before", b"1", 1))
        pages = await on_writer(storage, lambda c: c.pragma("page_count"))
        await on_writer(storage, lambda c: c.pragma("max_page_count", pages + 2))
        with pytest.raises(PersistenceError, match="full") as caught:
            await storage.kv.put(KvPut("large", b"x" * 100_000, 2))
        assert caught.value.outcome == "refused"
        assert "free space" in caught.value.hint
        assert await storage.kv.get("large") is None
        await storage.kv.put(KvPut("small", b"3", 3))
        await on_writer(storage, lambda c: c.pragma("max_page_count", 1_000_000))
        await storage.kv.put(KvPut("large", b"x" * 100_000, 4))
        assert await storage.kv.count("") == 3


@pytest.mark.parametrize(
    "poison",
    [
        KvPut("\ud800", b"no text", 1),
        KvPut("k", b"stamp too large", 2**70),
        KvPut("k", None, 1),  # type: ignore[arg-type]  # what a bug would write
        KvPut("k", b"no time", 1, float("nan")),
        "no write at all",
    ],
)
async def test_a_bad_write_fails_alone_and_its_neighbours_are_written(new: Opener, poison: Any) -> None:
    """M3: nobody sees a neighbour's error."""
    async with new() as storage:
        good = [storage.kv.put(KvPut(f"good{n}", b"v", n)) for n in range(20)]
        results = await asyncio.gather(*good[:10], storage.kv.put(poison), *good[10:], return_exceptions=True)
        assert isinstance(results.pop(10), PersistenceError)
        assert results == [None] * 20
        assert await storage.kv.count("good") == 20
        assert storage.groups.reruns == 1


async def test_a_key_that_is_no_text_cannot_be_asked_for_either(new: Opener) -> None:
    async with new() as storage:
        for ask in (storage.kv.get("\ud800"), storage.kv.count("\ud800"), storage.kv.clear("\ud800")):
            with pytest.raises(PersistenceError):
                await ask


class Failing:
    """A connection whose COMMIT or other statement fails as told."""

    def __init__(self, at: str, error: Exception) -> None:
        self.real = open_memory()
        self.real.execute("create table t (x)")
        self.at, self.error = at, error

    def execute(self, statement: str) -> Any:
        if statement == self.at:
            raise self.error
        return self.real.execute(statement)

    @property
    def in_transaction(self) -> bool:
        return self.real.in_transaction


@pytest.mark.parametrize(
    ("at", "error", "outcome"),
    [
        ("begin immediate", apsw.BusyError("locked"), "unreachable"),
        ("insert into t values (1)", apsw.IOError("disk"), "refused"),
        ("insert into t values (1)", ValueError("ours"), "refused"),
        ("commit", apsw.FullError("full"), "refused"),
        ("commit", apsw.IOError("fsync"), "unknown"),
    ],
)
def test_after_any_error_nothing_is_written_and_the_next_one_works(at: str, error: Exception, outcome: str) -> None:
    connection: Any = Failing(at, error)
    patience = Patience(chance=Random(1), limit_s=0.01, pause_s=0.001, holder=lambda: None)

    def insert() -> None:
        with writing(connection, patience=patience, doing="write"):
            connection.execute("insert into t values (1)")

    with pytest.raises(PersistenceError) as caught:
        insert()
    assert caught.value.outcome == outcome
    assert caught.value.__cause__ is error
    assert not connection.in_transaction
    assert connection.real.execute("select count(*) from t").get == 0
    connection.at = "nothing"
    insert()
    assert connection.real.execute("select count(*) from t").get == 1
    connection.real.close()


async def test_a_read_waits_while_another_process_recovers_the_file(new: Opener) -> None:
    async with new() as storage:
        tries: list[int] = []

        def busy_at_first(connection: apsw.Connection) -> str:
            tries.append(1)
            if len(tries) < 5:
                raise apsw.BusyError("recovering")
            return "read"

        assert await storage._main.read(busy_at_first, doing="read") == "read"
        assert len(tries) == 5
