"""Residents: entities that live on this runner now, with what belongs to one life of each."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.entities.defects import Defects
from coterie.entities.entity import Entity
from coterie.entities.ledgers import has_ended, ledger_of
from coterie.entities.resources import Resources
from coterie.entities.transacting import Block
from coterie.entities.work import handling
from coterie.errors import NotStarted
from coterie.kernel import metrics, spans
from coterie.kernel.clock import to_datetime
from coterie.kernel.context import ClusterContext, enter
from coterie.kernel.ids import MessageId

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from contextvars import Context
    from datetime import datetime

    from coterie.cluster import Cluster
    from coterie.entities.definitions import EntityType
    from coterie.entities.kept import Kept
    from coterie.entities.mailbox import Mailbox
    from coterie.entities.occupancy import ShardOccupant
    from coterie.entities.work import Work
    from coterie.settings import Settings

R = TypeVar("R")


class Counts:
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
        """A heap for `Idling`: all that have ever rested, by a time at which they did."""
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
        self.kept: Kept | None = None
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
        """When its last call ended, on the steady clock; 0: `Idling` does not know it yet."""

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

    def transaction(self) -> Block:
        """SQL of the user's own, committed when the handler that runs here has ended."""
        work, storage = self._handled(what="a transaction"), self.shard.storage
        if storage is None:
            raise NotStarted(what=f"the database of {self.address}", hint="a probe has none: use simulate(…)")
        return Block(work, partial(storage.transaction, limit_s=self.shard.transaction_limit_s))

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
