"""Activates entities, and holds the data of each activation (`Resident`) and of each entity type (`Hosted`).

A slow or failing activation delays only the callers of its own entity.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.entities.entity import Entity, activated
from coterie.entities.host.defects import Defects
from coterie.entities.host.dispatch import first_step
from coterie.entities.host.resources import Resources
from coterie.entities.host.work import Work, handling
from coterie.entities.persisted.commit import CommittedState, effects_of, has_ended, key_of
from coterie.entities.persisted.timer import require_timer_name, timer_of
from coterie.entities.persisted.transaction import TransactionBlock
from coterie.entities.reference import require_call
from coterie.errors import NotStarted, PersistenceError
from coterie.kernel import metrics, spans
from coterie.kernel.clock import to_datetime
from coterie.kernel.context import ClusterContext, enter
from coterie.kernel.coroutines import coroutine_of, remaining_steps
from coterie.kernel.ids import MessageId
from coterie.storage.contracts.schedules import TimerChange, timer_key
from coterie.storage.interface import StateLoaded
from coterie.work.limits import STUBBORN_S, settled

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from contextvars import Context
    from datetime import datetime

    from coterie.cluster import Cluster
    from coterie.entities.definition import EntityType
    from coterie.entities.host.mailbox import Mailbox
    from coterie.entities.host.shard import ShardOccupant
    from coterie.kernel.durations import Duration
    from coterie.kernel.random import Random
    from coterie.settings import Settings


_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Pauses between two tries to load a state while the database is unreachable."""


class NotHeld(Exception):
    """The seat is no longer held: nothing was loaded, and the calls are sent elsewhere."""


class ActivationFailed(Exception):
    """Wraps the cause of a failed activation, so that it is not taken for an error of the handler."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def activate_at_once(resident: Resident, now_s: float) -> bool:
    """Activate an entity that needs no waiting. Returns False if this one does.

    Raises:
        ActivationFailed: Its `initial_state` raised.
    """
    hosted = resident.hosted
    if hosted.wakes or resident.id in hosted.leaving or resident.after or resident.shard.former:
        return False
    if resident.not_before_s > now_s or (hosted.type.state is not None and resident.shard.host.storage is not None):
        return False
    _begin(resident, _instance(resident))
    return True


async def activate(resident: Resident, work: Work) -> None:
    """Activate an entity for a call, which limits it: it is cancelled at the call's deadline.

    It first waits for handlers of an earlier tenure, the previous deactivation of this entity and that of the entity
    evicted for it, to end. After failures it waits for the delay of the retry policy.

    Raises:
        ActivationFailed: The activation failed. Resources that it opened are closed.
    """
    try:
        await _wait_for_predecessors(resident)
        pause_s = resident.not_before_s - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        entity = _instance(resident, await _loaded(resident))
        if resident.hosted.wakes:
            await _on_activate(resident, entity, work)
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        await _give_up(resident)
        if isinstance(error, ActivationFailed):
            raise
        raise ActivationFailed(error) from error
    _begin(resident, entity)


def backoff_s(hosted: Hosted, failures: int, chance: Random) -> float:
    """The delay after so many failed activations: by the entity's policy, whose last delay then repeats for ever."""
    last = max(1, hosted.retry.attempts - 1)
    return hosted.retry.delay_s(min(failures, last), chance) or 0.0


async def _wait_for_predecessors(resident: Resident) -> None:
    """Wait until earlier handlers and deactivations have ended."""
    shard, hosted = resident.shard, resident.hosted
    if shard.former is not None:
        await shard.former.wait_quiet(STUBBORN_S)
        shard.former = None
    await settled(each for each in (resident.after, hosted.leaving.get(resident.id)) if each is not None)
    resident.after = None


async def _loaded(resident: Resident) -> StateLoaded:
    """Load the stored state. Retries while the database is unreachable; the call's deadline limits that.

    Raises:
        NotHeld: The seat is lost.
    """
    storage, claim = resident.shard.host.storage, resident.shard.tenure.claim
    if storage is None or resident.hosted.type.state is None:
        return StateLoaded(None, 0)
    pause_s = _PAUSE_S
    while True:
        try:
            loaded = await storage.states.load(claim, key_of(resident.hosted.type.name, resident.id))
        except PersistenceError as error:
            if error.outcome == "refused":
                raise
            if not resident.shard.tenure.held:
                raise NotHeld from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)
        else:
            if loaded is None:
                raise NotHeld
            return loaded


