"""The definitions that a program makes of one kind of work, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.cluster import Cluster
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy
    from coterie.runner import Runner
    from coterie.work.occupants import Occupants

D = TypeVar("D")


class Registry(Generic[D]):
    """The definitions of one kind; a runner's occupants of their seats (`runner.Workplace`).

    Args:
        cluster: Passed to bodies.
    """

    kind: ClassVar[str]
    """The kind of their seats."""

    def __init__(self, cluster: Cluster) -> None:
        self.known: dict[str, D] = {}
        self.cluster = cluster

    def _add(self, name: str, definition: D, *, what: str, hint: str = "give one of them another name") -> None:
        if name in self.known:
            raise refusal(f"there are two {what} of the name {name!r}", hint=hint)
        self.known[name] = definition

    def definitions(self) -> Sequence[Definition]:
        """The seats that they need; none: they live on shards."""
        return []

    def _held(self, runner: Runner) -> Occupants[Any]:
        raise NotImplementedError

    def occupants(self, runner: Runner) -> Occupy:
        """Occupy the seats that a runner holds."""
        held = self._held(runner)
        runner.on_wake(self.kind, held.wake)
        return held.occupy
