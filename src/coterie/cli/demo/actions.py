"""The actions on the runners of the demo. Each measures its effect on the work, and prints it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.cli.demo.cluster_view import IMPORTER, Lead, moved
from coterie.cli.output import lasting, plural
from coterie.kernel.clock import steady_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from coterie.cli.demo.demo import Demo
    from coterie.cli.demo.load import DepositCount
    from coterie.cli.demo.runners import DemoRunner
    from coterie.kernel.ids import ShardId

    Act = Callable[["Demo"], Awaitable[DepositCount]]

_CUT_S = 5.0
"""How long the network stays cut on SQLite, where the leader keeps its seats."""


async def kill(demo: Demo) -> DepositCount:
    """SIGKILL the leader; it is restarted when another runner leads."""
    leader, lead, before = await _leader(demo)
    began_s = steady_s()
    await leader.kill()
    demo.log(f"killed {leader.name} (SIGKILL)")
    count = await _taken_over(demo, lead, before, began_s, without=leader)
    await _back(demo, leader)
    return count


async def freeze(demo: Demo) -> DepositCount:
    """SIGSTOP the leader; it is resumed when another runner leads."""
    leader, lead, before = await _leader(demo)
    began_s = steady_s()
    leader.freeze()
    demo.log(f"froze {leader.name} (SIGSTOP): it looks like a slow one until its lease has expired")
    count = await _taken_over(demo, lead, before, began_s, without=leader)
    leader.thaw()
    demo.log(f"resumed {leader.name} (SIGCONT): it finds that it was replaced, and its late writes are refused")
    await _back(demo, leader)
    return count


async def cut(demo: Demo) -> DepositCount:
    """Cut the leader's network: on PostgreSQL from its database, on SQLite from the other runners."""
    leader, lead, before = await _leader(demo)
    began_s = steady_s()
    leader.cut()
    if demo.is_file:
        demo.log(
            f"cut {leader.name} off: no runner reaches it, but it still reaches the file, which no network can cut"
        )
        await asyncio.sleep(_CUT_S)
        leader.heal()
        return await _stayed(demo, leader, lead, before)
    demo.log(f"cut {leader.name} off from the database, silently")
    count = await _taken_over(demo, lead, before, began_s, without=leader)
    leader.heal()
    demo.log(f"mended the network of {leader.name}")
    await _back(demo, leader)
    return count


async def add(demo: Demo) -> DepositCount:
    """Add a runner, which gets its share of the shards."""
    if not demo.has_room:
        demo.log("no more runners: this is a demo, and they share one machine")
        return await demo.load.check()
    before, began_s = await demo.view.shards(), steady_s()
    new = await demo.add_runner()
    demo.log(f"{new.name} joined")
    after = await demo.view.settled(demo.names())
    return await _moved(demo, before, after, took_s=steady_s() - began_s)


async def deploy(demo: Demo) -> DepositCount:
    """Stop all runners gracefully and restart them, one after the other."""
    lead, before, began_s = await demo.view.lead(), await demo.view.shards(), steady_s()
    demo.load.slowest_s = 0.0
    for runner in demo.living():
        left_s = steady_s()
        code = await runner.stop()
        how = "left cleanly" if code == 0 else f"left with exit code {code}"
        took = lasting(steady_s() - left_s)
        await runner.start()
        demo.log(f"{runner.name} {how} in {took} and runs again")
        demo.is_clean = demo.is_clean and code == 0
    after = await demo.view.settled(demo.names())
    last = await demo.view.lead()
    handovers = plural(last.epoch - lead.epoch, "handover")
    demo.log(
        f"★ {IMPORTER} leads on {last.runner}, epoch {last.epoch}, after {handovers};"
        f" the slowest deposit took {lasting(demo.load.slowest_s)}"
    )
    return await _moved(demo, before, after, took_s=steady_s() - began_s)


ACTS: Mapping[str, Act] = {"k": kill, "f": freeze, "p": cut, "a": add, "d": deploy}
"""The actions by their keys."""


async def _leader(demo: Demo) -> tuple[DemoRunner, Lead, Mapping[ShardId, str | None]]:
    """The current leader, once all shards are settled."""
    before = await demo.view.settled(demo.names())
    lead = await demo.view.lead()
    return demo.runner(lead.runner), lead, before


async def _taken_over(
    demo: Demo, lead: Lead, before: Mapping[ShardId, str | None], began_s: float, *, without: DemoRunner
) -> DepositCount:
    now = await demo.view.lead(after_epoch=lead.epoch)
    took = lasting(steady_s() - began_s)
    text = f"★ {IMPORTER} leads on {now.runner}, epoch {now.epoch}, continues after row {now.after:,}"
    demo.log(f"{text:<64}  took {took}")
    after = await demo.view.settled([name for name in demo.names() if name != without.name])
    return await _moved(demo, before, after)


async def _stayed(demo: Demo, leader: DemoRunner, lead: Lead, before: Mapping[ShardId, str | None]) -> DepositCount:
    now = await demo.view.lead()
    demo.log(f"mended the network of {leader.name} after {lasting(_CUT_S)}")
    if now.epoch == lead.epoch:
        demo.log(
            f"★ {IMPORTER} stayed on {now.runner}, epoch {now.epoch}: it reaches the database, so it keeps its seats"
        )
    else:
        demo.log(f"★ {IMPORTER} leads on {now.runner}, epoch {now.epoch}")
    after = await demo.view.settled(demo.names())
    return await _moved(demo, before, after)


async def _moved(
    demo: Demo,
    before: Mapping[ShardId, str | None],
    after: Mapping[ShardId, str | None],
    *,
    took_s: float | None = None,
) -> DepositCount:
    count = await demo.load.check()
    number, to = moved(before, after)
    where = f" to {_listed(to)}" if to else ""
    took = "" if took_s is None else f"  took {lasting(took_s)}"
    demo.log(f"{number} shards moved{where}; {count}{took}")
    return count


async def _back(demo: Demo, runner: DemoRunner) -> None:
    """Restore the set of runners: one that died, or was killed because it froze inside a commit, is restarted."""
    if await _is_gone(runner):
        await runner.start()
    await demo.view.settled(demo.names())
    demo.log(f"{runner.name} is back, and has its share again")


async def _is_gone(runner: DemoRunner) -> bool:
    await asyncio.sleep(0.1)  # a runner that was killed while frozen has exited by now
    return not runner.lives


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
