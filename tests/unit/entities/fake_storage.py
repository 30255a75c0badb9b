"""Messages and states in a dictionary, whose verbs a test can hold up or let fail; and a host that uses them."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from coterie.entities.persisted.receiver import HandoverKind, handover_of
from coterie.errors import PersistenceError
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.kernel.service import Tasks
from coterie.storage.contracts.incoming_calls import NoIncomingCalls
from coterie.storage.contracts.messages import (
    Attempt,
    Delivery,
    Due,
    Insert,
    Message,
    MessageRow,
    PendingMessages,
    Receipt,
    Suspected,
)
from coterie.storage.interface import StateLoaded
from tests.support.waiters import pass_on
from tests.unit.entities.local_host import LocalHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from coterie.entities.entity import Entity
    from coterie.entities.host.shard import ShardOccupant
    from coterie.entities.persisted.inbox import Inbox
    from coterie.entities.persisted.poller import Poller
    from coterie.storage.contracts.messages import Backlog, Commit, Mark, Setback, Suspicion
    from coterie.storage.group_commit import Waiter
    from coterie.storage.interface import Claim

EPOCH_S = 1_700_000_000.0
"""The database's clock when the loop's is zero."""

unreachable = PersistenceError(doing="save", problem="the database is away", outcome="unreachable")
unknown = PersistenceError(doing="save", problem="the connection broke", outcome="unknown")
refused = PersistenceError(doing="save", problem="the database does not like it", outcome="refused")


class FakeMessages:
    """`storage.Messages` in memory. What an answer says is read when it is asked for, also if it is held up then."""

    def __init__(self) -> None:
        self.rows: dict[str, MessageRow] = {}
        self.states: dict[str, tuple[bytes | None, int]] = {}
        self.asked: defaultdict[str, list[Any]] = defaultdict(list)
        self.failing: defaultdict[str, list[Exception]] = defaultdict(list)
        """By verb: what the next calls raise instead of doing anything; futures do later, unless it is unreachable."""
        self.tells: list[Any] = []
        """What the next commits say instead of doing anything."""
        self.gates: dict[str, asyncio.Event] = {}
        """By verb: its answers wait for this."""
        self.digests: dict[str, bytes] = {}
        self.suspicions: dict[str, int] = {}
        self._tasks = Tasks("store")

    def hold(self, verb: str) -> asyncio.Event:
        """Hold up the answers of a verb until the event is set."""
        gate = self.gates[verb] = asyncio.Event()
        return gate

    def add(self, message: Message, *, attempts: int = 0, suspicion: int = 0, losses: int = 0) -> MessageRow:
        """Store a message as if somebody else had."""
        self.suspicions[message.id] = suspicion
        now = now_at()
        due_at = message.due_at or datetime.fromtimestamp(now.timestamp() + message.delay_s, UTC)
        row = self.rows[message.id] = MessageRow(
            id=message.id,
            seat=message.seat,
            entity_type=message.entity_type,
            entity_id=message.entity_id,
            method=message.method,
            status="pending",
            key=message.key,
            sent_at=now,
            due_at=due_at,
            completed_at=None,
            attempts=attempts,
            errors=(),
            payload=message.payload,
            reply=None,
            trace_id=message.trace_id,
            losses=losses,
        )
        self.digests[message.id] = message.digest
        return row

    def end(self, message_id: str, status: Any, reply: bytes | None = None) -> None:
        """Let a message end as if somebody else had run it."""
        row = self.rows[message_id]
        self.rows[message_id] = replace(row, status=status, reply=reply, completed_at=now_at())

    # The verbs that give futures

    def insert(self, message: Message) -> asyncio.Future[Receipt]:
        return self._submit("insert", message, self._insert)

    def commit(self, write: Commit) -> asyncio.Future[Any]:
        return self._submit("commit", write, self._commit)

    def save(self, write: Insert | Commit, waiter: Waiter) -> None:
        told: asyncio.Future[Any] = self.insert(write.message) if isinstance(write, Insert) else self.commit(write)
        told.add_done_callback(partial(pass_on, waiter))

    def setback(self, write: Setback) -> asyncio.Future[Any]:
        return self._submit("setback", write, self._setback)

    def _submit(self, verb: str, write: Any, do: Any) -> asyncio.Future[Any]:
        self.asked[verb].append(write)
        if self.failing[verb] and self.failing[verb][0] is unreachable:
            raise self.failing[verb].pop(0)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        told = self.failing[verb].pop(0) if self.failing[verb] else None
        told = told or (self.tells.pop(0) if verb == "commit" and self.tells else do(write))
        gate = self.gates.get(verb)
        if gate is None:
            loop.call_soon(_resolve, answer, told)
        else:
            self._tasks.spawn(self._later(gate, answer, told), name=verb)
        return answer

    async def _later(self, gate: asyncio.Event, answer: asyncio.Future[Any], told: Any) -> None:
        await gate.wait()
        _resolve(answer, told)

    def _insert(self, message: Message) -> Receipt:
        first = None if message.key is None else self._keyed(message)
        row = first or self.rows.get(message.id) or self.add(message)
        return Receipt(row.id, row.id == message.id, row.due_at, now_at(), row.status, self.digests[row.id], row.reply)

    def _keyed(self, message: Message) -> MessageRow | None:
        wanted = (message.entity_type, message.entity_id, message.method, message.key)
        rows = self.rows.values()
        return next((row for row in rows if (row.entity_type, row.entity_id, row.method, row.key) == wanted), None)

    def _commit(self, write: Commit) -> str:
        if write.message is not None and self.rows[write.message].status != "pending":
            return "gone"
        if write.state is not None and self.states.get(write.state.key, (None, 0))[1] != write.state.version:
            return "stale"
        if any(message.key is not None and self._keyed(message) for message in write.sends):
            return "taken"
        if write.message is not None:
            self.end(write.message, "done", write.reply)
        if write.state is not None and write.state.value is None:
            self.states.pop(write.state.key, None)
        elif write.state is not None:
            self.states[write.state.key] = (write.state.value, write.state.version + 1)
        for message in write.sends:
            self.add(message)
        return "written"

    def _setback(self, write: Setback) -> str:
        row = self.rows[write.message]
        if row.status != "pending":
            return "gone"
        due_at = datetime.fromtimestamp(now_at().timestamp() + (write.again_s or 0.0), UTC)
        self.suspicions[write.message] = 0
        self.rows[write.message] = row = replace(row, due_at=due_at)
        if write.error is None:
            return "written"
        errors = (*row.errors, Attempt(write.attempt, now_at(), write.error))
        self.rows[write.message] = replace(row, attempts=write.attempt, errors=errors)
        if write.again_s is None:
            self.end(write.message, "dead")
        return "written"

    # The verbs that are awaited

    async def due(self, after: Mapping[str, Mark | None], *, ahead_s: float = 0.0, most: int) -> Due:
        limit_s = now_at().timestamp() + ahead_s
        pending = sorted((row.seat, row.due_at, row.id) for row in self._pending() if row.due_at.timestamp() <= limit_s)
        found: list[PendingMessages] = []
        for seat, mark in after.items():
            mine = [(at, id_) for name, at, id_ in pending if name == seat and (mark is None or (at, id_) > mark)]
            rows = [self.rows[id_] for _, id_ in mine[:most]]
            found += [PendingMessages(seat, row.id, row.due_at, row.entity_type, row.entity_id) for row in rows]
        await self._passing("due", dict(after))
        return Due(now_at(), tuple(found))

    async def backlog(self, *, most: int, dead_most: int) -> Backlog:
        raise NotImplementedError("entities never ask for it")

    async def fetch(self, ids: Sequence[str]) -> Sequence[Delivery]:
        found = [_delivery(row, self.suspicions[row.id]) for row in self._pending() if row.id in ids]
        await self._passing("fetch", tuple(ids))
        return found

    async def suspect(self, claim: Claim, concurrency: Mapping[str, int], *, loss_limit: int) -> Suspected:
        await self._passing("suspect", (claim, dict(concurrency), loss_limit))
        return Suspected(0, ())

    async def mark(self, claim: Claim, id: str, suspicion: Suspicion) -> bool:
        await self._passing("mark", (id, suspicion))
        self.suspicions[id] = suspicion
        return id in self.rows and self.rows[id].status == "pending"

    async def look(self, ids: Sequence[str]) -> Sequence[MessageRow]:
        found = [self.rows[each] for each in ids if each in self.rows]
        await self._passing("look", tuple(ids))
        return found

    async def find(self, entity_type: str, entity_id: str, method: str, key: str) -> Receipt | None:
        wanted = Message(
            id="", seat="", entity_type=entity_type, entity_id=entity_id, method=method, payload=b"", key=key
        )
        row = self._keyed(wanted)
        await self._passing("find", key)
        return None if row is None else Receipt(row.id, False, row.due_at, now_at(), row.status, self.digests[row.id])

    async def cancel(self, id: str, claim: Claim | None, *, reply: bytes) -> bool:
        await self._passing("cancel", (id, claim))
        row = self.rows.get(id)
        if row is None or row.status != "pending":
            return False
        self.rows[id] = replace(row, status="done", reply=reply, key=None, completed_at=now_at())
        return True

    def _pending(self) -> list[MessageRow]:
        return [row for row in self.rows.values() if row.status == "pending"]

    async def _passing(self, verb: str, given: Any) -> None:
        self.asked[verb].append(given)
        if self.failing[verb]:
            raise self.failing[verb].pop(0)
        gate = self.gates.get(verb)
        if gate is not None:
            await gate.wait()


class FakeStates:
    """`storage.States`, as far as entities need it."""

    def __init__(self, messages: FakeMessages) -> None:
        self._messages = messages

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        stored = self._messages.states.get(key, (None, 0))
        await self._messages._passing("load", (claim, key))
        return StateLoaded(*stored)


class FakeTransaction:
    """A user's transaction that only remembers what came of it."""

    def __init__(self, messages: FakeMessages) -> None:
        self._messages = messages
        self.ended = ""
        self.says: Any = None

    async def commit(self, write: Commit) -> Any:
        await asyncio.sleep(0)
        if isinstance(self.says, Exception):
            raise self.says
        self.ended = "committed"
        return await self._messages.commit(write)

    async def rollback(self) -> None:
        self.ended = "rolled back"


