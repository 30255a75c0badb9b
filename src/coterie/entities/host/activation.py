"""Activation: the beginning of a life. An entity that cannot begin keeps its own callers waiting, and nobody else's.

Residents: entities that live on this runner now, with what belongs to one life of each.
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
from coterie.entities.host.work import handling
from coterie.entities.persisted.effects import has_ended, ledger_of
from coterie.entities.persisted.state import CommittedState, key_of
from coterie.entities.persisted.transaction import TransactionBlock
from coterie.errors import NotStarted, PersistenceError
from coterie.kernel import metrics, spans
from coterie.kernel.clock import to_datetime
from coterie.kernel.context import ClusterContext, enter
from coterie.kernel.coroutines import coroutine_of, remaining_steps
from coterie.kernel.ids import MessageId
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
    from coterie.entities.host.work import Work
    from coterie.kernel.random import Random
    from coterie.settings import Settings


_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Between two tries to load a state while the database is away."""


class NotHeld(Exception):
    """The seat is not held any more: nothing was loaded, and the calls belong elsewhere."""


class ActivationFailed(Exception):
    """Carries what kept an entity from beginning, so that it is not taken for an error of the handler."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def awaken_at_once(resident: Resident, now_s: float) -> bool:
    """Begin a life that needs nothing to wait for; false if this one does.

    Raises:
        ActivationFailed: Its `initial_state` raised.
    """
    hosted = resident.hosted
    if hosted.wakes or resident.id in hosted.leaving or resident.after or resident.shard.former:
        return False
    if resident.not_before_s > now_s or (hosted.type.state is not None and resident.shard.storage is not None):
        return False
    _begin(resident, _instance(resident))
    return True


async def awaken(resident: Resident, work: Work) -> None:
    """Begin a life for the sake of a call, which bounds it: whoever drives this cancels it at the call's deadline.

    First what was there before has to be gone: handlers of an earlier tenure, the life of this entity that ended,
    the one that makes room. After failures it waits for the pause of the retry policy.

    Raises:
        ActivationFailed: It did not work. Resources that it opened are closed.
    """
    try:
        await _room(resident)
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
    """How long to leave an entity alone that could not begin so often: by its policy, the last pause for ever."""
    last = max(1, hosted.retry.attempts - 1)
    return hosted.retry.delay_s(min(failures, last), chance) or 0.0


async def _room(resident: Resident) -> None:
    """Wait until what was there before is gone."""
    shard, hosted = resident.shard, resident.hosted
    if shard.former is not None:
        await shard.former.wait_quiet(STUBBORN_S)
        shard.former = None
    await settled(each for each in (resident.after, hosted.leaving.get(resident.id)) if each is not None)
    resident.after = None


async def _loaded(resident: Resident) -> StateLoaded:
    """What is stored of its state. A database that is away is asked again: whoever waits bounds that.

    Raises:
        NotHeld: The seat is lost.
    """
    storage, claim = resident.shard.storage, resident.shard.tenure.claim
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
        ActivationFailed: The state cannot be read, or `initial_state` raised.
    """
    entity, codec = activated(resident.hosted.type.cls, resident.id, resident), resident.hosted.type.state
    if codec is None:
        return entity
    key = key_of(resident.hosted.type.name, resident.id)
    try:
        if loaded is not None and loaded.value is not None:
            entity.state = codec.decode(loaded.value)
            # Not what is stored: a state that was migrated, or has a new default, has not changed by being read.
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
    """In a context of its own: what it sets there, no handler sees."""
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
    resident.shard.counts.activations += 1
    resident.hosted.lives.value += 1


async def _give_up(resident: Resident) -> None:
    resources, resident.resources = resident.resources, None
    if resources is not None:
        await resident.shard.farewells.within_limit(resources.close(), what=f"the resources of {resident.address}")


R = TypeVar("R")


class HostCounts:
    """What a host has done, in plain numbers."""

    __slots__ = ("activations", "delivered", "failed", "refused", "replied", "resident", "stored")

    def __init__(self) -> None:
        self.delivered = 0
        self.replied = 0
        """Results, and streams that came to their end."""
        self.failed = 0
        """Errors of handlers, the declared ones too."""
        self.stored = 0
        """Stored messages whose handler has ended, however it did."""
        self.refused = 0
        """Errors of the cluster, and calls that belong elsewhere."""
        self.activations = 0
        self.resident = 0
        """How many live here now."""


