"""Planted bugs of `via=`, kept for ever: each is found by the test that is named beside it (O1)."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from coterie.entities.persisted.commit_watcher import CommitWatcher
from coterie.interop.transactional_outbox import TransactionalOutbox
from coterie.storage.postgres.batch import messages as message_batch
from coterie.workflows.api import new_unit
from tests.unit.entities import test_commit_watcher
from tests.unit.interop import test_user_connections
from tests.unit.interop.test_user_connections import cluster, database
from tests.unit.interop.user_connections import Asyncpg
from tests.unit.postgres import test_blocked_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

    import asyncpg

    from coterie import Cluster
    from coterie.workflows.start_options import StartOptions

__all__ = ["cluster", "database"]  # fixtures
pytestmark = pytest.mark.postgres


@contextmanager
def _handed_over_before_the_commit() -> Iterator[None]:
    """The owner gets the message itself, and takes it for one that is stored."""
    insert = TransactionalOutbox._insert

    async def wrong(self: TransactionalOutbox, here: Any, connection: Any, messages: Any) -> Any:
        receipts = await insert(self, here, connection, messages)
        for message in messages:
            here.calling.persisted.hand_over(message)
        return receipts

    with patch.object(TransactionalOutbox, "_insert", wrong):
        yield


@contextmanager
def _stored_without_the_commit() -> Iterator[None]:
    """On a connection of coterie's own."""

    async def wrong(self: TransactionalOutbox, here: Any, connection: Any, messages: Any) -> Any:
        return [await here.storage.messages.insert(message) for message in messages]

    with patch.object(TransactionalOutbox, "_insert", wrong):
        yield


@contextmanager
def _run_started_without_the_commit() -> Iterator[None]:
    async def wrong(
        self: TransactionalOutbox, kind: Any, payload: Any, id: str, via: object, *, options: StartOptions
    ) -> None:
        here = self._acting()
        await here.storage.units.start(options.of(new_unit(here, kind, payload, id)))

    with patch.object(TransactionalOutbox, "start", wrong):
        yield


@contextmanager
def _open_transaction_taken_as_rolled_back() -> Iterator[None]:
    """So that only polls find what it stores."""
    begin = CommitWatcher.__init__

    def wrong(self: CommitWatcher, writes: Any, **options: Any) -> None:
        begin(self, writes, **options)
        ended = writes.ended

        async def all_ended(transactions: Any) -> Any:
            return dict.fromkeys(transactions, False) | dict(await ended(transactions))

        writes.ended = all_ended

    with patch.object(CommitWatcher, "__init__", wrong):
        yield


@contextmanager
def _held_key_stays_in_its_group() -> Iterator[None]:
    """It does not leave the group: each wait ends with an error, and the sender gets that."""
    with patch.object(message_batch, "has_key", lambda write: False):
        yield


@pytest.mark.parametrize(
    ("planted", "found_by"),
    [
        (_handed_over_before_the_commit, test_user_connections.test_what_is_rolled_back_never_was),
        (_stored_without_the_commit, test_user_connections.test_what_is_rolled_back_never_was),
        (_stored_without_the_commit, test_user_connections.test_rows_messages_and_runs_commit_together),
        (_run_started_without_the_commit, test_user_connections.test_rows_messages_and_runs_commit_together),
    ],
)
async def test_what_does_not_wait_for_the_commit_is_found(
    planted: Callable[[], AbstractContextManager[object]],
    found_by: Callable[..., Awaitable[None]],
    postgres_url: str,
    cluster: Cluster,
    database: asyncpg.Connection[Any],
) -> None:
    with planted(), pytest.raises((AssertionError, pytest.fail.Exception)):
        await found_by(Asyncpg, postgres_url, cluster, database)


def test_an_open_transaction_taken_as_rolled_back_is_found_by_the_wake_up_that_is_missing() -> None:
    with _open_transaction_taken_as_rolled_back(), pytest.raises(AssertionError):
        test_commit_watcher.test_a_commit_wakes_the_owners_within_20_ms()


async def test_a_held_key_that_stays_in_its_group_is_found_by_those_that_should_wait_apart(postgres_url: str) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, __: None)  # writes fail that nobody awaits then
    with _held_key_stays_in_its_group(), pytest.raises(AssertionError):
        await test_blocked_keys.test_others_are_stored_while_one_waits_for_its_key(postgres_url)