class FakeStorage:
    """`storage.Storage`, as far as a host needs it."""

    def __init__(self) -> None:
        self.messages = FakeMessages()
        self.incoming = NoIncomingCalls()
        self.states = FakeStates(self.messages)
        self.transactions: list[FakeTransaction] = []

    def transaction(self, *, limit_s: float) -> FakeTransaction:
        self.transactions.append(FakeTransaction(self.messages))
        return self.transactions[-1]


class StoredLocalHost(LocalHost):
    """A host with a database: all shards are held, and messages can be stored, handed over, or both."""

    def __init__(self, *classes: Any, clean: bool = True, **settings: Any) -> None:
        self.storage = FakeStorage()
        self.messages = self.storage.messages
        self.brought: list[Message] = []
        self.told: dict[str, list[bytes]] = defaultdict(list)
        self.clean = clean
        self._numbers = itertools.count(1)
        super().__init__(*classes, storage=self.storage, hand_over=self.brought.append, **settings)

    @property
    def inbox(self) -> Inbox:
        assert self.host.inbox is not None
        return self.host.inbox

    @property
    def poller(self) -> Poller:
        assert self.host.poller is not None
        return self.host.poller

    def message(self, entity_id: str, method: str, *args: Any, **more: Any) -> Message:
        """A message to an entity of the first type; ids grow."""
        entity_type = next(iter(self.types.values()))
        known = entity_type.rpcs.get(method)
        payload = b"\x90" if known is None else known.arguments.encode(args, {})
        number = shard_number(entity_type.name, entity_id, self.host.settings.shards)
        given = {
            "id": f"{next(self._numbers):032x}",
            "seat": Seat.shard(ShardId(entity_type.group, number)),
            "entity_type": entity_type.name,
            "payload": payload,
        }
        return Message(entity_id=entity_id, method=method, **given | more)

    def bring(self, message: Message, *, epoch: int = 0, again: bool = False, store: bool = True) -> str:
        """Store a message and hand it over; what comes of it is in `told`."""
        row = self.messages.add(message) if store else self.messages.rows[message.id]
        kind = HandoverKind.AGAIN if again else HandoverKind.NEW
        handover = handover_of(kind, message, epoch=epoch, due_s=row.due_at.timestamp())
        handover.is_immediate = False  # so that what is believed of the database's clock counts
        self.inbox.hand_over(handover, waiter=self.told[message.id].append)
        return message.id

    def send(self, entity_id: str, method: str, *args: Any, **more: Any) -> str:
        """Store a message and hand it over."""
        return self.bring(self.message(entity_id, method, *args, **more))

    def put(self, entity_id: str, method: str, *args: Any, **more: Any) -> str:
        """Store a message that nobody hands over."""
        return self.messages.add(self.message(entity_id, method, *args, **more)).id

    def status(self, *ids: str) -> list[str]:
        return [self.messages.rows[each].status for each in ids]

    async def read(self) -> None:
        """Wait until all shards have been read for the first time."""
        await self.poller.poll()


