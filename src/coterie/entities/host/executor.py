"""Runs handlers: starts, answers, expires and cancels calls; streams the items of async generators."""

from __future__ import annotations

import asyncio
import math
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from coterie.entities.calls.spans import handled
from coterie.entities.declared_errors import nearest
from coterie.entities.host.activation import ActivationFailed, NotHeld, Resident, activate, activate_at_once
from coterie.entities.host.dispatch import CallQueue
from coterie.entities.host.responder import report_defect, report_stubborn, timed_out
from coterie.entities.persisted.commit import Commits, has_ended
from coterie.errors import MalformedMessage, NewerVersion
from coterie.kernel import chaos, spans
from coterie.kernel.coroutines import coroutine_of
from coterie.kernel.deadlines import Deadlines
from coterie.kernel.ids import MessageId
from coterie.kernel.retry import Discard, Snooze
from coterie.work.limits import CLOSING_S, STUBBORN_S
from coterie.work.middleware import WorkInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from coterie.entities.host.host import Host
    from coterie.entities.host.work import Work
    from coterie.entities.persisted.inbox import StoredCall
    from coterie.storage.contracts.messages import Message


class SeatLost(Exception):
    """The shard was lost while a stream was sent."""


async def streamed(work: Work, items: AsyncIterator[Any]) -> None:
    """Send all items of a generator, at the pace of its reader. The generator is always closed before this returns.

    Each item restarts the timeout: the deadline of a stream limits the time between two items.

    Raises:
        SeatLost: The runner no longer holds the shard, so nothing more may be sent.
    """
    loop, tenure = asyncio.get_running_loop(), work.resident.shard.tenure
    try:
        async for item in items:
            body = work.rpc.encode_result(item)
            if not tenure.held:
                raise SeatLost
            work.deadline_s = loop.time() + work.within_s
            if not await _sent(work, body):
                return
            work.deadline_s = loop.time() + work.within_s
    finally:
        if hasattr(items, "aclose"):  # a decorator may have returned another iterator
            async with asyncio.timeout(CLOSING_S):
                await items.aclose()


async def _sent(work: Work, body: bytes) -> bool:
    """Send an item. Returns whether there is still a reader."""
    try:
        await work.send(body)
    except Exception:  # noqa: BLE001 whatever the error, the reader is gone
        work.is_open = False
    return work.is_open


_TRUST_S = 0.05
"""How often to check whether calls may start again, while the runner has lost its session [M2]."""


