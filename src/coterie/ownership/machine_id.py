"""Snowflakes for one process: leases a machine id at first use and keeps its mark ahead of the ids drawn [K2, M15].

The mark makes ids unique: none is drawn beyond the stored mark, and the next lessee of the machine id begins after it.
The lease only says who may raise the mark, so an expired, lost or doubtful lease never repeats an id.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError, ShuttingDown
from coterie.kernel.fork_guard import ProcessOrigin
from coterie.kernel.ids import MACHINES, SnowflakeGenerator
from coterie.kernel.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.kernel.clock import Clock
    from coterie.storage.interface import MachineIds

LEASE_S = 60.0
"""How long a machine id stays leased after its holder was killed: long enough that the mark has passed by then."""

AHEAD_MS = 10_000
"""How far the mark is written ahead: one statement in 5 s while ids are drawn; a restart skips no more than this."""

PAUSE_NS = 1_000_000_000
"""Pause between two attempts to raise the mark in advance, when the database does not answer."""


class IdGenerator(Service):
    """Draws snowflakes.

    Args:
        machines: Where machine ids are leased.
        holder: The lessee: the incarnation of this process.
        clock: Its wall clock gives ids their time.
        trust: Whether ids may be drawn now; a runner passes whether it trusts its own lease. Default: always.

    Promise:
        No id repeats in the whole history of the cluster, and those of one process increase: also after a crash, when
        the wall clock steps back, the lease expires, or a commit's outcome stays unknown [S1, GAP-04, GAP-10].
    """

    def __init__(
        self, machines: MachineIds, *, holder: str, clock: Clock, trust: Callable[[], bool] | None = None
    ) -> None:
        super().__init__(what="id generator")
        self._machines = machines
        self._holder = holder
        self._clock = clock
        self._trust = trust
        self._origin = ProcessOrigin(self.what)
        self._generator: SnowflakeGenerator | None = None
        self._after_ms = 0
        self._raising: asyncio.Task[PersistenceError | None] | None = None
        self._expiring_ns = self._not_before_ns = 0

    async def take(self) -> int:
        """The next id. Waits for the database at the first call, after a long pause, and in an outage of seconds.

        Raises:
            PersistenceError: All machine ids are leased, the database cannot be reached, or this runner no longer
                trusts its lease.
        """
        while (drawn := self._draw()) is None:
            await self._raise()
        return drawn

    def lease_again(self) -> None:
        """Draw no more under the current lease: the database may have lost it, and lease the machine id to another."""
        self._after_ms = self._last_ms()
        self._generator = None

    def _draw(self) -> int | None:
        # Checked right before each draw, with no await in between.
        self.require_running()
        self._origin.require_same()
        self._require_trust()
        if self._generator is None:
            return None
        drawn = self._generator.take(self._now_ms())
        if drawn is not None and self._raising is None and self._is_due(self._generator):
            self._begin_raising()
        return drawn

    def _require_trust(self) -> None:
        if self._trust is not None and not self._trust():
            raise PersistenceError(
                doing="draw an id",
                problem="this runner has not been able to renew its lease in time",
                outcome="unreachable",
                hint="it goes on by itself once the database answers; try again then",
            )

    def _is_due(self, generator: SnowflakeGenerator) -> bool:
        """Whether to raise the mark and prolong the lease now, before a caller has to wait for it."""
        now_ns = self._clock.steady_ns()
        if now_ns < self._not_before_ns:
            return False
        return generator.until_ms - generator.last_ms < AHEAD_MS // 2 or now_ns >= self._expiring_ns

    async def _raise(self) -> None:
        """Raise the mark, shared by all waiters."""
        raising = self._raising or self._begin_raising()
        # The task continues when a caller is cancelled; gathered, its own cancellation is not mistaken for the
        # caller's.
        await asyncio.shield(asyncio.gather(raising, return_exceptions=True))
        if raising.cancelled():
            raise ShuttingDown(what=self.what)
        if (error := raising.result()) is not None:
            raise error

    def _begin_raising(self) -> asyncio.Task[PersistenceError | None]:
        self._raising = self.tasks.spawn(self._try_to_raise(), name="raise the mark")
        return self._raising

    async def _try_to_raise(self) -> PersistenceError | None:
        began_ns = self._clock.steady_ns()
        try:
            if self._generator is None or not await self._extended(self._generator):
                self._generator = await self._leased()
            self._expiring_ns = began_ns + int(LEASE_S / 2 * 1e9)
        except PersistenceError as error:
            self._not_before_ns = self._clock.steady_ns() + PAUSE_NS
            return error
        finally:
            self._raising = None
        return None

    async def _extended(self, generator: SnowflakeGenerator) -> bool:
        until_ms = max(self._ahead_ms(), generator.until_ms)
        machine_id = generator.machine_id
        ours = await self._machines.extend(machine_id, self._holder, ttl_s=LEASE_S, until_ms=until_ms)
        if ours:
            generator.extend(until_ms)
        return ours

    async def _leased(self) -> SnowflakeGenerator:
        until_ms = self._ahead_ms()
        machine = await self._machines.lease(self._holder, ttl_s=LEASE_S, until_ms=until_ms)
        if machine is None:
            raise _all_taken()
        # Also after the last id of this process: ids increase across a change of the machine id.
        after_ms = max(machine.after_ms, self._last_ms())
        return SnowflakeGenerator(machine.id, after_ms=after_ms, until_ms=max(after_ms, until_ms))

    async def _start(self) -> None:
        self._origin.set()

    async def _stop(self) -> None:
        self._origin.require_same()
        if self._generator is not None:
            with contextlib.suppress(PersistenceError):  # it expires by itself
                await self._machines.give_back(self._generator.machine_id, self._holder)

    def _ahead_ms(self) -> int:
        return max(self._now_ms(), self._last_ms()) + AHEAD_MS

    def _last_ms(self) -> int:
        return self._after_ms if self._generator is None else self._generator.last_ms

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // 1_000_000


def _all_taken() -> PersistenceError:
    return PersistenceError(
        doing="draw an id",
        problem=f"all {MACHINES:,} machine ids are leased, one to each process that draws ids",
        hint=f"those of killed processes come free within {LEASE_S:g}s; otherwise draw ids in fewer processes",
    )
