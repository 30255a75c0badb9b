"""Routes calls: finds the owner of a shard, refreshes the routing table, and decides about another attempt.

After an attempt without an answer of a handler (pure: `may_run_elsewhere`, `error_for_caller`):

no owner, "not mine"                     retried after news; at the deadline `EntityNotAssigned`
the runner was not reached, not sent     retried after news; at the deadline `RunnerUnavailable`
the owner's program does not know it     retried while others of its group might; then `UnknownEntity`
anything else                            it may have run, or will never work: raised at once [D8]

The routing table may be stale. A shard's owner is looked up once per change of the table, an entity's shard once. A
call that finds no owner, or is answered "not mine", waits for news: a change reported by others, or the next read of
the tables.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

from coterie.errors import CoterieError, PersistenceError, RunnerUnavailable, SendTimeout, ShuttingDown, UnknownEntity
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.kernel.service import Tasks
from coterie.ownership.directory import Directory, peer_of

if TYPE_CHECKING:
    from coterie.storage.interface import RunnerRow
    from coterie.transport.interface import PeerAddress


def may_run_elsewhere(error: CoterieError) -> bool:
    """Whether an error shows that no handler ran, and that another attempt may succeed."""
    return isinstance(error, UnknownEntity) or (isinstance(error, RunnerUnavailable) and not error.sent)


def error_for_caller(error: CoterieError, *, what: str, runner: str, waited_s: float, stopping: bool) -> CoterieError:
    """The error as the caller should see it: with names of runners, not of incarnations.

    Args:
        error: How the attempt ended.
        what: The call: `Account/alice.balance`.
        runner: The name of the runner that was asked.
        waited_s: The caller's timeout.
        stopping: Whether the caller's own process is stopping.
    """
    if isinstance(error, SendTimeout):
        target = f"{what} on runner {runner}"
        return SendTimeout(target=target, waited_s=waited_s, hint=error.hint, message_id=error.message_id)
    if isinstance(error, RunnerUnavailable):
        return RunnerUnavailable(runner=runner, target=what, problem=error.problem, sent=error.sent, hint=error.hint)
    if isinstance(error, ShuttingDown) and not stopping:  # it lost its membership, and rejoins: see `runner`
        problem = "this process lost its connections while it waited"
        return RunnerUnavailable(runner=runner, target=what, problem=problem, sent=True)
    return error


_ENTITIES_MOST = 100_000
"""Limit of the entities whose shard is cached: some 10 MB. Beyond it the cache is cleared, and quickly refilled."""
_PAUSE_S, _PAUSE_GROWTH, _PAUSE_MOST_S = 0.05, 1.5, 0.5
"""Between two reads of the tables while calls wait: a crash is repaired in less than a second, tables are small."""
_FRESH_S = 2.0
"""The maximum age of a client's routing table while it calls: clients get no notifications, and an owner may freeze."""
_STALE_WAIT_S = 2.0
"""How long a call waits for a routing table that is younger than a lease."""
_CALM_S = 2.0
"""After this time without trouble the pauses start again with the first one."""


class RouterProcess(Protocol):
    """The process whose calls are routed."""

    @property
    def incarnation(self) -> str: ...
    @property
    def directory(self) -> Directory: ...


class RoutedShard:
    """A shard with its owner as last looked up."""

    __slots__ = ("epoch", "id", "is_mine", "peer", "seat", "version")

    def __init__(self, id: ShardId) -> None:
        self.id = id
        self.seat = Seat.shard(id)
        self.is_mine = False
        self.peer: PeerAddress | None = None
        self.epoch = 0
        self.version = -1


