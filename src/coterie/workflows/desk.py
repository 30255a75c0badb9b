"""Desk: what a runner has for its workflows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from coterie.cluster import Cluster
    from coterie.kernel.clock import Dial
    from coterie.kernel.random import Chance
    from coterie.kernel.service import Tasks
    from coterie.kernel.supervisor import Supervisor
    from coterie.settings import Settings
    from coterie.steps.tokens import Tokens
    from coterie.storage.contracts.units import Started
    from coterie.storage.interface import Storage


class StartChild(Protocol):
    """Stores a workflow whose parent waits for it under a name."""

    def __call__(
        self, workflow: object, payload: object, id: str, *, parent: str, waited_as: str
    ) -> Awaitable[Started]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Desk:
    """What all workflows of one runner share."""

    cluster: Cluster
    settings: Settings
    storage: Storage
    chance: Chance
    dial: Dial
    tasks: Tasks
    tokens: Callable[[], Tokens]
    wake: Callable[[str, str], object]
    """Has whoever holds a seat look at a unit."""
    start_child: StartChild
    supervisor: Supervisor
    resign: Callable[[str], object]
    """Gives up a seat soon."""
    name_of: Callable[[object], str]
    """The registered name of a workflow's function."""
    interrupt_children: Callable[[str], object]
    """Has the children of workflows on a seat that failed or were interrupted end, too."""
