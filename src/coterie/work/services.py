"""What a runner provides to its singletons, crons and workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from coterie.kernel.supervisor import Seated

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.durable.token import Tokens
    from coterie.kernel.clock import Clock, Dial
    from coterie.kernel.random import Random
    from coterie.kernel.service import Tasks
    from coterie.kernel.supervisor import MakeWork, Supervisor
    from coterie.ownership.exclusion import Cause
    from coterie.ownership.seats import Tenure
    from coterie.settings import Settings
    from coterie.storage.contracts.units import UnitStore
    from coterie.storage.interface import Storage
    from coterie.work.middleware import Middleware
    from coterie.work.threads import Threads


class Resign(Protocol):
    """Releases a seat soon. This runner does not take it again for a while; if it is refused, not in this life."""

    def __call__(self, seat: str, /, *, cause: Cause, error: str) -> object: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Services:
    """Services that all occupants of one kind share on one runner."""

    cluster: Cluster
    """Passed to bodies."""
    settings: Settings
    storage: Storage
    clock: Clock
    chance: Random
    dial: Dial
    """The database's clock."""
    runner: str
    """The name of the runner."""
    tasks: Tasks
    supervisor: Supervisor
    resign: Resign
    tokens_of: Callable[[], Tokens]
    threads: Threads
    """Where plain functions of the program run."""
    middleware: Middleware
    """What runs around each attempt of the program's work."""

    @property
    def units(self) -> UnitStore:
        """Where steps are stored."""
        return self.storage.units

    @property
    def tokens(self) -> Tokens:
        """Makes and reads the tokens of deferreds; known once the runner has started."""
        return self.tokens_of()

    def supervise(
        self, make: MakeWork, name: str, tenure: Tenure, *, context: Context, cause: Cause = "failed"
    ) -> asyncio.Task[None]:
        """Run a standing task of a seat, which is released if the task keeps failing."""
        seated = Seated(tenure.seat, lambda: self.resign(tenure.seat, cause=cause, error=""))
        return self.tasks.supervise(make, name=name, supervisor=self.supervisor, seated=seated, context=context)
