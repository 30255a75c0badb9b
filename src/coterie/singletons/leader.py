"""The `Leader` handle that is passed to the body of a singleton."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coterie.kernel.durations import to_seconds
from coterie.kernel.text import countable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import TypeVar as TypeVarWithDefault

    from coterie.cluster import Cluster
    from coterie.durable.unit import Durable
    from coterie.kernel.durations import Duration
    from coterie.ownership.seats import Tenure
    from coterie.singletons.heartbeat import ExecutionMeta, Heartbeats
    from coterie.singletons.state import LeaderState
    from coterie.work.services import Services
    from coterie.work.transaction import Transaction

    S = TypeVarWithDefault("S", default=None)
else:
    S = TypeVar("S")


class Leader(Generic[S]):
    """The handle passed to a singleton's body. Valid from when this runner becomes leader until it stops being leader.

    Example:
        ```python
        @cluster.singleton("importer", state=Progress)
        async def importer(leader: Leader[Progress]) -> None:
            while True:
                rows = await fetch_after(leader.state.last_id)
                if rows:
                    async with leader.update() as state:
                        state.last_id = rows[-1].id
                await leader.sleep("1s")
        ```

    Promise:
        What a method has written when it returns is durable, and was written while this runner led. Once another
        runner leads, every writing method raises `LeadershipLost` and has written nothing, or says `in_doubt`.
    """

    def __init__(
        self,
        name: str,
        *,
        services: Services,
        tenure: Tenure,
        state: LeaderState[Any],
        stamps: Heartbeats,
        open_unit: Callable[[str], AbstractAsyncContextManager[Durable]],
    ) -> None:
        self.name = name
        self.cluster: Cluster = services.cluster
        self._tenure = tenure
        self._storage = services.storage
        self._state = state
        self._stamps = stamps
        self._open_unit = open_unit

    @property
    def epoch(self) -> int:
        """The fencing token: pass it to your own resources that can compare numbers."""
        return self._tenure.epoch

    @property
    def is_leader(self) -> bool:
        """Whether this runner is still the leader, as far as it knows. `verify` makes sure."""
        return self._tenure.held

    @property
    def meta(self) -> ExecutionMeta:
        """When it last ran, how often, the last error: recorded by the cluster, across leaders."""
        return self._stamps.meta

    @property
    def state(self) -> S:
        """The state, for reading. Change it in `update()`, or replace it with `save()`."""
        state: S = self._state.shown
        return state

    async def save(self, state: S) -> None:
        """Replace the state. Nothing is written if it is unchanged.

        Raises:
            LeadershipLost: Another runner leads, or may lead by now. It was not saved, or the error says `in_doubt`:
                the database went away while it was being saved.
            StatePersistFailed: The database refuses it repeatedly. It was not saved.
        """
        await self._state.save(state)

    def update(self) -> AbstractAsyncContextManager[S]:
        """Change the state: `async with leader.update() as state: state.last_id = 7`.

        The block has a copy, which is saved when the block succeeds, and dropped when it raises. Blocks of several
        tasks take turns.

        Raises:
            LeadershipLost: As `save`, at the end of the block.
        """
        return self._state.update()

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Your own SQL, committed at the end of the block if this runner still leads, and otherwise not at all.

        A `save` or `update` inside the block is part of the same commit.

        Raises:
            LeadershipLost: Another runner leads. Nothing was written.
            TransactionTimeout: It took longer than the setting `transaction_limit`. Nothing was written.
        """
        return self._state.transaction()

    def unit(self, key: str) -> AbstractAsyncContextManager[Durable]:
        """Work in progress that the next leader continues: `async with leader.unit("import 7") as unit:`.

        Steps in the block are stored, and not repeated when a unit of this key is opened again after this leader was
        lost, or after the block has raised. When the block succeeds, the unit is over, and its rows are deleted.

        Args:
            key: Names the work: what is imported, for instance. The key of a unit that is over may be reused.

        Raises:
            LeadershipLost: Another runner leads.
        """
        return self._open_unit(key)

    def heartbeat(self, note: str = "", *, done: int | None = None, total: int | None = None) -> None:
        """Report progress: `leader.heartbeat("pages", done=3, total=10)`.

        It is written soon, and costs next to nothing: call it as often as you like.
        """
        self._stamps.beat(note, countable(done), countable(total))

    async def verify(self) -> None:
        """Make sure, in the database, that this runner leads just now: before an effect that cannot be fenced.

        Raises:
            LeadershipLost: It does not.
        """
        if not self._tenure.held or not await self._storage.states.verify(self._tenure.claim):
            raise self._tenure.lost()

    async def sleep(self, duration: Duration) -> None:
        """Sleep on purpose: it counts as progress. The sleep does not survive a change of leader.

        Raises:
            LeadershipLost: Another runner leads by now, or may lead.
        """
        self._stamps.progress()
        await asyncio.sleep(to_seconds(duration, what="leader.sleep", allow_zero=True))
        self._stamps.progress()
        self._tenure.require_held()

    def __repr__(self) -> str:
        return f"<Leader of {self.name!r} at epoch {self.epoch}>"