class Router:
    """Finds owners.

    Args:
        here: The process whose calls are routed.
        shards: The number of shards of each group.
        lease_s: The maximum age of a client's routing table when it sends: the owner may have been replaced since.
    """

    def __init__(self, here: RouterProcess, *, shards: int, lease_s: float) -> None:
        self.version = 0
        """Grows with each change of the routing table; older lookups are repeated."""
        self.keeps_itself = True
        """Whether this router has to refresh the table itself: in a client."""
        self.fresh_until_s = math.inf
        self._lease_s = lease_s
        self._here = here
        self._directory = here.directory
        self._number_of = shards
        self._shards: dict[ShardId, RoutedShard] = {}
        self._seats: dict[str, RoutedShard] = {}
        self._found: dict[str, dict[str, RoutedShard]] = {}
        self._count = 0
        self._news = RouteNews(self._directory)
        self._directory.on_change(self._changed)

    def find(self, entity_type: str, entity_id: str, group: str) -> RoutedShard:
        """The shard of an entity, with its current owner."""
        try:
            shard = self._found[entity_type][entity_id]
        except KeyError:
            shard = self._find(entity_type, entity_id, group)
        if shard.version != self.version:
            self.resolve(shard)
        return shard

    def of_seat(self, seat: str) -> RoutedShard:
        """The shard of a seat, with its current owner."""
        shard = self._seats.get(seat)
        if shard is None:
            shard = self._seats[seat] = self._shard(ShardId.parse(Seat.split(seat)[1]))
        if shard.version != self.version:
            self.resolve(shard)
        return shard

    def resolve(self, shard: RoutedShard) -> None:
        """Look up the owner of a shard."""
        owner = self._directory.holder(shard.seat)
        shard.version = self.version
        shard.is_mine = owner is not None and owner.id == self._here.incarnation
        shard.peer = None if owner is None or shard.is_mine else peer_of(owner)
        shard.epoch = self._directory.epoch(shard.seat)

    def name_of(self, runner: str) -> str:
        """The name of a runner."""
        return self._directory.name_of(runner)

    def others(self, group: str, *, than: str) -> list[RunnerRow]:
        """The runners of a group, except one and those that are leaving."""
        runners = self._directory.runners
        return [each for each in runners if group in each.groups and each.id != than and not each.leaving]

    def learn(self, shard: RoutedShard, holder: str, epoch: int) -> bool:
        """Record what another runner knows about an owner. Returns whether that is newer than what was known here."""
        if epoch <= self._directory.epoch(shard.seat) or self._directory.runner(holder) is None:
            return False
        self._directory.learn_grants(holder, [(shard.seat, epoch)])
        return True

    def refresh_soon(self) -> None:
        """Refresh the routing table, which may be stale, in the background."""
        self._stay_fresh()
        self._news.request()

    async def refresh(self, *, within_s: float) -> None:
        """Refresh a client's routing table; if it is older than a lease, wait for that before anything is sent.

        While the database is unreachable the old table is used.
        """
        if asyncio.get_running_loop().time() - self._directory.read_s > self._lease_s:
            await self._news.wait(min(within_s, _STALE_WAIT_S))
            self._stay_fresh()
        else:
            self.refresh_soon()

    async def wait_for_change(self, *, within_s: float) -> None:
        """Return when the table has been refreshed, or the time is up."""
        await self._news.wait(within_s)

    async def stop(self) -> None:
        """Stop refreshing."""
        await self._news.stop()

    def _find(self, entity_type: str, entity_id: str, group: str) -> RoutedShard:
        shard = self._shard(ShardId(group, shard_number(entity_type, entity_id, self._number_of)))
        if self._count >= _ENTITIES_MOST:
            self._count = 0
            self._found.clear()
        self._count += 1
        self._found.setdefault(entity_type, {})[entity_id] = shard
        return shard

    def _shard(self, id: ShardId) -> RoutedShard:
        shard = self._shards.get(id)
        if shard is None:
            shard = self._shards[id] = RoutedShard(id)
        return shard

    def _stay_fresh(self) -> None:
        if self.keeps_itself:
            self.fresh_until_s = asyncio.get_running_loop().time() + _FRESH_S

    def _changed(self) -> None:
        self.version += 1
        self._stay_fresh()
        self._news.notify()


class RouteNews:
    """Reads the tables for all waiting calls, one read at a time, with growing pauses in between."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._tasks = Tasks("routing")
        self._round: asyncio.Future[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pause_s = _PAUSE_S
        self._last_s = float("-inf")

    async def wait(self, within_s: float) -> None:
        """Return after the next change or read, or when the time is up."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        self.request()
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(self._round)
        except TimeoutError:
            pass

    def request(self) -> None:
        """Request a read, now or after a pause."""
        if self._reading is None:
            self._reading = self._tasks.spawn(self._read(), name="read", report=False)

    def notify(self) -> None:
        """Wake the waiting calls."""
        ended, self._round = self._round, None
        if ended is not None and not ended.done():
            ended.set_result(None)

    async def stop(self) -> None:
        """Stop reading."""
        await self._tasks.stop()
        self.notify()

    async def _read(self) -> None:
        try:
            await asyncio.sleep(self._next_pause_s())
            await self._directory.refresh()
        except (PersistenceError, ShuttingDown):
            pass  # the next round tries again
        finally:
            self._reading = None
            self._last_s = asyncio.get_running_loop().time()
            self.notify()

    def _next_pause_s(self) -> float:
        since_s = asyncio.get_running_loop().time() - self._last_s
        self._pause_s = _PAUSE_S if since_s > _CALM_S else min(self._pause_s * _PAUSE_GROWTH, _PAUSE_MOST_S)
        return max(0.0, self._pause_s - since_s)
