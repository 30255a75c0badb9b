"""Fires the schedules and timers of a runner's shards: one loop per runner finds what is due on all of them.

    sleep until the first is due, a hint, or a sweep ──▶ read what is due ──▶ decide ──▶ fire: a statement per batch
      ▲                                                                                    │
      └──────────── hand the messages to their owners ◀────────────────────────────────────┘

A shard that has nothing due is not read again before its next instant. A sweep of all of them finds what no hint has
told: a row that another process has put, whose hint was lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from typing import TYPE_CHECKING

from coterie.errors import CoterieError, PersistenceError
from coterie.kernel import chaos, metrics
from coterie.work.limits import set_within
from coterie.work.occupants import GRACE_S, Occupants
from coterie.work.registry import Registry
from coterie.work.while_held import AWAY_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextvars import Context
    from datetime import datetime

    from coterie.ownership.seats import Tenure
    from coterie.runner import Runner
    from coterie.storage.contracts.schedules import DueSchedules, Fire, Fired, ScheduleRow

log = logging.getLogger("coterie.schedules")

_SWEEP_S = 5.0
"""Between two reads of all shards."""
_SEATS = 100
"""Shards of one read."""
_ROWS = 20
"""Rows of one shard in one read: their arguments are in memory together."""
_BATCH = 500
"""Messages of one statement; one row may go beyond."""
_AGAIN_S = 0.05
"""Before a shard is read again of which something was due and not fired: a row has changed, or there is no session."""
_WAITS_S = 1.0
"""How long a row is left alone that waits for the end of its last message."""
_ODD_S = 10.0
"""The same for one that cannot be read, or that the database refuses."""


class ScheduleRegistry(Registry[None]):
    """What a runner does for schedules and timers, which are known from the tables alone (`runner.Workplace`)."""

    kind = "shard"

    def _held(self, runner: Runner) -> HeldSchedules:
        held = HeldSchedules(self, runner)
        if runner.calling.host is not None:
            runner.calling.host.on_timer = held.expect
        return held


class ShardSchedules:
    """The schedules and timers of one shard, for as long as it is held."""

    def __init__(self, tenure: Tenure, held: HeldSchedules) -> None:
        self.tenure = tenure
        self.look_s = -math.inf
        """When it is to be read next, in the loop's time."""
        self.held_since: datetime | None = None
        """Since when it is held, by the database's clock; None: it was not read yet."""
        self._held = held
        self._is_closing = False

    @property
    def may_fire(self) -> bool:
        """Whether something of it may be sent."""
        return not self._is_closing and self.tenure.may_start

    @property
    def is_open(self) -> bool:
        """Whether it is held, and goes on being held."""
        return not self._is_closing and self.tenure.held

    def wake(self, unit: str = "") -> None:
        """There may be news."""
        del unit
        self.look_s = -math.inf
        self._held.hurry()

    def expect(self, at_s: float) -> None:
        """Something will be due at a time of the loop."""
        if at_s < self.look_s:
            self.look_s = at_s
            self._held.hurry()

    async def drain(self) -> None:
        """Fire nothing more; what is on its way is waited for."""
        await self.end()

    def abandon(self) -> None:
        """The seat is lost: the fence refuses what is on its way."""
        self._is_closing = True

    async def end(self) -> None:
        """Wait for what is on its way."""
        self._is_closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._held.quiet()


