"""Diaries: what the hooks and bodies of singletons noted, in which process and when; and a singleton to begin with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie import Cluster
from coterie.testing.loop.nodes import current_node
from coterie.testing.run import current_loop

if TYPE_CHECKING:
    from coterie import Leader
    from coterie.testing.simulation import Runner, Simulation


class Line(NamedTuple):
    """Something that was noted."""

    at_s: float
    process: str
    name: str
    what: str
    epoch: int


@dataclass
class LeaderHistory:
    """Of all singletons of a test."""

    lines: list[Line] = field(default_factory=list)

    def note(self, what: str, leader: Leader[Any]) -> None:
        """Here and now."""
        now_s = current_loop().now_ns / 1e9
        self.lines.append(Line(now_s, current_node.get().label, leader.name, what, leader.epoch))

    def hooks(self) -> dict[str, Any]:
        """Options of a singleton: both hooks, which take a note each."""

        async def become(leader: Leader[Any]) -> None:
            self.note("become", leader)

        async def lose(leader: Leader[Any]) -> None:
            self.note("lose", leader)

        return {"on_become_leader": become, "on_lose_leadership": lose}

    def of(self, what: str, name: str = "x") -> list[Line]:
        """All of a kind, of one singleton."""
        return [line for line in self.lines if (line.what, line.name) == (what, name)]

    def by(self, process: str, name: str = "x") -> list[str]:
        """What one process noted of a singleton, in order."""
        return [line.what for line in self.lines if (line.process, line.name) == (process, name)]


def new_cluster(**settings: Any) -> Cluster:
    """Of one name, whatever its program: programs of several versions meet in it."""
    return Cluster("sqlite://", shards=1, **{"drain": "3s", "heartbeat": "5s", **settings})


@dataclass
class Count:
    """A state."""

    n: int = 0


async def is_led(sim: Simulation, *, by: Runner | None = None, other_than: Runner | None = None) -> Runner:
    """Who leads, when it is so."""

    def fits() -> bool:
        leader = sim.leader("x")
        return leader.alive and (by is None or leader is by) and (other_than is None or leader is not other_than)

    await sim.wait_until(fits, within="30s")
    return sim.leader("x")


def define_counter(cluster: Cluster, diary: LeaderHistory, **options: Any) -> None:
    """A singleton that counts, with the hooks of the diary if no others are given."""

    @cluster.singleton("x", **{"state": Count, **diary.hooks(), **options})
    async def body(leader: Leader[Count]) -> None:
        diary.note("body", leader)
        while True:
            async with leader.update() as state:
                state.n += 1
            await leader.sleep("200ms")
