"""The actions on the runners of the demo. Each measures its effect on the work, and prints it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.cli.demo.cluster_view import IMPORTER, moved
from coterie.cli.output import lasting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from coterie.cli.demo.cluster_view import Lead
    from coterie.cli.demo.demo import Demo
    from coterie.cli.demo.load import DepositCount
    from coterie.cli.demo.runners import DemoRunner
    from coterie.kernel.ids import ShardId

    Act = Callable[["Demo"], Awaitable[DepositCount]]

_CUT_S = 5.0
"""How long the network stays cut on SQLite, where the leader keeps its seats."""


async def kill(stage: Demo) -> DepositCount:
    """SIGKILL the leader; it is restarted when another runner leads."""
    leader, lead, before = await _leader(stage)
    began_s = _now_s()
    await leader.kill()
    stage.say(f"killed {leader.name} (SIGKILL)")
    count = await _taken_over(stage, lead, before, began_s, without=leader)
    await _back(stage, leader)
    return count


async def freeze(stage: Demo) -> DepositCount:
    """SIGSTOP the leader; it is resumed when another runner leads."""
    leader, lead, before = await _leader(stage)
    began_s = _now_s()
    leader.freeze()
    stage.say(f"froze {leader.name} (SIGSTOP): nobody can tell that from a slow one until its lease has run out")
    count = await _taken_over(stage, lead, before, began_s, without=leader)
    leader.thaw()
    stage.say(f"let {leader.name} go on (SIGCONT): it finds that it was replaced, and what it still writes is refused")
    await _back(stage, leader)
    return count


async def cut(stage: Demo) -> DepositCount:
    """Cut the leader's network: on PostgreSQL from its database, on SQLite from the other runners."""
    leader, lead, before = await _leader(stage)
    began_s = _now_s()
    leader.cut()
    if stage.is_file:
        stage.say(f"cut {leader.name} off: nobody reaches it, but it reaches the file, which no network can cut")
        await asyncio.sleep(_CUT_S)
        leader.heal()
        return await _stayed(stage, leader, lead, before)
    stage.say(f"cut {leader.name} off from the database, silently")
    count = await _taken_over(stage, lead, before, began_s, without=leader)
    leader.heal()
    stage.say(f"mended the network of {leader.name}")
    await _back(stage, leader)
    return count


async def add(stage: Demo) -> DepositCount:
    """Add a runner, which gets its share of the shards."""
    if not stage.has_room:
        stage.say("no more runners: this is a demo, and they share one machine")
        return await stage.ledger.check()
    before, began_s = await stage.sight.shards(), _now_s()
    new = await stage.add_runner()
    stage.say(f"{new.name} joined")
    after = await stage.sight.settled(stage.names())
    return await _moved(stage, before, after, took_s=_now_s() - began_s)


async def deploy(stage: Demo) -> DepositCount:
    """Stop all runners gracefully and restart them, one after the other."""
    lead, before, began_s = await stage.sight.lead(), await stage.sight.shards(), _now_s()
    stage.ledger.slowest_s = 0.0
    for runner in stage.living():
        left_s = _now_s()
        code = await runner.stop()
        how = "left cleanly" if code == 0 else f"left with exit code {code}"
        took = lasting(_now_s() - left_s)
        await runner.start()
        stage.say(f"{runner.name} {how} in {took} and runs again")
        stage.is_clean = stage.is_clean and code == 0
    after = await stage.sight.settled(stage.names())
    last = await stage.sight.lead()
    handovers = "1 handover" if last.epoch - lead.epoch == 1 else f"{last.epoch - lead.epoch} handovers"
    stage.say(
        f"★ {IMPORTER} leads on {last.runner}, epoch {last.epoch}, after {handovers};"
        f" the slowest deposit took {lasting(stage.ledger.slowest_s)}"
    )
    return await _moved(stage, before, after, took_s=_now_s() - began_s)


ACTS: Mapping[str, Act] = {"k": kill, "f": freeze, "p": cut, "a": add, "d": deploy}
"""The actions by their keys."""


async def _leader(stage: Demo) -> tuple[DemoRunner, Lead, Mapping[ShardId, str | None]]:
    """The current leader, once all shards are settled."""
    before = await stage.sight.settled(stage.names())
    lead = await stage.sight.lead()
    return stage.runner(lead.runner), lead, before


async def _taken_over(
    stage: Demo, lead: Lead, before: Mapping[ShardId, str | None], began_s: float, *, without: DemoRunner
) -> DepositCount:
    now = await stage.sight.lead(after_epoch=lead.epoch)
    took = lasting(_now_s() - began_s)
    text = f"★ {IMPORTER} leads on {now.runner}, epoch {now.epoch}, continues after row {now.after:,}"
    stage.say(f"{text:<64}  took {took}")
    after = await stage.sight.settled([name for name in stage.names() if name != without.name])
    return await _moved(stage, before, after)


async def _stayed(stage: Demo, leader: DemoRunner, lead: Lead, before: Mapping[ShardId, str | None]) -> DepositCount:
    now = await stage.sight.lead()
    stage.say(f"mended the network of {leader.name} after {lasting(_CUT_S)}")
    if now.epoch == lead.epoch:
        stage.say(
            f"★ {IMPORTER} stayed on {now.runner}, epoch {now.epoch}: whoever reaches the database keeps its seats"
        )
    else:
        stage.say(f"★ {IMPORTER} leads on {now.runner}, epoch {now.epoch}")
    after = await stage.sight.settled(stage.names())
    return await _moved(stage, before, after)


async def _moved(
    stage: Demo,
    before: Mapping[ShardId, str | None],
    after: Mapping[ShardId, str | None],
    *,
    took_s: float | None = None,
) -> DepositCount:
    count = await stage.ledger.check()
    number, to = moved(before, after)
    where = f" to {_listed(to)}" if to else ""
    took = "" if took_s is None else f"  took {lasting(took_s)}"
    stage.say(f"{number} shards moved{where}; {count}{took}")
    return count


async def _back(stage: Demo, runner: DemoRunner) -> None:
    """Restore the set of runners: one that died, or was killed because it froze inside a commit, is restarted."""
    if await _is_gone(runner):
        await runner.start()
    await stage.sight.settled(stage.names())
    stage.say(f"{runner.name} is back, and has its share again")


async def _is_gone(runner: DemoRunner) -> bool:
    await asyncio.sleep(0.1)  # a runner that was killed while frozen has exited by now
    return not runner.lives


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _now_s() -> float:
    return asyncio.get_running_loop().time()