class HeldSchedules(Occupants[ShardSchedules]):
    """The schedules and timers of all shards that one runner holds."""

    def __init__(self, registry: ScheduleRegistry, runner: Runner) -> None:
        super().__init__("schedules", runner, registry.cluster)
        self._news = asyncio.Event()
        self._firing = asyncio.Lock()
        self._sweep_s = -math.inf
        self._aside: dict[str, tuple[float, ShardSchedules]] = {}
        """Until when rows are left alone, by key, with their shards."""

    def hurry(self) -> None:
        """A shard is to be read sooner than was known."""
        self._news.set()

    def expect(self, seat: str, at: datetime) -> None:
        """A timer was set on a shard of this runner."""
        if seat in self.latest:
            self.latest[seat].expect(_now_s() + self.services.dial.until_s(at))

    async def quiet(self) -> None:
        """Return when nothing is on its way that was decided before this call."""
        async with self._firing:
            pass

    def _make(self, tenure: Tenure, context: Context) -> ShardSchedules:
        del context
        made = ShardSchedules(tenure, self)
        self.hurry()
        return made

    def _begin(self) -> None:
        self._supervise(self._live, "fire schedules")

    # The loop

    async def _live(self) -> None:
        while True:
            self._news.clear()
            try:
                await self._pass()
            except PersistenceError as error:
                log.info("schedules wait for the database: %s", error)
                await asyncio.sleep(AWAY_S)
                continue
            wait_s = self._next_s() - _now_s()
            if wait_s > 0:
                await set_within(self._news, wait_s)
            else:
                await asyncio.sleep(0)

    def _next_s(self) -> float:
        """When something is to be read next."""
        open_ = (each.look_s for each in self.latest.values() if each.is_open)
        return min(self._sweep_s, *open_, *(until_s for until_s, _ in self._aside.values()), math.inf)

    async def _pass(self) -> None:
        """Read the shards whose time has come, and fire what is due."""
        now_s = _now_s()
        is_sweep = now_s >= self._sweep_s
        if is_sweep:
            self._sweep_s = now_s + self.services.chance.between(_SWEEP_S / 2, _SWEEP_S)
        for key, (until_s, shard) in list(self._aside.items()):
            if until_s <= now_s:
                del self._aside[key]
                shard.look_s = -math.inf
        shards = [each for each in self.latest.values() if each.is_open and (is_sweep or each.look_s <= now_s)]
        for first in range(0, len(shards), _SEATS):
            async with self._firing:
                await self._fire_due({each.tenure.seat: each for each in shards[first : first + _SEATS]})

    async def _fire_due(self, shards: dict[str, ShardSchedules]) -> None:
        for shard in shards.values():
            shard.look_s = math.inf  # from here on a hint brings it forward: this read may not see what it is about
        try:
            found = await self.services.storage.schedules.due(list(shards), without=list(self._aside), most=_ROWS)
        except PersistenceError:
            for shard in shards.values():
                shard.look_s = -math.inf
            raise
        self._note(shards, found)
        batch: list[Fire] = []
        size = 0
        for row in found.rows:
            fire = self._decide(row, shards[row.seat], found.now)
            if fire is not None:
                batch.append(fire)
                size += max(1, len(fire.sends) + len(fire.jobs))
            if size >= _BATCH:
                await self._fire(batch, shards)
                batch, size = [], 0
        if batch:
            await self._fire(batch, shards)

    def _note(self, shards: dict[str, ShardSchedules], found: DueSchedules) -> None:
        """Note when each shard is to be read next: at once if it may have more that is due."""
        dial, now_s = self.services.dial, _now_s()
        dial.observe(found.now)
        counts = dict.fromkeys(shards, 0)
        for row in found.rows:
            counts[row.seat] += 1
        for seat, shard in shards.items():
            shard.held_since = shard.held_since or found.now
            later = found.later.get(seat)
            if later is not None:
                shard.look_s = min(shard.look_s, now_s + max(dial.until_s(later), 0.0))
            if counts[seat] >= _ROWS and shard.may_fire:
                shard.look_s = -math.inf
        for key in found.unreadable:  # whose shard that is does not matter: the sweep finds it again
            self._aside[key] = now_s + _ODD_S, next(iter(shards.values()))

    def _decide(self, row: ScheduleRow, shard: ShardSchedules, now: datetime) -> Fire | None:
        from coterie.schedules.verdict import fire_of  # zones and calendars: only where something is due

        if not shard.may_fire or shard.held_since is None:
            shard.look_s = min(shard.look_s, _now_s() + _AGAIN_S)
            return None
        try:
            fire = fire_of(row, shard.tenure.claim, held_since=shard.held_since, now=now)
        except (ValueError, OverflowError, CoterieError) as error:
            log.error("%s cannot be read, and is not sent: %s", row.key, error)
            self._put_aside(row.key, shard, _ODD_S)
            return None
        if fire is None:
            self._put_aside(row.key, shard, _WAITS_S)
        return fire

    def _put_aside(self, key: str, shard: ShardSchedules, lasting_s: float) -> None:
        self._aside[key] = _now_s() + lasting_s, shard

    async def _fire(self, fires: Sequence[Fire], shards: dict[str, ShardSchedules]) -> None:
        fires = [each for each in fires if shards[each.claim.seat].may_fire]
        if not fires:
            return
        if chaos.on:
            await chaos.point("schedules.before_fire")
        try:
            told = await self.services.storage.schedules.fire(fires)
        except PersistenceError as error:
            for each in fires:
                shards[each.claim.seat].look_s = _now_s() + _AGAIN_S
            if error.outcome != "refused":
                raise
            await self._fire_apart(fires, shards, error)
            return
        for fire, outcome in zip(fires, told, strict=True):
            self._judge(fire, outcome, shards[fire.claim.seat])

    async def _fire_apart(
        self, fires: Sequence[Fire], shards: dict[str, ShardSchedules], error: PersistenceError
    ) -> None:
        """Fire them one by one: the database refuses at least one."""
        if len(fires) == 1:
            log.warning("%s is not sent for %gs: %s", fires[0].key, _ODD_S, error)
            self._put_aside(fires[0].key, shards[fires[0].claim.seat], _ODD_S)
            return
        for each in fires:
            await self._fire([each], shards)

    def _judge(self, fire: Fire, outcome: Fired, shard: ShardSchedules) -> None:
        if outcome != "written":
            shard.look_s = min(shard.look_s, _now_s() + _AGAIN_S)
            return
        if fire.next_at is not None:
            shard.look_s = min(shard.look_s, _now_s() + max(self.services.dial.until_s(fire.next_at), 0.0))
        metrics.SCHEDULED.of("sent").value += len(fire.sends) + len(fire.jobs)
        if not (fire.sends or fire.jobs) and fire.due_at is not None:
            metrics.SCHEDULED.of("skipped").value += 1
        for message in fire.sends:
            metrics.MESSAGES_SENT.of(message.entity_type, message.method).value += 1
            self._runner.calling.persisted.hand_over(message)
        for job in fire.jobs:
            self._runner.job_sender.hint(job)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
