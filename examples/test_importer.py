"""A singleton of one's own under simulated faults, in one's own pytest: its leader is killed and frozen, 20 seeds.

    pytest examples/test_importer.py

An importer copies rows from somewhere and remembers how far it came. Whoever leads, and however it ends: no row is
imported twice, none is left out, and what was saved is never taken back.
"""

from dataclasses import dataclass

import pytest

from coterie import Cluster, Leader
from coterie.testing import simulate

cluster = Cluster("sqlite://", shards=1)


@dataclass
class Progress:
    last_id: int = 0


async def fetch_after(last_id: int) -> list[int]:  # stands for your database
    return list(range(last_id + 1, last_id + 4))


seen: list[int] = []


@cluster.singleton("importer", state=Progress)
async def importer(leader: Leader[Progress]) -> None:
    while True:
        rows = await fetch_after(leader.state.last_id)
        if rows:
            async with leader.update() as state:  # saved, fenced by epoch, when the block ends
                state.last_id = rows[-1]
        seen.append(leader.state.last_id)
        await leader.sleep("1s")


@pytest.mark.simulated(seeds=20)
async def test_the_importer_goes_on_when_its_leader_dies_or_freezes() -> None:
    seen.clear()
    async with simulate(cluster, runners=3) as sim:
        await sim.wait_until(lambda: len(seen) > 3)

        sim.leader("importer").kill()
        before = len(seen)
        await sim.wait_until(lambda: len(seen) > before, within="10s")

        frozen = sim.leader("importer")
        frozen.freeze()
        await sim.wait_until(lambda: sim.leader("importer") is not frozen, within="10s")
        frozen.thaw()  # it still takes itself for the leader: what it saves now is refused
        await sim.advance("5s")

        saved = seen[-1]
        progress = await cluster.singletons.state("importer", Progress)
        assert progress is not None
        assert progress.last_id >= saved
    assert seen == sorted(set(seen)), f"an import was lost or done twice: {seen}"
