"""The blocks of `self.transaction()`, which share one transaction that commits with the end of the handler.

async with ──▶ statements ──▶ exit: they commit at the end of the handler, with its other effects
                   │
                   └──▶ exit by an exception: they are rolled back. If an earlier block had succeeded, the handler
                        can only fail: its statements are rolled back too
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from coterie.entities.host.work import handling
from coterie.entities.persisted.commit import effects_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from coterie.entities.host.work import Work
    from coterie.storage.contracts import messages


class TransactionBlock:
    """One block, and the object that the user's code gets in it.

    Args:
        work: The call whose handler runs it.
        begin: Opens the handler's transaction, if this is its first block.
    """

    def __init__(self, work: Work, begin: Callable[[], messages.Transaction]) -> None:
        self._work = work
        self._begin = begin
        self._transaction: messages.Transaction | None = None
        self._is_first = False

    async def __aenter__(self) -> Self:
        effects = effects_of(self._work)
        if not effects.is_open:
            raise RuntimeError(f"{self._work.target} has ended: its transaction cannot begin any more")
        if effects.in_block:
            raise RuntimeError(f"{self._work.target} is inside of a transaction already: use what that block gave")
        self._is_first = effects.transaction is None
        effects.transaction = self._transaction = effects.transaction or self._begin()
        effects.in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        transaction, self._transaction = self._opened, None
        effects = effects_of(self._work)
        effects.in_block = False
        if kind is None:
            return
        if self._is_first and effects.transaction is transaction:
            effects.transaction = None
        await transaction.rollback()

    async def execute(self, sql: str, /, *params: Any) -> int:
        """Run a statement. Returns the number of rows it changed."""
        return await self._opened.execute(sql, *params)

    async def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Run a statement. Returns its rows, by column name."""
        return await self._opened.fetch(sql, *params)

    def require_here(self) -> None:
        """Refuse to send in it from anywhere but its block."""
        if self._transaction is None or handling.get() is not self._work:
            raise RuntimeError(
                f"via is a transaction of {self._work.target}: only that can send in it, inside its block"
            )

    @property
    def _opened(self) -> messages.Transaction:
        if self._transaction is None:
            raise RuntimeError(f"a transaction of {self._work.target} is used outside of its block")
        return self._transaction