@asynccontextmanager
async def stored(
    *classes: type[Entity[Any]] | tuple[type[Entity[Any]], dict[str, Any]], **settings: Any
) -> AsyncIterator[StoredLocalHost]:
    """A host with a database, whose shards have been read."""
    ground = StoredLocalHost(*classes, **settings)
    await ground.read()
    yield ground
    await ground.host.stop()


def now_at() -> datetime:
    """The database's clock."""
    return datetime.fromtimestamp(EPOCH_S + asyncio.get_running_loop().time(), UTC)


def occupant(ground: LocalHost, entity_id: str) -> ShardOccupant:
    """The shard of an entity of the first type."""
    return ground.shards[shard_number(next(iter(ground.types)), entity_id, ground.host.settings.shards)]


def _delivery(row: MessageRow, suspicion: int = 0) -> Delivery:
    return Delivery(
        id=row.id,
        seat=row.seat,
        entity_type=row.entity_type,
        entity_id=row.entity_id,
        method=row.method,
        payload=row.payload,
        key=row.key,
        due_s=row.due_at.timestamp(),
        attempts=row.attempts,
        trace_id=row.trace_id,
        suspicion=suspicion,
        losses=row.losses,
    )


def _resolve(answer: asyncio.Future[Any], told: Any) -> None:
    if answer.done():
        return
    if isinstance(told, Exception):
        answer.set_exception(told)
        answer.exception()
    else:
        answer.set_result(told)
