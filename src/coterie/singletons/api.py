"""`cluster.singletons`: list singletons with their leaders, read their state and history, and make leaders resign."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.errors import MalformedMessage
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import Seat
from coterie.kernel.serialization.codec import PLAIN, codec_for
from coterie.kernel.serialization.versions import split
from coterie.kernel.text import require_text
from coterie.singletons.definition import PREFIX
from coterie.singletons.heartbeat import judge
from coterie.work.definition import not_in_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from coterie.client import Client
    from coterie.kernel.durations import Duration
    from coterie.singletons.definition import Singleton
    from coterie.storage.contracts.executions import ExecutionRecord
    from coterie.storage.interface import ClusterSnapshot, SeatRow, StateRow

T = TypeVar("T")

_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SingletonInfo:
    """A snapshot of one singleton. All instants are the database's."""

    name: str
    group: str
    leader: str | None
    """The name of the runner that leads it; None: no runner does just now."""
    epoch: int
    since_at: datetime | None
    """When that began; None: no runner has led it yet."""
    last_run_at: datetime | None
    """When its body, or its last execution, began; None: it never ran."""
    run_count: int
    last_error: str | None
    last_error_at: datetime | None
    last_heartbeat_at: datetime | None
    """The last sign of progress."""
    alive_at: datetime | None
    """The last sign of life."""
    note: str
    """The note of its body's last heartbeat, with `done` of `total`."""
    done: int | None
    total: int | None
    expected_interval: timedelta | None
    problem: str
    """What is wrong with it; empty: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """A state that was saved."""

    value: Any
    """As plain values: maps, lists, texts, numbers."""
    number: int
    """The first one is 1."""
    version: int
    """The version of the program's type."""
    epoch: int
    runner: str
    saved_at: datetime
    set_aside: str
    """Why it was set aside when another replaced it; empty: it is part of the history."""


class Singletons:
    """`cluster.singletons`: the singletons of the cluster.

    Args:
        acting: Returns the runner or client through which it acts.
        known: The singletons that this program defines.
        heartbeat_s: How often a leader gives a sign of life.
        staleness: How many such intervals, or expected intervals, may pass without a sign.
        writing: As `acting`, for writes: raises where they are forbidden. None: nothing is forbidden.
    """

    def __init__(
        self,
        acting: Callable[[], Client],
        known: Mapping[str, Singleton[Any]],
        *,
        heartbeat_s: float,
        staleness: float,
        writing: Callable[[str], Client] | None = None,
    ) -> None:
        self._acting = acting
        self._writing = writing or (lambda _: acting())
        self._known = known
        self._heartbeat_s = heartbeat_s
        self._staleness = staleness

    async def list(self) -> Sequence[SingletonInfo]:
        """All singletons of the cluster, by name, also those that this program does not define."""
        storage = self._acting().storage
        view, stamps = await storage.view(), await storage.executions.list(Seat.singleton(""))
        names = {row.id: row.name for row in view.runners}
        records = {each.seat: each for each in stamps}
        seats = [seat for seat in view.seats if Seat.split(seat.name)[0] == "singleton"]
        return [self._info(seat, names, records.get(seat.name)) for seat in sorted(seats, key=lambda seat: seat.name)]

    async def get(self, name: str) -> SingletonInfo:
        """One singleton.

        Raises:
            ValueError: None has this name; the error lists the existing ones.
        """
        found = {each.name: each for each in await self.list()}
        if name not in found:
            raise not_in_cluster(name, found, kind="singleton")
        return found[name]

    async def state(self, name: str, type: type[T]) -> T | None:
        """The last saved state; None if none was saved, or it has expired.

        Args:
            name: The name of the singleton.
            type: The type of its state. If this program defines the singleton with that type, its migrations are
                applied; otherwise the fields that both know are read.

        Raises:
            MalformedMessage: The stored state does not fit the type.
        """
        row = await self._acting().storage.states.peek(PREFIX + require_text(name, what="name of a singleton"))
        if row is None:
            return None
        known = self._known.get(name)
        if known is not None and known.codec is not None and known.codec.type is type:
            value: T = known.codec.decode(row.value)
            return value
        what = f"state of {name!r}"
        _, payload = split(row.value, what=what)
        return codec_for(type).decode(payload, what=what)

    async def history(self, name: str) -> Sequence[SavedState]:
        """The last states, the newest first, and those that were set aside."""
        key = PREFIX + require_text(name, what="name of a singleton")
        return [_saved(row) for row in await self._acting().storage.states.history(key)]

    async def resign(self, name: str, *, timeout: Duration = "10s") -> str | None:
        """Make the leader resign now, in favour of another runner if there is one. Returns: who leads then.

        Raises:
            ValueError: There is no such singleton.
            RunnerUnavailable: Its leader cannot be reached: if it is gone, it is replaced anyway.
            TimeoutError: No runner has taken over within `timeout`; the leader has resigned all the same.
        """
        here, within_s = self._writing("cluster.singletons.resign"), to_seconds(timeout, what="timeout")
        view = await here.storage.view()
        seat = _seat(view, name)
        holder = next((row for row in view.runners if row.id == seat.holder), None)
        if holder is not None:
            await here.ask_to_resign(holder, seat, within_s=within_s)
        async with asyncio.timeout(within_s):
            while True:
                view = await here.storage.view()
                now = _seat(view, name)
                if now.holder is not None and now.epoch != seat.epoch:
                    return next((row.name for row in view.runners if row.id == now.holder), None)
                await asyncio.sleep(_POLL_S)

    def _info(self, seat: SeatRow, names: Mapping[str, str], record: ExecutionRecord | None) -> SingletonInfo:
        _, name = Seat.split(seat.name)
        leader = None if seat.holder is None else names.get(seat.holder)
        expected_s = None if record is None else record.expected_s
        return SingletonInfo(
            name=name,
            group=seat.group,
            leader=leader,
            epoch=seat.epoch,
            since_at=None if record is None or record.epoch != seat.epoch else record.since_at,
            last_run_at=None if record is None else record.ran_at,
            run_count=0 if record is None else record.runs,
            last_error=None if record is None else record.error,
            last_error_at=None if record is None else record.error_at,
            last_heartbeat_at=None if record is None else record.progress_at,
            alive_at=None if record is None else record.alive_at,
            note="" if record is None else record.note,
            done=None if record is None else record.done,
            total=None if record is None else record.total,
            expected_interval=None if expected_s is None else timedelta(seconds=expected_s),
            problem=self._problem(leader, record),
        )

    def _problem(self, leader: str | None, record: ExecutionRecord | None) -> str:
        if leader is None:
            return "nobody leads it"
        stale = None if record is None else judge(record, heartbeat_s=self._heartbeat_s, factor=self._staleness)
        return "" if stale is None else str(stale)


def _seat(view: ClusterSnapshot, name: str) -> SeatRow:
    wanted = Seat.singleton(name)
    found = next((seat for seat in view.seats if seat.name == wanted), None)
    if found is None:
        known = sorted(Seat.split(seat.name)[1] for seat in view.seats if Seat.split(seat.name)[0] == "singleton")
        raise not_in_cluster(name, known, kind="singleton")
    return found


def _saved(row: StateRow) -> SavedState:
    try:
        version, payload = split(row.value, what="a state")
        value = PLAIN.decode(payload)
    except MalformedMessage:
        version, value = 0, row.value  # bytes that cannot be decoded: they are shown as they are
    return SavedState(
        value=value,
        number=row.version,
        version=version,
        epoch=row.epoch,
        runner=row.runner,
        saved_at=row.saved_at,
        set_aside=row.reason,
    )
