"""Reports to the holders of queues: which jobs are over, and what this runner can take now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.tasks.frames import JobsOver, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.tasks.exchange import JobExchange
    from coterie.tasks.frames import JobOver

_INTERESTED_S = 5.0
"""How long a holder that has asked for slots is told of changes."""
_STARVED_S, _LATER_S = 0.01, 0.05
"""How long a change of slots waits that other seats have made: if a seat waits for a slot, and if none does. Under load
each turn of the loop changes them."""


class HolderReports:
    """The frames of one runner to holders of seats. What happens in one turn of the loop is one frame a seat.

    Args:
        exchange: Sends them.
        slots: The slots as the holder of a seat is told them.
    """

    def __init__(self, exchange: JobExchange, slots: Callable[[str], Slots]) -> None:
        self._exchange = exchange
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._over: dict[str, list[JobOver]] = {}
        self._asked: dict[str, float] = {}
        """The seats whose holders have asked, and until when they are told of changes."""
        self._told: dict[str, Slots] = {}
        """What each of them was told last."""
        self._ending: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def asked(self, seat: str, told: Slots) -> None:
        """The holder of a seat has asked what there is, and was told this."""
        self._asked[seat] = self._loop.time() + _INTERESTED_S
        self._told[seat] = told

    def over(self, seat: str, job: JobOver) -> None:
        """A job of a seat is over, or was given back."""
        self._over.setdefault(seat, []).append(job)
        if self._ending is None:
            self._ending = self._loop.call_soon(self._tell_over)

    def changed(self) -> None:
        """The slots have changed."""
        if self._asked and self._timer is None:
            is_starved = any(_is_starved(self._told[seat]) for seat in self._asked)
            self._timer = self._loop.call_later(_STARVED_S if is_starved else _LATER_S, self.tell_slots)

    def tell_slots(self) -> None:
        """Send the slots to those who have asked and were told others."""
        self._cancel_timer()
        now_s = self._loop.time()
        for seat, until_s in list(self._asked.items()):
            if until_s < now_s:
                del self._asked[seat], self._told[seat]
            elif (slots := self._slots(seat)) != self._told[seat]:
                self._tell(seat, (), slots)

    def stop(self) -> None:
        """Send what is over, and nothing more."""
        self._cancel_timer()
        self._asked.clear()
        self._tell_over()

    def _tell_over(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        over, self._over = self._over, {}
        for seat, jobs in over.items():
            self._tell(seat, tuple(jobs), self._slots(seat))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, seat: str, jobs: tuple[JobOver, ...], slots: Slots) -> None:
        if seat in self._asked:
            self._told[seat] = slots
        self._exchange.tell(seat, JobsOver(seat, jobs, slots))


def _is_starved(told: Slots) -> bool:
    """Whether a holder believes that there is no slot of some pool, so that it may be waiting for one."""
    return min(told.jobs.free, told.threads.free, told.processes.free) <= 0
