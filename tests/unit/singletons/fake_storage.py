"""One leadership over rows in a dictionary, whose answers a test can hold up, lose or replace."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError
from coterie.kernel.retry import Retry
from coterie.kernel.service import Tasks
from coterie.ownership.seats import Tenure, Trust
from coterie.singletons.definition import SingletonOptions, define
from coterie.singletons.state import LeaderState
from coterie.storage.interface import Claim, StateLoaded, StateSave
from tests.support.manual_clock import ManualClock
from tests.support.services import services

if TYPE_CHECKING:
    from coterie.singletons.definition import Singleton
    from coterie.storage.interface import Written

NOW = datetime(2030, 1, 1, tzinfo=UTC)
PROMPTLY_S = 120.0
"""How long a test waits for what should happen at once: a loaded machine is slow."""

unreachable = PersistenceError(doing="save", problem="the database is away", outcome="unreachable")
unknown = PersistenceError(doing="save", problem="the connection broke", outcome="unknown")
refused = PersistenceError(doing="save", problem="the database does not like it", outcome="refused")


@dataclass
class Progress:
    last_id: int = 0
    names: list[str] = field(default_factory=list)


async def body(leader: Any) -> None:
    """Nothing to do."""


def singleton(name: str = "importer", **options: Any) -> Singleton[Any]:
    given: SingletonOptions[Any] = {"state": Progress, **options}  # type: ignore[typeddict-item] # as a program gives them
    return define(name, body, given)


class FakeStates:
    """`storage.States` of one key, as its only holder sees it."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.version = 0
        self.expired = False
        self.held = True
        self.asked: defaultdict[str, int] = defaultdict(int)
        self.saved: list[StateSave] = []
        self.aside: list[str] = []
        self.failing: defaultdict[str, list[Exception]] = defaultdict(list)
        """By verb: what the next calls raise instead of doing anything."""
        self.losing: defaultdict[str, list[Exception]] = defaultdict(list)
        """The same, raised after it was done: the answer was lost."""
        self.gates: dict[str, asyncio.Event] = {}
        """By verb: it waits for this before it does anything."""

    def hold(self, verb: str) -> asyncio.Event:
        gate = self.gates[verb] = asyncio.Event()
        return gate

    def put(self, value: bytes, version: int = 1, *, expired: bool = False) -> None:
        """As if somebody had left it."""
        self.value, self.version, self.expired = value, version, expired

    def purge(self) -> None:
        self.value, self.version, self.expired = None, 0, False

    async def load(self, claim: Claim, key: str) -> StateLoaded | None:
        await self.passing("load")
        loaded = StateLoaded(self.value, self.version, self.expired) if self.held else None
        self.lose("load")
        return loaded

    async def set_aside(self, claim: Claim, key: str, reason: str) -> bool:
        await self.passing("set_aside")
        if self.held:
            self.aside.append(reason)
        return self.held

    async def save(self, write: StateSave) -> Written:
        await self.passing("save")
        told = self.write(write)
        self.lose("save")
        return told

    def write(self, write: StateSave) -> Written:
        if not self.held:
            return "fenced"
        if write.version != self.version:
            return "conflict"
        self.put(write.value, write.version + 1)
        self.saved.append(write)
        return "written"

    async def passing(self, verb: str) -> None:
        self.asked[verb] += 1
        await asyncio.sleep(0)
        if verb in self.gates:
            await self.gates[verb].wait()
        if self.failing[verb]:
            raise self.failing[verb].pop(0)

    def lose(self, verb: str) -> None:
        if self.losing[verb]:
            raise self.losing[verb].pop(0)


class FakeTransaction:
    """A user's transaction that remembers what came of it."""

    def __init__(self, states: FakeStates) -> None:
        self._states = states
        self.ended = ""

    async def commit(self, write: Any) -> Any:
        await self._states.passing("commit")
        if isinstance(write, StateSave):
            told = self._states.write(write)
        else:
            told = "written" if self._states.held else "fenced"
        self.ended = "committed" if told == "written" else told
        self._states.lose("commit")
        return told

    async def rollback(self) -> None:
        self.ended = "rolled back"


class FakeStorage:
    """`storage.Storage`, as far as a leader's state needs it."""

    def __init__(self) -> None:
        self.states = FakeStates()
        self.transactions: list[FakeTransaction] = []

    def transaction(self, *, limit_s: float) -> FakeTransaction:
        self.transactions.append(FakeTransaction(self.states))
        return self.transactions[-1]


class HeldSingleton:
    """A leader's state on a seat that is held until the test says otherwise."""

    def __init__(self, **options: Any) -> None:
        self.singleton = singleton(**options)
        self.storage = FakeStorage()
        self.states = self.storage.states
        self.clock = ManualClock()
        trust = Trust(self.clock)
        trust.extend(self.clock.steady_ns() + 10**15)
        self.tenure = Tenure(Claim("a" * 32, self.singleton.seat, 7), clean=True, trust=trust)
        self.tasks = Tasks("test")
        self.changes = 0
        self.failures: list[Exception] = []
        retry = Retry(attempts=3, base="1ms", max="1ms")
        given = services(storage=self.storage, tasks=self.tasks, settings={"retry": retry})
        self.state: LeaderState[Any] = LeaderState(
            self.singleton, self.tenure, given, changed=self._changed, failed=self.failures.append
        )

    def _changed(self) -> None:
        self.changes += 1

    def encoded(self, state: Any) -> bytes:
        assert self.singleton.codec is not None
        return self.singleton.codec.encode(state)

    def stored(self) -> Any:
        """What the next leader would load."""
        assert self.singleton.codec is not None
        assert self.states.value is not None
        return self.singleton.codec.decode(self.states.value)

    def values(self) -> list[Any]:
        """All that was saved, in order."""
        assert self.singleton.codec is not None
        return [self.singleton.codec.decode(write.value) for write in self.states.saved]


async def loaded(**options: Any) -> HeldSingleton:
    """A stage whose state was loaded for the first time."""
    stage = HeldSingleton(**options)
    await stage.state.load()
    return stage


async def until(holds: Any) -> None:
    async with asyncio.timeout(PROMPTLY_S):
        while not holds():
            await asyncio.sleep(0.001)
