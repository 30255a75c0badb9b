"""Desk: what a runner has for its crons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.cluster import Cluster
    from coterie.durable.token import Tokens
    from coterie.kernel.clock import Dial
    from coterie.kernel.random import Chance
    from coterie.kernel.service import Tasks
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.storage.contracts.units import Units
    from coterie.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, eq=False)
class Desk:
    """What all crons of one runner share."""

    cluster: Cluster
    settings: Settings
    storage: Storage
    chance: Chance
    dial: Dial
    tasks: Tasks
    tokens: Tokens
    supervisor: Supervisor
    resign: Callable[[str], object]
    """Gives up a seat soon."""

    @property
    def units(self) -> Units:
        """Where steps are stored."""
        return self.storage.units
