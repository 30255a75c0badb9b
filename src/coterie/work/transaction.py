"""The user's own SQL in a block: what the block gets, and a block that commits under the fence of a seat."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol

from coterie.kernel.context import OpenTransaction, transacting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from coterie.ownership.seats import Tenure
    from coterie.storage.contracts import messages
    from coterie.storage.interface import Storage


class Transaction(Protocol):
    """Your own SQL, with `$1`, `$2` … on both engines: the value of `async with self.transaction()`.

    Raises:
        PersistenceError: The database refused a statement, or is unreachable. The whole transaction is rolled back.
        TransactionTimeout: It took longer than `transaction_limit`. All of it is rolled back.
    """

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Run a statement. Returns the number of rows it changed."""
        ...

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Run a statement. Returns its rows, by column name."""
        ...


@asynccontextmanager
async def open_transaction(
    storage: Storage, tenure: Tenure, *, who: str, limit_s: float
) -> AsyncIterator[messages.Transaction]:
    """A transaction of a leader or a tick: rolled back if the block raises; the caller commits it afterwards.

    Args:
        storage: Where it is opened.
        tenure: The tenure that its commit has to prove.
        who: The work that opens it, for errors of other writes in the block.
        limit_s: How long it may take.

    Raises:
        LeadershipLost: We do not hold the seat.
    """
    tenure.require_held()
    async with rolling_back(storage.transaction(limit_s=limit_s), who=who) as transaction:
        yield transaction


@asynccontextmanager
async def rolling_back(transaction: messages.Transaction, *, who: str) -> AsyncIterator[messages.Transaction]:
    """A transaction that is rolled back if the block raises; other commits are refused in the block.

    Args:
        transaction: The transaction.
        who: What has it open, for errors of other writes in the block.
    """
    token = transacting.set(OpenTransaction(who, transaction))
    try:
        yield transaction
    except BaseException:
        await transaction.rollback()
        raise
    finally:
        transacting.reset(token)
