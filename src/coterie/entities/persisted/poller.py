"""Polls storage for the pending messages of this runner's shards, when a shard is taken and regularly from then on.

A sweep always asks "which rows of my shards are pending", never "which came after the last one I saw": a row that was
committed late, or whose hand-over was lost, is found like any other [M5].
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.entities.persisted.inbox import AHEAD_S, MEMORY_MOST, Inbox, ShardInbox
from coterie.errors import PersistenceError
from coterie.kernel import metrics
from coterie.kernel.service import Tasks
from coterie.work.limits import set_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.entities.host.host import Host
    from coterie.kernel.random import Random
    from coterie.kernel.supervisor import Supervisor
    from coterie.storage.contracts.messages import Mark, MessageStore, PendingMessages, Suspected

log = logging.getLogger("coterie.entities")

_EVERY_S = 1.0
"""Between two sweeps when nothing requests one: a lost hand-over is found within about a second (GAP-09)."""
_SOON_S = 0.02
"""The minimum between two sweeps."""
_AHEAD_EVERY_S = 20.0
_PAGE = 200
"""The maximum of messages of one shard that one statement returns."""
_PAGES_MOST = 20
"""The maximum of statements in one sweep; the next sweep continues a backlog where this one stopped."""
_FETCH = 200
_AWAY_S = 1.0


class Poller:
    """Sweeps storage for one runner, from `start` to `stop`.

    Args:
        host: Owns the shards.
        messages: The message store.
        chance: The jitter that keeps runners from polling in step.
        supervisor: The supervisor of this process.
    """

    def __init__(self, host: Host, messages: MessageStore, *, chance: Random, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._host = host
        self._messages = messages
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks("entities/sweep")
        self._asked = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._swept = asyncio.Condition()
        self._next_ahead_s = 0.0
        self.sweeps = 0

    def wake(self) -> None:
        """Request a sweep soon."""
        self._asked.set()
        if self._task is None:
            self._task = self._tasks.supervise(self._sweep_on, name="sweep messages", supervisor=self._supervisor)

    async def poll(self) -> None:
        """Sweep now; return when everything that was pending at the time of this call has been read (K6)."""
        # The current round of a shard may have read before this call, so wait for the one after it.
        wanted = {seat: (shard, shard.rounds + 2) for seat, shard in self._held().items()}
        while any(self._held().get(seat) is shard and shard.rounds < most for seat, (shard, most) in wanted.items()):
            if len(self._inbox.works) < MEMORY_MOST:
                self.wake()
            async with self._swept:
                await self._swept.wait()

    async def stop(self) -> None:
        """Stop sweeping."""
        await self._tasks.stop()

    @property
    def _inbox(self) -> Inbox:
        assert self._host.inbox is not None, "a host with storage has them"
        return self._host.inbox

    async def _sweep_on(self) -> None:
        asked = False
        while True:
            # While a round is under way, it may have passed the requested rows already.
            asked = self._is_half_way() and (asked or self._asked.is_set())
            self._asked.clear()
            try:
                behind = await self._sweep()
            except PersistenceError as error:
                log.warning("pending messages could not be read; the next poll tries again: %s", error)
                await asyncio.sleep(self._chance.between(_AWAY_S / 2, _AWAY_S))
                continue
            self.sweeps += 1
            async with self._swept:
                self._swept.notify_all()
            await asyncio.sleep(_SOON_S)
            if not (behind or (asked and not self._is_half_way())):
                await set_within(self._asked, self._chance.between(_EVERY_S * 0.8, _EVERY_S))

    def _is_half_way(self) -> bool:
        """Whether a round of sweeps is not finished."""
        return any(shard.mark is not None for shard in self._held().values())

    def _held(self) -> dict[str, ShardInbox]:
        return {seat: shard for seat, shard in self._inbox.shards.items() if shard.tenure.held}

    # One sweep

    async def _sweep(self) -> bool:
        """Run one sweep. Returns whether it left a backlog."""
        inbox = self._inbox
        shards = self._held()
        if not shards:
            return False
        await self._suspect(shards)
        inbox.forget_ended()
        ahead_s = self._ahead_s(shards)
        for shard in shards.values():
            if shard.mark is None:
                shard.begin_round()
        marks: dict[str, Mark | None] = {seat: shard.mark for seat, shard in shards.items()}
        found_new = False
        for _ in range(_PAGES_MOST):
            asked_ns = self._host.clock.steady_ns()
            due = await self._messages.due(marks, ahead_s=ahead_s, most=_PAGE)
            inbox.set_clock(due.now.timestamp())
            inbox.pauses.learn(due.paused_types, due.paused_groups, asked_ns=asked_ns)
            found_new = await self._merge(due.rows) or found_new
            marks = self._follow(shards, marks, due.rows)
            if not marks:
                return False
            if len(inbox.works) >= MEMORY_MOST:
                break
        for seat, mark in marks.items():
            shards[seat].mark = mark
        return found_new and len(inbox.works) < MEMORY_MOST  # what is paused can wait for the next second

    async def _suspect(self, shards: dict[str, ShardInbox]) -> None:
        """Mark what may have killed the previous holder, before any message of its shard runs [C5]."""
        for shard in shards.values():
            if not shard.is_suspected:
                found = await self._messages.suspect(
                    shard.tenure.claim, self._host.concurrency(), loss_limit=self._host.settings.loss_limit
                )
                shard.is_suspected = True
                _report(shard.tenure.seat, found)

    def _ahead_s(self, shards: dict[str, ShardInbox]) -> float:
        now_s = self._loop.time()
        if now_s < self._next_ahead_s and all(shard.is_read for shard in shards.values()):
            return 0.0
        self._next_ahead_s = now_s + _AHEAD_EVERY_S
        return AHEAD_S

    async def _merge(self, rows: Sequence[PendingMessages]) -> bool:
        """Take new messages into memory, in order, while there is room. Returns whether there were any."""
        inbox = self._inbox
        for row in rows:
            inbox.hasten(row)
        new = [row for row in rows if not inbox.knows(row.id) and self._has_room(row)]
        for at in range(0, len(new), _FETCH):
            batch = new[at : at + _FETCH]
            found = {each.id: each for each in await self._messages.fetch([row.id for row in batch])}
            for row in batch:
                if (delivery := found.get(row.id)) is not None:
                    inbox.accept(delivery)
        return bool(new)

    def _has_room(self, row: PendingMessages) -> bool:
        """Whether a message is worth fetching; if not, later messages of its entity stay in storage too."""
        shard = self._inbox.shards.get(row.seat)
        address = (row.entity_type, row.entity_id)
        if shard is None or address in shard.blocked:
            return False
        if (row.entity_type, row.seat) not in self._inbox.pauses and self._host.has_room(*address):
            return True
        shard.blocked.add(address)
        return False

    def _follow(
        self, shards: dict[str, ShardInbox], marks: dict[str, Mark | None], rows: Sequence[PendingMessages]
    ) -> dict[str, Mark | None]:
        """The seats that have more rows, with the mark to continue from. The others have been read completely."""
        counts: dict[str, int] = dict.fromkeys(marks, 0)
        last: dict[str, Mark] = {}
        for row in rows:
            counts[row.seat] += 1
            last[row.seat] = (row.due_at, row.id)
        for seat in marks:
            if counts[seat] < _PAGE and self._inbox.shards.get(seat) is shards[seat]:
                self._inbox.read(shards[seat])
        return {seat: last[seat] for seat in marks if counts[seat] >= _PAGE}


def _report(seat: str, found: Suspected) -> None:
    if found.suspects:
        log.warning(
            "%s was taken over from a lost runner; %d messages may have been running, and are started one at a time",
            seat,
            found.suspects,
        )
    for loss in found.lost:
        target = f"{loss.entity_type}/{loss.entity_id}.{loss.method}"
        log.warning(
            "message %s to %s ran alone when its runner was lost; losses so far: %d", loss.id, target, loss.losses
        )
        if loss.is_dead:
            metrics.MESSAGES.of(loss.entity_type, loss.method, "dead").value += 1
            log.error("%s is dead: message %s", target, loss.id)
