"""Prompt: a call that arrives for an idle entity begins in the very turn of the loop that read it, without a task.

arrived ──▶ first step, as if in the spare task ──▶ it has ended: answered before the next frame is looked at
                                │
                                └─▶ it waits: the spare task is its own from here on, and another one stands by
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.entities.driving import first_step
from coterie.entities.serving import raise_if_meant_for_us
from coterie.kernel.coroutines import enter_task, leave_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.entities.arrivals import ArrivedCall, ArrivedStream
    from coterie.entities.hosting import Host
    from coterie.entities.residents import Hosted
    from coterie.entities.spares import Spare
    from coterie.entities.stored import StoredWork

_FEW = 32
"""So many calls of one read begin at once; then somebody looks at the clock …"""
_MOST_NS = 5_000_000
"""… and as much later the rest is queued, so that the loop gets its turn."""


class Prompt:
    """Begins calls at once, where that is simple.

    Args:
        host: Whose entities they are for.
        hosted: Its types.

    Promise:
        A call cannot tell the difference: its task and its context are its own, and all is checked that is otherwise.
    """

    def __init__(self, host: Host, hosted: Mapping[str, Hosted]) -> None:
        self._counts, self._handlers = host.counts, host.handlers
        self._serving, self._make = host.handlers.serving, host.handlers.handler
        self._hosted = hosted
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._read_s = -1.0
        self._more = 0  # so many of that read may begin before somebody looks at the clock
        self._timed_s = -1.0  # the last read for which somebody has
        self._until_ns = 0  # when the others of that one have to queue
        self._steady_ns = host.clock.steady_ns

    def serve(self, work: ArrivedCall | ArrivedStream | StoredWork, arrived_s: float) -> bool:
        """Run a call to its end or to its first wait; false if it has to be delivered as usual, untouched.

        This is the hot path of all calls that arrive: whatever is rare is left to others.
        """
        try:
            hosted = self._hosted[work.entity_type]
            resident, rpc = hosted.entities[work.entity_id], hosted.rpcs[work.method]
        except KeyError:
            return False
        if resident.running or resident.entity is None or rpc.is_stream:
            return False
        shard, serving = resident.shard, self._serving
        spare = serving.spare or serving.prepare(shard.context)
        if arrived_s != self._read_s:
            self._read_s, self._more = arrived_s, _FEW
        elif not self._more and not self._has_time():
            return False
        now_ns, time, make = shard.tenure.may_start_at(), self._time, self._make
        if now_ns is None or not spare.is_ready or work.deadline_s <= time():
            return False
        loop, task = self._loop, spare.task
        try:
            enter_task(loop, task)
        except RuntimeError:  # called by a task
            return False
        self._more -= 1
        self._counts.delivered += 1
        work.rpc, work.resident, resident.current = rpc, resident, work
        work.began_ns = now_ns
        resident.running = 1
        shard.busy += 1
        try:
            coroutine = make(work)
        except BaseException as error:  # noqa: BLE001 a decorator's own code
            self._raised(work, error, spare)
            return True
        context = shard.context.copy()
        try:
            has_ended, value = context.run(first_step, work, coroutine)
        except BaseException as error:  # noqa: BLE001 as in `Serving`
            self._raised(work, error, spare)
            return True
        leave_task(loop, task)
        if not has_ended:
            serving.suspend(work, context, coroutine, waits_for=value)
            return True
        if spare.wake.done():  # cancelled by the handler: it must not reach the next one
            serving.drop(spare)
        self._handlers.returned(work, value)
        return True

    def _has_time(self) -> bool:
        """Whether some more calls of this read may begin at once."""
        now_ns = self._steady_ns()
        if self._timed_s != self._read_s:
            self._timed_s, self._until_ns = self._read_s, now_ns + _MOST_NS
        self._more = _FEW if now_ns < self._until_ns else 0
        return self._more > 0

    def _raised(self, work: ArrivedCall | ArrivedStream | StoredWork, error: BaseException, spare: Spare) -> None:
        leave_task(self._loop, spare.task)
        if spare.wake.done():  # as above
            self._serving.drop(spare)
        self._handlers.raised(work, error)
        raise_if_meant_for_us(error)
