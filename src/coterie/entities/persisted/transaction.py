"""Transacting: the blocks of `self.transaction()`, all on the one transaction that is committed with the handler's end.

async with ──▶ statements ──▶ left: they wait for the end of the handler, which commits them with all the rest
                   │
                   └──▶ left by an exception: they are undone. If an earlier block was left well, the handler can
                        only fail: what it believes to have written would be missing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

from coterie.entities.persisted.effects import ledger_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from coterie.entities.host.work import Work
    from coterie.storage.contracts import messages


class Transaction(Protocol):
    """SQL of your own, with `$1`, `$2` … on both engines: what `async with self.transaction()` gives.

    Raises:
        PersistenceError: The database refused a statement, or is away. All of the transaction is rolled back.
        TransactionTimeout: It took longer than `transaction_limit`. All of it is rolled back.
    """

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Run a statement; how many rows it changed."""
        ...

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Run a statement; its rows, by the names of their columns."""
        ...


class TransactionBlock:
    """One block, and what the user's code gets in it.

    Args:
        work: Whose handler runs it.
        begin: Opens the handler's transaction, if there was no block before.
    """

    def __init__(self, work: Work, begin: Callable[[], messages.Transaction]) -> None:
        self._work = work
        self._begin = begin
        self._transaction: messages.Transaction | None = None
        self._is_first = False

    async def __aenter__(self) -> Self:
        ledger = ledger_of(self._work)
        if not ledger.is_open:
            raise RuntimeError(f"{self._work.target} has ended: its transaction cannot begin any more")
        if ledger.in_block:
            raise RuntimeError(f"{self._work.target} is inside of a transaction already: use what that block gave")
        self._is_first = ledger.transaction is None
        ledger.transaction = self._transaction = ledger.transaction or self._begin()
        ledger.in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction, self._transaction = self._opened, None
        ledger = ledger_of(self._work)
        ledger.in_block = False
        if kind is None:
            return
        if self._is_first and ledger.transaction is transaction:
            ledger.transaction = None
        await transaction.rollback()

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Run a statement; how many rows it changed."""
        return await self._opened.execute(sql, *params)

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Run a statement; its rows, by the names of their columns."""
        return await self._opened.fetch(sql, *params)

    @property
    def _opened(self) -> messages.Transaction:
        if self._transaction is None:
            raise RuntimeError(f"a transaction of {self._work.target} is used outside of its block")
        return self._transaction