def _instance(resident: Resident, loaded: StateLoaded | None = None) -> Any:
    """A new instance with its state: the stored one, or the initial one.

    Raises:
        ActivationFailed: The state cannot be decoded, or `initial_state` raised.
    """
    entity, codec = activated(resident.hosted.type.cls, resident.id, resident), resident.hosted.type.state
    if codec is None:
        return entity
    key = key_of(resident.hosted.type.name, resident.id)
    try:
        if loaded is not None and loaded.value is not None:
            entity.state = codec.decode(loaded.value)
            # Encoded anew: a state that was migrated on load, or has a new default, does not count as changed.
            resident.kept = CommittedState(codec, key, codec.encode(entity.state), loaded.version)
        else:
            entity.state = entity.initial_state()
            resident.kept = CommittedState(
                codec, key, codec.encode(entity.state), 0 if loaded is None else loaded.version
            )
    except Exception as error:  # a user's method or migration, or bytes that do not fit
        raise ActivationFailed(error) from error
    return entity


async def _on_activate(resident: Resident, entity: Any, work: Work) -> None:
    """Run `on_activate` in its own context, whose variables no handler sees."""
    context = resident.shard.context.copy()
    coroutine = coroutine_of(entity.on_activate())
    has_ended, waits_for = context.run(first_step, work, coroutine)
    if not has_ended:
        await remaining_steps(context, coroutine, waits_for)


def _begin(resident: Resident, entity: Any) -> None:
    resident.entity = entity
    resident.limit = resident.hosted.concurrency
    resident.failures = 0
    if resident.hosted.failing:
        resident.hosted.failing.pop(resident.id, None)
    resident.shard.host.counts.activations += 1
    resident.hosted.lives.value += 1


async def _give_up(resident: Resident) -> None:
    resources, resident.resources = resident.resources, None
    if resources is not None:
        await resident.shard.host.deactivations.within_limit(
            resources.close(), what=f"the resources of {resident.address}"
        )


R = TypeVar("R")


class HostCounts:
    """The counters of a host."""

    __slots__ = ("activations", "delivered", "failed", "refused", "replied", "resident", "stored")

    def __init__(self) -> None:
        self.delivered = 0
        self.replied = 0
        """Results, and completed streams."""
        self.failed = 0
        """Errors of handlers, including declared ones."""
        self.stored = 0
        """Persisted messages whose handler has ended, by whatever outcome."""
        self.refused = 0
        """Errors of the cluster, and calls that were sent elsewhere."""
        self.activations = 0
        self.resident = 0
        """The number of active entities."""


class Hosted:
    """One entity type on this runner, and its active entities."""

    def __init__(self, entity_type: EntityType[Any], settings: Settings) -> None:
        self.type = entity_type
        self.rpcs = entity_type.rpcs
        self.concurrency = entity_type.concurrency
        idle_s = entity_type.max_idle_s
        self.max_idle_s = settings.max_idle.total_seconds() if idle_s is None else idle_s
        self.max_idle_ns = int(self.max_idle_s * 1e9)
        self.retry = entity_type.retry or settings.retry
        self.wakes = entity_type.cls.on_activate is not Entity.on_activate
        """Whether the class overrides `on_activate`."""
        self.says_goodbye = entity_type.cls.on_deactivate is not Entity.on_deactivate
        self.entities: dict[str, Resident] = {}
        self.idle: list[tuple[int, int, Resident]] = []
        """A heap for `IdleEntities`: all entities that have ever been idle, by a time at which they became so."""
        self.gone = 0
        """The number of those that have been deactivated."""
        self.failing: dict[str, str] = {}
        """By id, the error type of the last activation, if it failed."""
        self.defects = Defects(entity_type)
        self.leaving: dict[str, asyncio.Future[Any]] = {}
        """Deactivations in progress, by id."""
        name = entity_type.name
        self.waits = metrics.MAILBOX_WAIT.spread(name)
        self.lives, self.failed_activations = metrics.ACTIVATIONS.of(name, "ok"), metrics.ACTIVATIONS.of(name, "failed")


