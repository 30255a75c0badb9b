"""The `Tick` handle that is passed to the body of a cron."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from coterie.durable.unit import Steps
from coterie.kernel.text import countable
from coterie.storage.contracts.messages import Commit
from coterie.work.limits import settled
from coterie.work.transaction import Transaction, open_transaction

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from coterie.cluster import Cluster
    from coterie.durable.steps import DurableWork
    from coterie.ownership.seats import Tenure
    from coterie.work.services import Services

    Beat = Callable[[str, int | None, int | None], None]


class Tick(Steps):
    """One run of a cron.

    Attributes:
        name: The name of the cron.
        scheduled_at: The instant of the tick, in UTC, however late it runs.
        attempt: The first one is 1. Another one runs when this one fails and `retry=` says so, or when its runner is
            lost.
        manual: Whether it was triggered by hand.
        cluster: The cluster, for calls and everything else.

    Its steps are stored, and not repeated by another attempt.
    """

    def __init__(
        self,
        name: str,
        *,
        scheduled_at: datetime,
        attempt: int,
        manual: bool,
        services: Services,
        tenure: Tenure,
        work: DurableWork,
        beat: Beat,
    ) -> None:
        super().__init__(work)
        self.name = name
        self.scheduled_at = scheduled_at
        self.attempt = attempt
        self.manual = manual
        self.cluster: Cluster = services.cluster
        self._services = services
        self._tenure = tenure
        self._beat = beat

    @property
    def epoch(self) -> int:
        """The fencing token: pass it to your own resources that can compare numbers."""
        return self._tenure.epoch

    def heartbeat(self, note: str = "", *, done: int | None = None, total: int | None = None) -> None:
        """Report progress: `tick.heartbeat("invoices", done=3, total=10)`.

        It is written soon, and costs next to nothing: call it as often as you like.
        """
        self._beat(note, countable(done), countable(total))

    async def verify(self) -> None:
        """Make sure, in the database, that this runner holds the tick just now: before an effect that cannot be fenced.

        Raises:
            LeadershipLost: It does not.
        """
        if not self._tenure.held or not await self._services.storage.states.verify(self._tenure.claim):
            raise self._tenure.lost()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Your own SQL, committed at the end of the block if this runner still holds the tick, otherwise not at all.

        Raises:
            LeadershipLost: Another runner holds it. Nothing was written.
            TransactionTimeout: It took longer than the setting `transaction_limit`. Nothing was written.
        """
        services, limit_s = self._services, self._services.settings.transaction_limit.total_seconds()
        who = f"cron {self.name!r}"
        async with open_transaction(services.storage, self._tenure, who=who, limit_s=limit_s) as transaction:
            yield transaction
        # Completed even if we are cancelled: then its outcome is not awaited.
        commit = services.tasks.spawn(self._commit(transaction), name=f"commit {self.name}", report=False)
        commit.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            # Another attempt or another holder may follow at once, and must see what this one has written.
            await settled([commit])
            raise

    async def _commit(self, transaction: Any) -> None:
        if await transaction.commit(Commit(self._tenure.claim)) != "written":
            raise self._tenure.lost()

    def __repr__(self) -> str:
        return f"<Tick of {self.name!r} at {self.scheduled_at:%Y-%m-%dT%H:%M:%SZ}, attempt {self.attempt}>"
