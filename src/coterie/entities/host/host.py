"""Host: all active entities of one runner. It runs the calls delivered to it, by default one per entity at a time.

deliver ──▶ active? ──no──▶ capacity? shard ours? ──▶ new activation
               │                                       │
               └────────▶ runs now, or waits in its mailbox ──▶ handler ──▶ answered

An entity without calls costs no task and no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from coterie.entities.host.activation import HostCounts, Hosted, NotHeld, Resident, backoff_s
from coterie.entities.host.deactivation import Deactivations, IdleEntities
from coterie.entities.host.dispatch import ImmediateDispatch
from coterie.entities.host.executor import HandlerExecutor
from coterie.entities.host.mailbox import Mailbox
from coterie.entities.host.responder import Responder
from coterie.entities.host.shard import ShardOccupant
from coterie.entities.persisted.inbox import Inbox
from coterie.entities.persisted.outcome import cancelled
from coterie.entities.persisted.poller import Poller
from coterie.errors import (
    CoterieError,
    MailboxFull,
    NotStarted,
    PersistenceError,
    ReentrantCall,
    RunnerFull,
    UnknownEntity,
)
from coterie.kernel.clock import to_datetime
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.kernel.text import said
from coterie.work.limits import STUBBORN_S, settled
from coterie.work.middleware import Middleware
from coterie.work.threads import InlineThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from coterie.cluster import Cluster
    from coterie.entities.definition import EntityType
    from coterie.entities.host.defects import DefectStreak
    from coterie.entities.host.work import Work
    from coterie.kernel.clock import Clock
    from coterie.kernel.random import Random
    from coterie.kernel.retry import Retry
    from coterie.ownership.seats import Tenure
    from coterie.settings import Settings
    from coterie.storage.contracts.jobs import NewJob
    from coterie.storage.contracts.messages import Message
    from coterie.storage.interface import Storage
    from coterie.work.threads import Threads

log = logging.getLogger("coterie.entities")


class Host:
    """The active entities of one runner. Created and used on its loop. There is no `start`; `stop` ends it.

    Args:
        types: The entity types of this program, by name. Looked up at each delivery, so it may still grow.
        cluster: The value of `self.cluster` in entities; None for a probe.
        settings: The settings of the runner: `shards`, `drain`, `resident_entities`, `max_idle`, `retry`.
        clock: The clock of the runner.
        chance: The randomness of the runner.
        name: The name of the runner, for errors.
        storage: Stores state and messages; None for a probe, which stores nothing.
        hand_over: Hands a message that a handler sent to its owner, once it is stored.
        supervisor: The supervisor of this process.
        threads: Where plain functions run. Default: on the loop.
        middleware: What runs around each call. Default: nothing.

    Promise:
        Every delivered call is answered once, by its deadline and a tick, whatever its handler does (see `Work`).
        An entity that hangs or fails does not affect other entities.
    """

    def __init__(
        self,
        types: Mapping[str, EntityType[Any]],
        *,
        cluster: Cluster | None,
        settings: Settings,
        clock: Clock,
        chance: Random,
        name: str,
        storage: Storage | None = None,
        hand_over: Callable[[Message], None] = lambda _: None,
        supervisor: Supervisor | None = None,
        threads: Threads | None = None,
        middleware: Middleware | None = None,
    ) -> None:
        self.cluster = cluster
        self.threads = threads or InlineThreads()
        self.middleware = middleware or Middleware()
        self.storage = storage
        self.settings = settings
        self.clock = clock
        self.counts = HostCounts()
        self.tasks = Tasks("entities/resources")
        self.on_timer: Callable[[str, datetime], object] = lambda _seat, _at: None
        """Called with the seat and the time of each timer that was set."""
        self.on_job: Callable[[NewJob], object] = lambda _: None
        """Called with each job that a handler has sent, when it is stored."""
        self.responder = Responder(name, self.counts)
        self._loop = asyncio.get_running_loop()
        self.idle = IdleEntities(self._loop, clock.steady_ns, lambda: self._hosted.values(), self._evict)
        self.handlers = HandlerExecutor(self, hand_over)
        self.deactivations = Deactivations()
        self._types = types
        self._chance = chance
        self.name = name
        self._hosted: dict[str, Hosted] = {}
        self._shards: dict[ShardId, ShardOccupant] = {}
        self._ending: dict[ShardId, ShardOccupant] = {}  # released, but their handlers still run
        self.dispatch = ImmediateDispatch(self, self._hosted)
        self.inbox: Inbox | None = None
        self.poller: Poller | None = None
        if storage is not None:
            supervisor = supervisor or Supervisor(chance)
            self.poller = Poller(self, storage.messages, chance=chance, supervisor=supervisor)
            self.inbox = Inbox(self, storage.messages, chance=chance, wake=self.poller.wake)

    @property
    def chance(self) -> Random:
        """The randomness of the runner."""
        return self._chance

    def storage_now(self) -> datetime:
        """The database's clock, or slightly less.

        Raises:
            NotStarted: A probe has no database.
        """
        if self.inbox is None:
            raise NotStarted(what="the database of a probe", hint="a probe has none: use simulate(…)")
        return to_datetime(int(self.inbox.now_s() * 1e6) * 1000)

    def type_named(self, name: str) -> EntityType[Any]:
        """An entity type of this program.

        Raises:
            TypeError: There is none of this name.
        """
        known = self._types.get(name)
        if known is None:
            raise TypeError(f"a call of {name} was made by another cluster: this one has no such entity")
        return known

    # Public interface

    def occupy(self, tenure: Tenure) -> ShardOccupant:
        """Occupy the seat of a shard (`ownership.Occupy`). Handlers inherit the context in which this is called."""
        _, name = Seat.split(tenure.seat)
        id_ = ShardId.parse(name)
        shard = self._shards[id_] = ShardOccupant(self, tenure, id_, copy_context(), self._ending.get(id_))
        if self.inbox is not None:
            self.inbox.open(tenure)
        return shard

    def deliver(self, work: Work) -> None:
        """Run a call when its turn comes. Never raises, never blocks; may answer before it returns.

        Answers without running: `not_mine`, or `refuse` with `UnknownEntity`, `ReentrantCall`, `MailboxFull`,
        `RunnerFull`, `MalformedMessage` (when its turn comes) or `SendTimeout` (deadline passed while it waited).
        After it started: `reply`, `failed`, `send`… and `end`, or `refuse` with `SendTimeout` (cancelled at its
        deadline) or `RunnerUnavailable` with `sent` (the seat was lost while it ran: it may have run, do not repeat).
        """
        self.counts.delivered += 1
        hosted = self._hosted.get(work.entity_type) or self._host(work.entity_type)
        rpc = None if hosted is None else hosted.rpcs.get(work.method)
        if hosted is None or rpc is None:
            self.responder.refuse(work, UnknownEntity(target=work.target, hint=self._known(hosted)))
            return
        work.rpc = rpc
        self._place(hosted, work)

    def cancel(self, work: Work) -> None:
        """The caller no longer waits: a waiting call never runs, a running handler is cancelled, no answer is sent.

        An activation continues for the sake of the next call, but not past the deadline of this one.
        """
        work.is_open = False
        if work.task is not None and work.has_begun:
            self.handlers.stop(work)

    def residents(self, entity_type: str) -> Sequence[str]:
        """The ids of all active entities of a type, for a broadcast."""
        hosted = self._hosted.get(entity_type)
        return [] if hosted is None else list(hosted.entities)

    def lives(self, entity_type: str) -> Mapping[str, Resident]:
        """All active entities of a type, by id."""
        hosted = self._hosted.get(entity_type)
        return {} if hosted is None else hosted.entities

    def unknown(self, target: str, entity_type: str) -> UnknownEntity:
        """The error of a call of an entity type or method that this program does not have."""
        hosted = self._hosted.get(entity_type) or self._host(entity_type)
        return UnknownEntity(target=target, hint=self._known(hosted))

    def census(self) -> dict[str, int]:
        """The number of active entities of each type."""
        return {name: len(hosted.entities) for name, hosted in self._hosted.items() if hosted.entities}

    def failing(self) -> dict[str, dict[str, int]]:
        """The number of entities of each type whose last activation failed, by error type."""
        return {name: dict(Counter(each.failing.values())) for name, each in self._hosted.items() if each.failing}

    def defects(self) -> dict[str, DefectStreak]:
        """For each type, the calls that failed since the last success."""
        now_s = self._loop.time()
        streaks = {name: hosted.defects.streak(now_s=now_s) for name, hosted in self._hosted.items()}
        return {name: each for name, each in streaks.items() if each is not None}

    def now_s(self) -> float:
        """The loop's time, from any thread."""
        return self._loop.time()

    def queued(self) -> tuple[int, int]:
        """The numbers of calls that wait in mailboxes and that run. Visits each entity: too slow for each call."""
        residents = [each for hosted in self._hosted.values() for each in hosted.entities.values()]
        waiting = sum(len(each.mailbox) for each in residents if each.mailbox is not None)
        return waiting, sum(each.running for each in residents)

    def oldest_s(self) -> float:
        """How long the longest-running handler has run."""
        now_ns = self.clock.steady_ns()
        return max(((now_ns - work.began_ns) / 1e9 for work in self.handlers.waiting if work.has_begun), default=0.0)

    # Persisted messages

    def wake(self) -> None:
        """Request a poll of storage soon."""
        if self.poller is not None:
            self.poller.wake()

    def has_room(self, entity_type: str, entity_id: str) -> bool:
        """Whether a persisted message of an entity could be taken into memory now."""
        hosted = self._hosted.get(entity_type) or self._host(entity_type)
        if hosted is None:
            if self.inbox is not None:
                self.inbox.report_unknown(entity_type)
            return False
        resident = hosted.entities.get(entity_id)
        if resident is None:
            return self.counts.resident < self.settings.resident_entities or self.idle.longest() is not None
        return resident.mailbox is None or len(resident.mailbox) < hosted.type.mailbox

    def retry_of(self, entity_type: str, method: str) -> Retry:
        """The retry policy of persisted messages for a method: its own, that of its type, or the setting."""
        hosted = self._hosted.get(entity_type) or self._host(entity_type)
        if hosted is None:
            return self.settings.retry
        rpc = hosted.type.rpcs.get(method)
        return hosted.retry if rpc is None or rpc.retry is None else rpc.retry

    def concurrency(self) -> dict[str, int]:
        """How many handlers may run at once for an entity, by its type."""
        return {known.name: known.concurrency for known in self._types.values()}

    async def cancel_stored(self, message_id: str, seat: str) -> bool | None:
        """Cancel a persisted message that has not started. Returns None if this runner does not hold its shard.

        Raises:
            PersistenceError: The outcome may be unknown.
        """
        if self.inbox is None or self.storage is None:
            return None
        shard = self.inbox.shards.get(seat)
        if shard is None:
            return None
        if not self.inbox.cancel(message_id):
            return False
        try:
            return await self.storage.messages.cancel(message_id, shard.tenure.claim, reply=cancelled(message_id))
        except PersistenceError:
            self.inbox.uncancel(message_id)
            raise

    async def stop(self) -> None:
        """Stop everything that is left, within a few seconds, even if user code ignores its cancellation."""
        if self.poller is not None:
            await self.poller.stop()
        if self.inbox is not None:
            await self.inbox.suspects.stop()
        for shard in list(self._shards.values()):
            shard.abandon()
        await settled([work.task for work in self.handlers.waiting if work.task is not None], limit_s=STUBBORN_S)
        await self.deactivations.stop()
        await self.handlers.close()
        self.idle.stop()

    # Placement

    def _known(self, hosted: Hosted | None) -> str:
        if hosted is None:
            known = f"the entities {', '.join(sorted(self._types))}" if self._types else "no entities"
        else:
            known = f"{hosted.type.name} with {', '.join(sorted(hosted.type.rpcs))}"
        return f"is the program that defines it deployed? runner {self.name} knows {known}"

    def _host(self, entity_type: str) -> Hosted | None:
        known = self._types.get(entity_type)
        if known is None:
            return None
        hosted = self._hosted[entity_type] = Hosted(known, self.settings)
        return hosted

    def _place(self, hosted: Hosted, work: Work) -> None:
        resident = hosted.entities.get(work.entity_id) or self._move_in(hosted, work)
        if resident is None:
            return
        work.resident = resident
        if work.chain and _waits_for_itself(resident, work):
            self.responder.refuse(work, ReentrantCall(target=work.target, chain=_shown(work)))
        elif resident.running < resident.limit:
            self.handlers.admit(work)
        else:
            self._let_wait(resident, work)

    def _let_wait(self, resident: Resident, work: Work) -> None:
        most = resident.hosted.type.mailbox
        mailbox = resident.mailbox = resident.mailbox or Mailbox(most)
        if mailbox.put(work):
            work.began_ns = self.clock.steady_ns()
            self.handlers.expect(work.deadline_s)
        else:
            self.responder.refuse(work, MailboxFull(entity=resident.address, waiting=most))

    # Activations

    def _move_in(self, hosted: Hosted, work: Work) -> Resident | None:
        """A new activation for a call, if the shard is ours and there is capacity."""
        number = shard_number(hosted.type.name, work.entity_id, self.settings.shards)
        shard = self._shards.get(ShardId(hosted.type.group, number))
        if shard is None or not shard.tenure.held:
            self.responder.not_mine(work)
            return None
        goodbye = None
        if self.counts.resident >= self.settings.resident_entities:
            idle = self.idle.longest()
            if idle is None:
                self.responder.refuse(
                    work, RunnerFull(runner=self.name, entity=work.address, resident=self.counts.resident)
                )
                return None
            goodbye = self._evict(idle)
        resident = Resident(hosted, work.entity_id, shard, goodbye)
        hosted.entities[work.entity_id] = resident
        shard.residents[resident] = None
        self.counts.resident += 1
        return resident

    def retire(self, resident: Resident) -> list[Work]:
        """Deactivate an entity once its last call has ended. Returns the calls that wait for it."""
        hosted, mailbox = resident.hosted, resident.mailbox
        if resident.is_leaving:
            return []
        resident.is_leaving = True
        resident.mailbox = None
        del hosted.entities[resident.id], resident.shard.residents[resident]
        if hosted.failing:
            hosted.failing.pop(resident.id, None)
        self.idle.forget(resident)
        self.counts.resident -= 1
        if not resident.running:
            self.deactivations.begin(resident)
        return [] if mailbox is None else mailbox.pop_all()

    def _evict(self, resident: Resident) -> asyncio.Future[Any] | None:
        """Deactivate an idle entity. Returns its deactivation, if that takes time."""
        self.retire(resident)
        return resident.hosted.leaving.get(resident.id)

    def became_idle(self, resident: Resident) -> None:
        """None of its calls runs any more: it becomes idle, or is deactivated."""
        if not resident.is_leaving:
            if not resident.is_kept:
                self.idle.add(resident)
            return
        self.deactivations.begin(resident)
        if not resident.shard.is_open:
            resident.shard.quieten()

    def defected(self, resident: Resident) -> None:
        """Discard an instance whose state is unreliable: its waiting calls get a new activation."""
        for work in self.retire(resident):
            self._place(resident.hosted, work)

    def not_activated(self, resident: Resident, cause: BaseException) -> None:
        """Delay the next activation of an entity whose activation failed."""
        resident.failures += 1
        if not isinstance(cause, NotHeld | asyncio.CancelledError) and not resident.is_leaving:
            failing = resident.hosted.failing
            if not failing:  # one line per type: after a roll-back all its entities may fail
                stack = None if isinstance(cause, CoterieError) else cause
                log.error("%s could not be activated: %s", resident.address, said(cause), exc_info=stack)
            failing[resident.id] = type(cause).__name__
        resident.hosted.failed_activations.value += 1
        resident.not_before_s = self._loop.time() + backoff_s(resident.hosted, resident.failures, self._chance)

    def closed(self, shard: ShardOccupant) -> None:
        """A shard no longer accepts calls."""
        if self._shards.get(shard.id) is shard:
            del self._shards[shard.id]
        self._ending[shard.id] = shard
        if self.inbox is not None:
            self.inbox.close(shard.tenure)

    def quiet(self, shard: ShardOccupant) -> None:
        """No call of a released shard runs any more."""
        if self._ending.get(shard.id) is shard:
            del self._ending[shard.id]


def _waits_for_itself(resident: Resident, work: Work) -> bool:
    """Whether the call that keeps the entity busy is the one that awaits this call."""
    current = resident.current
    if resident.hosted.concurrency > 1 or current is None:
        return False
    return any(message_id == current.message_id for _, message_id in work.chain)


def _shown(work: Work) -> str:
    return " → ".join(address for address, _ in work.onward())