class Hosted:
    """One entity type on this runner, and its entities."""

    def __init__(self, entity_type: EntityType[Any], settings: Settings) -> None:
        self.type = entity_type
        self.rpcs = entity_type.rpcs
        self.concurrency = entity_type.concurrency
        idle_s = entity_type.max_idle_s
        self.max_idle_s = settings.max_idle.total_seconds() if idle_s is None else idle_s
        self.max_idle_ns = int(self.max_idle_s * 1e9)
        self.retry = entity_type.retry or settings.retry
        self.wakes = entity_type.cls.on_activate is not Entity.on_activate
        """Whether it has an `on_activate` of its own."""
        self.says_goodbye = entity_type.cls.on_deactivate is not Entity.on_deactivate
        self.entities: dict[str, Resident] = {}
        self.idle: list[tuple[int, int, Resident]] = []
        """A heap for `IdleEntities`: all that have ever rested, by a time at which they did."""
        self.gone = 0
        """How many of those have left."""
        self.failing: dict[str, str] = {}
        """By id, the type of the error by which an entity could not begin when it was called last."""
        self.defects = Defects(entity_type)
        self.leaving: dict[str, asyncio.Future[Any]] = {}
        """Former lives whose farewell still runs, by id."""
        name = entity_type.name
        self.waits = metrics.MAILBOX_WAIT.spread(name)
        self.lives, self.stillborn = metrics.ACTIVATIONS.of(name, "ok"), metrics.ACTIVATIONS.of(name, "failed")


class Resident:
    """One life of one entity on this runner: an `Activation` for the entity, an address for the host.

    No task, no queue, no timer of its own: 100,000 of them are 100,000 small objects.
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
        """The farewell of the one that makes room for this life."""
        self.entity: Any = None
        """The instance; None until it is activated."""
        self.kept: CommittedState | None = None
        """Its state as it is stored; None if it has none, or is not activated."""
        self.limit = 1
        """How many calls may run: one until it is activated, then its concurrency."""
        self.running = 0
        self.current: Work | None = None
        """The last call that began."""
        self.mailbox: Mailbox | None = None
        self.resources: Resources | None = None
        self.is_kept = False
        self.is_leaving = False
        self.failures = 0
        """Activations that failed in a row."""
        self.not_before_s = 0.0
        """When the next activation may be tried."""
        self.rested_ns = 0
        """When its last call ended, on the steady clock; 0: `IdleEntities` does not know it yet."""

    @property
    def address(self) -> str:
        """As errors call it: `Account/alice`."""
        return f"{self.hosted.type.name}/{self.id}"

    # What the entity asks for

    @property
    def cluster(self) -> Cluster:
        """The cluster in which it lives."""
        if self.shard.cluster is None:
            raise NotStarted(what=f"the cluster of {self.address}", hint="a probe has none: use simulate(…)")
        return self.shard.cluster

    def keep_alive(self, *, on: bool) -> None:
        """Whether it stays however long nobody calls."""
        self.is_kept = on
        if not on and not self.running and not self.is_leaving:
            self.shard.rest(self)

    async def resource(self, name: str, factory: Callable[[], AbstractAsyncContextManager[R]]) -> R:
        """What `factory` opens, once in this life."""
        if self.resources is None:
            self.resources = Resources(self._spawn_resource, what=self.address)
        return await self.resources.get(name, factory)

    def _spawn_resource(self, work: Any) -> asyncio.Task[None]:
        return self.shard.tasks.spawn(work, name=f"{self.address} resource", context=self.new_context())

    def transaction(self) -> TransactionBlock:
        """SQL of the user's own, committed when the handler that runs here has ended."""
        work, storage = self._handled(what="a transaction"), self.shard.storage
        if storage is None:
            raise NotStarted(what=f"the database of {self.address}", hint="a probe has none: use simulate(…)")
        return TransactionBlock(work, partial(storage.transaction, limit_s=self.shard.transaction_limit_s))

    def forget(self) -> None:
        """Delete its state with the commit of the handler that runs here."""
        ledger_of(self._handled(what="forget()")).forgets = True

    def _handled(self, *, what: str) -> Work:
        """The work whose handler asks.

        Raises:
            RuntimeError: It is none of this entity's, or has ended.
        """
        work = handling.get()
        if work is None or work.resident is not self or not work.has_begun:
            raise RuntimeError(f"{what} of {self.address} belongs to one of its rpcs: use it inside of one")
        if has_ended(work):
            raise RuntimeError(f"{work.target} has ended: {what} cannot be used by what it left running")
        return work

    # Contexts

    def context_of(self, work: Work) -> ClusterContext:
        """What `current()` gives in a handler [K4]."""
        return ClusterContext(
            **self._facts(),
            message_id=MessageId(work.message_id),
            key=work.key,
            attempt=work.attempt,
            deadline=self._moment(work.deadline_s),
            trace_id=spans.id_of((spans.on and spans.here()) or work.trace_id),
        )

    def new_context(self, *, until_s: float | None = None) -> Context:
        """A context for what is done for this entity without a call: its farewell, its resources."""
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
            "seat": claim.seat if self.shard.storage is not None else None,  # a probe has nothing to prove it by
        }

    def _moment(self, at_s: float) -> datetime | None:
        if at_s == math.inf:  # a stored message: nobody's patience bounds it
            return None
        left_ns = int((at_s - asyncio.get_running_loop().time()) * 1e9)
        return to_datetime(self.shard.clock.wall_ns() + left_ns)
