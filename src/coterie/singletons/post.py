"""Post: what a runner has for its leaders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.cluster import Cluster
    from coterie.durable.token import Tokens
    from coterie.kernel.clock import Clock, Dial
    from coterie.kernel.random import Chance
    from coterie.kernel.service import Tasks
    from coterie.kernel.supervisor import Supervisor
    from coterie.ownership.exclusion import Cause
    from coterie.settings import Settings
    from coterie.storage.contracts.units import Units
    from coterie.storage.interface import Storage


class Resign(Protocol):
    """Gives up a seat soon. This runner does not take it again for a while; if it is refused, not in this life."""

    def __call__(self, seat: str, /, *, cause: Cause, error: str) -> None: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Post:
    """What leaderships share on one runner."""

    cluster: Cluster
    settings: Settings
    storage: Storage
    clock: Clock
    chance: Chance
    name: str
    """The runner's."""
    tasks: Tasks
    resign: Resign
    dial: Dial
    tokens_of: Callable[[], Tokens]
    supervisor: Supervisor

    @property
    def units(self) -> Units:
        """Where steps are stored."""
        return self.storage.units

    @property
    def tokens(self) -> Tokens:
        """Of deferreds."""
        return self.tokens_of()