class HandlerExecutor:
    """Runs the handlers of all entities of a runner.

    Args:
        host: The runner's entities.
        hand_over: Hands a message that a handler sent to its owner.

    Promise:
        An entity never runs more handlers at once than its concurrency. A call does not start after its deadline, and
        is cancelled at its deadline while it runs.
    """

    def __init__(self, host: Host, hand_over: Callable[[Message], None]) -> None:
        self.now_ns = 0
        """When the last handler ended, if nothing has happened since: the start of the next one."""
        self.waiting: dict[Work, None] = {}
        """Suspended calls: those that a cancellation can reach."""
        self._host = host
        self._responder = host.responder
        self._counts, self._on_idle, self._steady_ns = host.counts, host.idle.add, host.clock.steady_ns
        self._loop = asyncio.get_running_loop()
        self._time = self._loop.time
        self._middleware, self._has_middleware = host.middleware, bool(host.middleware)
        self._deadlines = Deadlines(self._loop, self._sweep)
        self.queue = CallQueue(self)
        self._commits = Commits(host, self, hand_over)

    def admit(self, work: Work) -> None:
        """Start a call: its entity is below its concurrency limit."""
        work.resident.running += 1
        work.resident.shard.busy += 1
        self.queue.push(work)

    def expect(self, deadline_s: float) -> None:
        """Set the deadline timer to a call's deadline, if that is the earliest."""
        if deadline_s < self._deadlines.next_s:
            self._deadlines.arm(deadline_s)

    def stop(self, work: Work) -> None:
        """Cancel the task of a suspended call, once."""
        if work.task is not None and not work.is_stopped:
            work.is_stopped = True
            work.task.cancel()
            if not work.rpc.is_threaded:  # the threads report their own
                self._loop.call_later(STUBBORN_S, report_stubborn, work, STUBBORN_S)

    async def close(self) -> None:
        """Stop the deadline timer, the spare task and the commits."""
        self._deadlines.stop()
        await self.queue.stop()
        await self._commits.stop()

    # How a call starts

    def begin(self, work: Work) -> Coroutine[Any, Any, Any] | None:
        """The handler's coroutine, or one that first waits for trust and activation."""
        resident = work.resident
        shard = resident.shard
        resident.current = work
        if not (work.is_open and shard.is_open and work.deadline_s > self._time()) and not self._is_wanted(work):
            self.ended(resident)
            return None
        now_ns = shard.tenure.may_start_at(self.now_ns)
        self.now_ns = 0
        if now_ns is None or (work.is_stored and not work.may_begin(now_ns)):
            return self._begin_slowly(work)
        if work.began_ns:
            resident.hosted.waits.see((now_ns - work.began_ns) / 1e9)
        work.began_ns = now_ns
        try:
            if resident.entity is None:
                if not activate_at_once(resident, self._loop.time()):
                    return self._begin_slowly(work)
                self._fill(resident)
            return self.handler(work)
        except BaseException as error:  # noqa: BLE001 an `initial_state`, or a decorator's own code
            self.raised(work, error)
            return None

    async def _begin_slowly(self, work: Work) -> Any:
        resident = work.resident
        await self._trusted(work)
        if resident.entity is None and work.is_open:
            await activate(resident, work)
            self._fill(resident)
            await self._trusted(work)
        work.began_ns = self._steady_ns()
        return await self.handler(work) if self._is_wanted(work) else None

    def _is_wanted(self, work: Work) -> bool:
        """The check before each start, besides trust: deadline not passed, shard open, caller still waiting."""
        if work.deadline_s <= self._loop.time():
            self._responder.refuse(work, timed_out(work))
        elif not work.resident.shard.is_open:
            self._responder.not_mine(work)
        return work.is_open

    async def _trusted(self, work: Work) -> None:
        """Wait while the seat is held but nothing may start; a call for a seat that is not held is sent elsewhere."""
        tenure = work.resident.shard.tenure
        while work.is_open and not (tenure.may_start and work.may_begin(self._steady_ns())):
            if not tenure.held:
                self._responder.not_mine(work)
                return
            await asyncio.sleep(_TRUST_S)

    def handler(self, work: Work) -> Coroutine[Any, Any, Any]:
        """The coroutine of a call whose entity is active."""
        rpc = work.rpc
        if work.is_stored and work.is_held():
            return _nothing()
        try:
            args, kwargs = rpc.arguments.decode(work.payload)
        except MalformedMessage as error:
            self._responder.refuse(work, error)
            return _nothing()
        work.has_begun = True
        if chaos.on:
            chaos.saw("message" if work.is_stored else "rpc", work.target)
        entity = work.resident.entity
        if self._has_middleware:
            made = self._middleware.around(_described(work), lambda: _called(work, rpc.fn(entity, *args, **kwargs)))
        else:
            made = rpc.fn(entity, *args, **kwargs) if kwargs else rpc.fn(entity, *args)
            if type(made) is not CoroutineType or rpc.is_stream:
                made = _called(work, made)
        return handled(work, made) if spans.on else made

    def _fill(self, resident: Resident) -> None:
        """Admit waiting calls of a new activation, up to its concurrency."""
        mailbox = resident.mailbox
        while mailbox is not None and resident.running < resident.limit:
            following = mailbox.pop()
            if following is None:
                return
            self.admit(following)

    # How a call ends

    def waits(self, work: Work) -> None:
        """The call has its own task now."""
        self.waiting[work] = None
        self.expect(work.deadline_s)

    def returned(self, work: Work, value: Any) -> None:
        """The handler has returned. Inlined for the usual case: a plain reply, no mailbox, no deactivation."""
        rpc, resident = work.rpc, work.resident
        shard = resident.shard
        if work.effects is not None or resident.kept is not None:
            if work.has_begun:
                self._commits.returned(work, value)
            else:  # cancelled, or not decodable, before its handler started: there is nothing to commit
                self.ended(resident, work)
            return
        if rpc.is_stream or resident.mailbox is not None or resident.is_leaving or not work.is_open:
            self._returned(work, value)
            return
        try:
            body = rpc.result.checked(value, rpc.result_what)
        except MalformedMessage as error:  # it does not fit the annotation: the handler is at fault
            self.raised(work, error)
            return
        now_ns = shard.tenure.held_at()
        if now_ns is None:
            self._returned(work, value)
            return
        if work.task is not None:
            self.waiting.pop(work, None)
        work.is_open = False
        self.now_ns = now_ns
        self._counts.replied += 1
        counted = rpc.counted
        counted.ok.value += 1
        counted.took.see((now_ns - work.began_ns) / 1e9)
        shard.busy -= 1
        resident.current = None
        resident.running -= 1
        if not resident.running and not resident.is_kept:
            if resident.rested_ns:
                resident.rested_ns = now_ns  # inlined `rest`
            else:
                self._on_idle(resident)
        work.reply(body)

    def _returned(self, work: Work, value: Any) -> None:
        try:
            self._responder.reply(work, value)
        except MalformedMessage as error:
            self.raised(work, error)
        except BaseException:
            self.ended(work.resident, work)
            raise
        else:
            self.ended(work.resident, work)

    def raised(self, work: Work, error: BaseException) -> None:
        """The handler has raised: a declared error, what to do with its message, our cancellation, or a defect."""
        if isinstance(error, ActivationFailed):
            self._not_activated(work, error.cause)
        elif isinstance(error, SeatLost):
            self._commits.undo(work)
            self._responder.cut_short(work, "it lost the shard while the stream was sent")
        elif work.is_stopped and isinstance(error, asyncio.CancelledError):
            self._commits.undo(work)  # our cancellation, and the call is closed already
        elif work.is_stored and isinstance(error, Snooze):
            self._commits.undo(work)
            cast("StoredCall", work).put_off(error.delay_s)
        elif work.is_stored and isinstance(error, Discard):
            self._commits.discarded(work, error.why)
            return
        elif nearest(error, work.rpc.errors) is not None:
            self._commits.declared(work, error)
            return
        else:
            self._defect(work, error)
        self.ended(work.resident, work)

    def _defect(self, work: Work, error: BaseException) -> None:
        """Discard the instance, whose state is unreliable now. A persisted message is retried by its policy."""
        raised = not has_ended(work)  # else its commit was refused
        self._commits.undo(work)
        report_defect(work, error)
        work.resident.hosted.defects.record(error, now_s=self._time())
        if work.is_stored:
            cast("StoredCall", work).set_back(error, raised=raised)
        else:
            self._responder.fail(work, error)
        self._host.defected(work.resident)

    def dropped(self, resident: Resident) -> None:
        """Discard an instance whose memory differs from what is stored."""
        self._host.defected(resident)

    def _not_activated(self, work: Work, cause: BaseException) -> None:
        """Fail all calls that wait for this activation; if it only took too long, the others try again."""
        self._host.not_activated(work.resident, cause)
        if not work.is_stopped:
            mailbox = work.resident.mailbox
            for each in [work, *(() if mailbox is None else mailbox.pop_all())]:
                self._refuse_unactivated(each, cause)

    def _refuse_unactivated(self, work: Work, cause: BaseException) -> None:
        if isinstance(cause, NotHeld):
            self._responder.not_mine(work)
        elif work.is_stored:
            cast("StoredCall", work).set_back(cause, raised=False)
        elif isinstance(cause, NewerVersion):  # an error of the cluster: no handler ran
            self._responder.refuse(work, cause)
        else:
            self._responder.fail(work, cause)

    def ended(self, resident: Resident, work: Work | None = None) -> None:
        """A call has ended: start the next one of the mailbox, if any."""
        now_ns = 0
        if work is not None:
            self.waiting.pop(work, None)
            if work.has_begun:
                now_ns = self._steady_ns()
                work.rpc.counted.took.see((now_ns - work.began_ns) / 1e9)
                if work.is_stored:
                    self._counts.stored += 1
        resident.current = None
        following = None if resident.mailbox is None else resident.mailbox.pop()
        if following is not None:
            self.queue.push(following)
            return
        resident.mailbox = None
        resident.running -= 1
        resident.shard.busy -= 1
        if not resident.running:
            if now_ns and resident.rested_ns and not (resident.is_leaving or resident.is_kept):
                resident.rested_ns = now_ns  # inlined `became_idle`
            else:
                self._host.became_idle(resident)

    # Deadlines

    def _sweep(self, now_s: float) -> tuple[float, int]:
        """Close expired calls. Returns the earliest deadline of the rest, and how many calls wait."""
        least_s = math.inf
        for work in list(self.waiting):
            if work.deadline_s <= now_s:
                self._responder.refuse(work, timed_out(work))
                self.stop(work)
            else:
                least_s = min(least_s, work.deadline_s)
            least_s = min(least_s, self._sweep_mailbox(work.resident, now_s))
        return least_s, len(self.waiting)

    def _sweep_mailbox(self, resident: Resident, now_s: float) -> float:
        if resident.mailbox is None:
            return math.inf
        expired, least_s = resident.mailbox.pop_expired(now_s)
        for work in expired:
            self._responder.refuse(work, timed_out(work))
        return least_s


def _called(work: Work, made: Any) -> Coroutine[Any, Any, Any]:
    """What a handler has given, as a coroutine."""
    return streamed(work, made) if work.rpc.is_stream else coroutine_of(made)


def _described(work: Work) -> WorkInfo:
    return WorkInfo(
        kind="stream" if work.rpc.is_stream else "rpc",
        name=work.entity_type,
        id=work.entity_id,
        method=work.method,
        attempt=work.attempt,
        message_id=MessageId(work.message_id),
        key=work.key,
    )


async def _nothing() -> None:
    """Runs for a call that was answered before its handler could start."""