class Resident:
    """One activation of an entity on this runner: an `Activation` for the entity, an address for the host.

    It has no task, queue or timer of its own: 100,000 of them are 100,000 small objects.
    """

    __slots__ = (
        "after",
        "current",
        "entity",
        "failures",
        "hosted",
        "id",
        "is_kept",
        "is_leaving",
        "kept",
        "limit",
        "mailbox",
        "not_before_s",
        "resources",
        "rested_ns",
        "running",
        "shard",
    )

    def __init__(self, hosted: Hosted, id: str, shard: ShardOccupant, after: asyncio.Future[Any] | None = None) -> None:
        self.hosted = hosted
        self.id = id
        self.shard = shard
        self.after = after
        """The deactivation of the entity that was evicted for this one."""
        self.entity: Any = None
        """The instance; None until it is activated."""
        self.kept: CommittedState | None = None
        """The committed state; None if the type has none, or before activation."""
        self.limit = 1
        """How many calls may run at once: one until it is activated, then its concurrency."""
        self.running = 0
        self.current: Work | None = None
        """The last call that started."""
        self.mailbox: Mailbox | None = None
        self.resources: Resources | None = None
        self.is_kept = False
        self.is_leaving = False
        self.failures = 0
        """Consecutive failed activations."""
        self.not_before_s = 0.0
        """The earliest time of the next activation."""
        self.rested_ns = 0
        """When its last call ended, on the steady clock; 0 if `IdleEntities` does not list it yet."""

    @property
    def address(self) -> str:
        """The address as errors show it: `Account/alice`."""
        return f"{self.hosted.type.name}/{self.id}"

    # Used by the entity

    @property
    def cluster(self) -> Cluster:
        """The cluster of the entity."""
        if self.shard.host.cluster is None:
            raise NotStarted(what=f"the cluster of {self.address}", hint="a probe has none: use simulate(…)")
        return self.shard.host.cluster

    def keep_alive(self, *, on: bool) -> None:
        """Set whether it stays active however long it is idle."""
        self.is_kept = on
        if not on and not self.running and not self.is_leaving:
            self.shard.host.idle.add(self)

    async def resource(self, name: str, factory: Callable[[], AbstractAsyncContextManager[R]]) -> R:
        """The value that `factory` opens, once per activation."""
        if self.resources is None:
            self.resources = Resources(self._spawn_resource, what=self.address)
        return await self.resources.get(name, factory)

    def _spawn_resource(self, work: Any) -> asyncio.Task[None]:
        return self.shard.host.tasks.spawn(work, name=f"{self.address} resource", context=self.new_context())

    def transaction(self) -> TransactionBlock:
        """A block of the user's own SQL, committed when the running handler has ended."""
        work, storage = self._handled(what="a transaction"), self.shard.host.storage
        if storage is None:
            raise NotStarted(what=f"the database of {self.address}", hint="a probe has none: use simulate(…)")
        return TransactionBlock(
            work, partial(storage.transaction, limit_s=self.shard.host.settings.transaction_limit.total_seconds())
        )

    def timer(self, name: str, call: object, *, after: Duration | None, every: Duration | None) -> None:
        """Set a timer with the commit of the running handler."""
        work = self._handled(what="a timer")
        taken = require_call(call, what="self.timer", persisted=True)
        now = self.shard.host.storage_now()
        effects_of(work).timers[name] = timer_of(self, name, taken, now=now, after=after, every=every)

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer with the commit of the running handler."""
        work = self._handled(what="a timer")
        key = timer_key(self.hosted.type.name, self.id, require_timer_name(name))
        effects_of(work).timers[name] = TimerChange(key, None)

    def forget(self) -> None:
        """Delete the state with the commit of the running handler."""
        effects_of(self._handled(what="forget()")).forgets = True

    def _handled(self, *, what: str) -> Work:
        """The work of the running handler.

        Raises:
            RuntimeError: It is not a handler of this entity, or has ended.
        """
        work = handling.get()
        if work is None or work.resident is not self or not work.has_begun:
            raise RuntimeError(f"{what} of {self.address} belongs to one of its rpcs: use it inside of one")
        if has_ended(work):
            raise RuntimeError(f"{work.target} has ended: {what} cannot be used by what it left running")
        return work

    # Contexts

    def context_of(self, work: Work) -> ClusterContext:
        """The value of `current()` in a handler [K4]."""
        return ClusterContext(
            **self._facts(),
            message_id=MessageId(work.message_id),
            key=work.key,
            attempt=work.attempt,
            deadline=self._moment(work.deadline_s),
            trace_id=spans.id_of((spans.on and spans.here()) or work.trace_id),
        )

    def new_context(self, *, until_s: float | None = None) -> Context:
        """A context for what runs for this entity outside a call: its deactivation, its resources."""
        context = self.shard.context.copy()
        deadline = None if until_s is None else self._moment(until_s)
        context.run(enter, ClusterContext(**self._facts(), deadline=deadline))
        return context

    def _facts(self) -> dict[str, Any]:
        claim = self.shard.tenure.claim
        return {
            "runner_id": claim.runner,
            "runner_address": self.shard.tenure.address,
            "shard": self.shard.id,
            "entity_type": self.hosted.type.name,
            "entity_id": self.id,
            "epoch": claim.epoch,
            "seat": claim.seat if self.shard.host.storage is not None else None,  # a probe cannot prove it
        }

    def _moment(self, at_s: float) -> datetime | None:
        if at_s == math.inf:  # a persisted message has no deadline
            return None
        left_ns = int((at_s - self.shard.host.now_s()) * 1e9)
        return to_datetime(self.shard.host.clock.wall_ns() + left_ns)
