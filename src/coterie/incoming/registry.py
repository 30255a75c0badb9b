"""The seats for incoming work that a program's runners may hold: one for each group that they serve."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from coterie.incoming.check import IncomingCheck
from coterie.incoming.mover import IncomingMover
from coterie.kernel.ids import Seat
from coterie.ownership.admission import Definition
from coterie.work.occupants import Occupants
from coterie.work.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.entities.definition import EntityType
    from coterie.ownership.seats import Tenure
    from coterie.runner import Runner
    from coterie.storage.contracts.incoming_calls import Source
    from coterie.workflows.definition import WorkflowType


class IncomingRegistry(Registry[None]):
    """What SQL can send to in one program.

    Args:
        cluster: The cluster of the program.
        groups: The groups that its runners serve.
        types: The entity types of the program, by name.
        workflows: Returns its workflows, by name: they are defined later, or not at all.
    """

    kind = "incoming"

    def __init__(
        self,
        cluster: Cluster,
        groups: Sequence[str],
        types: Mapping[str, EntityType[Any]],
        workflows: Callable[[], Mapping[str, WorkflowType]],
    ) -> None:
        super().__init__(cluster)
        self.types = types
        self.workflows = workflows
        self._groups = groups

    def definitions(self) -> Sequence[Definition]:
        """One seat for each group, of the program that was the last to come with these names [M8]."""
        return [Definition(seat=Seat.incoming(each), group=each, fingerprint=self._mark(each)) for each in self._groups]

    def sources(self, group: str) -> list[Source]:
        """What the program has in a group."""
        found: list[Source] = [("call", name) for name, each in self.types.items() if each.group == group]
        return found + [("workflow", name) for name, each in self.workflows().items() if each.group == group]

    def _mark(self, group: str) -> str:
        names = [f"{kind} {name}" for kind, name in self.sources(group)]
        names += [f"{each.name}.{rpc}" for each in self.types.values() if each.group == group for rpc in each.rpcs]
        return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]

    def _held(self, runner: Runner) -> HeldIncoming:
        return HeldIncoming(self, runner)


class HeldIncoming(Occupants[IncomingMover]):
    """The seats for incoming work that one runner holds."""

    def __init__(self, registry: IncomingRegistry, runner: Runner) -> None:
        super().__init__("incoming", runner, registry.cluster)
        self._registry = registry

    def _make(self, tenure: Tenure, context: Context) -> IncomingMover:
        _, group = Seat.split(tenure.seat)
        return IncomingMover(
            tenure,
            self.services,
            context,
            runner=self._runner,
            sources=lambda: self._registry.sources(group),
            check=IncomingCheck(self._runner, group, self._registry.workflows),
        )
