"""What a kill leaves in the two files, at each statement; and planted bugs that this finds.

A lease without a runner means nothing, a runner without a lease has expired [C4]. So a registration commits the lease
first, and a deletion commits the runner's row first.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from coterie.storage.sqlite import ownership
from coterie.storage.sqlite.database import writing
from coterie.storage.sqlite.ownership import SqliteOwnership
from tests.unit.sqlite.test_ownership import A, B, join, leases_of, table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from coterie.storage.interface import Ownership
    from coterie.storage.sqlite.database import SqliteConnections
    from tests.unit.sqlite.conftest import Opener

    Left = tuple[tuple[str, ...], tuple[str, ...]]


async def left_at_each_statement(session: Ownership, path: Path, do: Callable[[], Awaitable[Any]]) -> list[Left]:
    """The runners and the leases that a kill would leave, just before each statement, in order and without repeats."""
    assert isinstance(session, SqliteOwnership)
    found: list[Left] = []

    def look() -> None:
        left = tuple(name for (name,) in table(path, "select id from runners order by id")), tuple(leases_of(path))
        if left not in found[-1:]:
            found.append(left)

    def traced(*_: object) -> bool:
        look()
        return True

    def trace(desk: SqliteConnections, how: Callable[..., bool] | None) -> None:
        for connection in (desk.main, desk.leases):
            connection.exec_trace = how

    await session._run(lambda desk: trace(desk, traced))
    await do()
    await session._run(lambda desk: trace(desk, None))
    look()
    return found


async def registered(new: Opener, path: Path) -> list[Left]:
    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        return await left_at_each_statement(b, path, lambda: join(b, B))


async def evicted(new: Opener, path: Path) -> list[Left]:
    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        return await left_at_each_statement(a, path, lambda: a.evict(B, counter=1, expired=False))


async def deleted(new: Opener, path: Path) -> list[Left]:
    async with new() as storage, storage.ownership(A) as a, storage.ownership(B) as b:
        await join(a, A)
        await join(b, B)
        return await left_at_each_statement(b, path, b.leave)


async def test_a_registration_commits_the_lease_and_then_the_runner(new: Opener, path: Path) -> None:
    assert await registered(new, path) == [((A,), (A,)), ((A,), (A, B)), ((A, B), (A, B))]


@pytest.mark.parametrize("ended", [evicted, deleted], ids=["evicted", "left"])
async def test_who_is_deleted_loses_its_row_and_then_its_lease(
    new: Opener, path: Path, ended: Callable[[Opener, Path], Awaitable[list[Left]]]
) -> None:
    assert await ended(new, path) == [((A, B), (A, B)), ((A,), (A, B)), ((A,), (A,))]


# Planted bugs.


def _lease_deleted_before_the_runner() -> AbstractContextManager[Any]:
    # Without a commit of its own the row is committed last, as in a registration.
    return patch.object(ownership, "commit", lambda *_, **__: None)


@contextmanager
def _runner_registered_before_its_lease() -> Iterator[None]:
    @contextmanager
    def both(self: SqliteOwnership, desk: SqliteConnections, *, patience: Any, doing: str) -> Iterator[None]:
        with (
            writing(desk.leases, patience=self._waits.leases, doing=doing),
            writing(desk.main, patience=patience, doing=doing),
        ):
            yield

    with patch.object(SqliteOwnership, "_both", both):
        yield


@pytest.mark.parametrize(
    ("planted", "does"),
    [
        pytest.param(_lease_deleted_before_the_runner, evicted, id="an eviction deletes the lease first"),
        pytest.param(_lease_deleted_before_the_runner, deleted, id="who leaves deletes its lease first"),
        pytest.param(_runner_registered_before_its_lease, registered, id="a registration commits the runner first"),
    ],
)
async def test_a_planted_bug_leaves_a_runner_without_a_lease(
    planted: Callable[[], AbstractContextManager[Any]],
    does: Callable[[Opener, Path], Awaitable[list[Left]]],
    new: Opener,
    path: Path,
) -> None:
    with planted():
        found = await does(new, path)
    assert ((A, B), (A,)) in found
