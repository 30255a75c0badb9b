"""Branches that have places of their own: the items of a map, and the two sides of a race (W13).

    map     its place ─▶ item i is one step, in the branch that the place and i name ─▶ stored: that all succeeded, or
            the number of the item whose error it raises
    first   its place ─▶ side i runs in the branch that the place and i name ─▶ stored: who won

So a replay finds the steps of an item whoever began first. The result of the winner is not stored again: all that it
did is. The loser begins nothing new and is cancelled; in a replay it runs as far as it is stored, since it may have
registered compensations. The messages that it has received are given back in the commit that stores the winner.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from coterie.durable.position import Place, named
from coterie.durable.steps import DurableWork, StepCall, digest, require_function
from coterie.durable.waits import Lane, lane_here
from coterie.storage.contracts.run_messages import RaceEnd

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from coterie.kernel.retry import Retry
    from coterie.storage.contracts.units import StepRow

_ITEMS_MOST = 100_000
_TURNS = 100
"""Turns of the loop in which a loser that has got its last result goes on to what follows: a compensation."""
_REPLAY_S = 1.0
"""How long a loser may take to get to its former places, if its code waits for something else in between."""


class RunItems(Protocol):
    """Fills the list with the results of items. Returns the first one that has failed, and its error."""

    def __call__(self, items: MapItems, results: list[Any], /) -> Awaitable[tuple[int, Exception] | None]: ...


class MapItems(NamedTuple):
    """The items of a map, each of which is a step."""

    place: Place
    fn: Callable[..., Any]
    items: Sequence[Any]
    retry: Retry | None
    timeout_s: float | None

    def step(self, branch: str, number: int) -> StepCall:
        """The step of an item: the first one of its branch."""
        item = self.items[number]
        place = Place(branch, 0, "step", self.place.name, digest((item,), {}))
        return StepCall(place, self.fn, (item,), {}, self.retry, self.timeout_s)


class BranchedWork(DurableWork):
    """The maps and races of one unit."""

    # Maps

    def map(
        self,
        fn: Callable[..., Any],
        items: Sequence[Any],
        *,
        limit: int,
        name: str | None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Coroutine[Any, Any, list[Any]]:
        """Run a step for each item, some at a time, and return their results in order."""
        called = name or str(getattr(fn, "__name__", "map"))
        require_function(called, fn, verb="map")
        if limit < 1:
            raise ValueError(f"limit of map {called!r} is {limit!r}, expected a number from 1 on")
        require_items(called, items)
        place = self.places.next_place("map", named(called, "a map"), digest((len(items),), {}))
        run = partial(self._run_items, limit=limit)
        return self._map(MapItems(place, fn, items, retry or self.retry, timeout_s), run)

    async def _map(self, items: MapItems, run: RunItems) -> list[Any]:
        await self.opened()
        row = self._row_at(items.place)
        failed = None if row is None else msgspec.msgpack.decode(row.value or b"\xc0", type=int | None)
        if failed is not None and self._is_done(items, failed):  # else the run is tried again from there
            await self._item(items, failed)  # raises
        results: list[Any] = [None] * len(items.items)
        if row is not None and failed is None:
            for number in range(len(results)):
                results[number] = await self._item(items, number)
            return results
        failure = await run(items, results)
        if row is None:
            await self._outcome_of(items.place, None if failure is None else failure[0])
        if failure is not None:
            raise await self.after_others(failure[1])
        return results

    async def _run_items(self, items: MapItems, results: list[Any], *, limit: int) -> tuple[int, Exception] | None:
        """Run the items. Returns the first one that has failed, and its error."""
        await self._may_begin(items.place)
        numbers = iter(range(len(results)))
        failure: tuple[int, Exception] | None = None
        lane = Lane(lane_here())

        async def work() -> None:
            nonlocal failure
            lane.enter()
            for number in numbers:
                if lane.closed:
                    return
                try:
                    results[number] = await self._item(items, number)
                except Exception as error:  # noqa: BLE001 the map raises it
                    if failure is None:
                        failure, lane.closed = (number, error), True
                    return

        name = f"map {items.place.name}"
        workers = [self._spawn(work(), f"{name} {number}") for number in range(min(limit, len(results)))]
        moved = _moves(workers)
        try:
            while failure is None and self.halted is None and not all(each.done() for each in workers):
                moved.clear()
                await moved.wait()
        finally:
            await _cancelled(workers)
        if self.halted is not None:
            raise self.halted
        return failure

    def _is_done(self, items: MapItems, number: int) -> bool:
        row = self._row_at(items.step(self.places.below(items.place, number), number).place)
        return row is not None and row.done

    async def _item(self, items: MapItems, number: int) -> Any:
        path = self.places.below(items.place, number)
        return await self.run(items.step(path, number))

    async def _outcome_of(self, place: Place, value: int | None) -> None:
        with self.at_work():
            await self._store(place, value=msgspec.msgpack.encode(value))

    # Races

    def first(self, a: Awaitable[Any], b: Awaitable[Any], *, name: str | None) -> Coroutine[Any, Any, tuple[int, Any]]:
        """Wait for the first of two to end. Returns which one it was, and its result."""
        return self._first(self.places.next_place("first", named(name or "first", "a race")), (a, b))

    async def _first(self, place: Place, sides: Sequence[Awaitable[Any]]) -> tuple[int, Any]:
        lanes = [Lane(lane_here()) for _ in sides]
        tasks: list[asyncio.Task[Any]] = []
        try:
            await self.opened()
            row = self._row_at(place)
            if row is None:
                await self._may_begin(place)
            for number, (side, lane) in enumerate(zip(sides, lanes, strict=True)):
                tasks.append(self._spawn(self._side(place, number, side, lane), f"side {number} of {place.name}"))
            if row is None:
                winner = await self._won(place, tasks, lanes)
            else:
                winner = msgspec.msgpack.decode(row.value or b"", type=int)
                lanes[1 - winner].closed = True
                await _moves([tasks[winner]]).wait()
                await self._caught_up(place, 1 - winner, tasks, lanes)
        finally:
            for side in sides[len(tasks) :]:
                if asyncio.iscoroutine(side):
                    side.close()
            await _cancelled(tasks)
        error = tasks[winner].exception()
        if isinstance(error, Exception):
            raise await self.after_others(error)
        return winner, tasks[winner].result()

    async def _side(self, place: Place, number: int, side: Awaitable[Any], lane: Lane) -> Any:
        lane.enter()
        self.places.begin_below(place, number)
        return await side

    async def _won(self, place: Place, tasks: Sequence[asyncio.Task[Any]], lanes: Sequence[Lane]) -> int:
        """Wait for the winner, end the other one, and store who won."""
        await _moves(tasks).wait()
        winner = next(number for number, task in enumerate(tasks) if task.done())
        loser = 1 - winner
        lanes[loser].closed = True
        await self._caught_up(place, loser, tasks, lanes)
        await _cancelled([tasks[loser]])
        if self.halted is not None:
            raise self.halted
        if tasks[winner].cancelled():
            raise asyncio.CancelledError("one side of the race was cancelled")
        received = {(each.branch, each.position) for each in lanes[loser].received}
        rows = self.places.rows_below(place, loser)  # it may not have come to all of them again
        received |= {(row.branch, row.position) for row in rows if row.kind == "receive" and row.value is not None}
        if not received:
            await self._outcome_of(place, winner)
            return winner
        write = RaceEnd(
            claim=self._tenure.claim,
            unit=self.unit,
            branch=place.branch,
            position=place.position,
            name=place.name,
            value=msgspec.msgpack.encode(winner),
            runner=self._services.runner,
            life=self.life,
            received=tuple(sorted(received)),
        )
        with self.at_work():
            await self._written(place, partial(self._services.storage.run_messages.give_back, write))
        self.hint()  # another branch may wait for them
        return winner

    async def _caught_up(
        self, place: Place, loser: int, tasks: Sequence[asyncio.Task[Any]], lanes: Sequence[Lane]
    ) -> None:
        """Let a loser come as far as it is stored: it may register compensations on its way."""
        stored = {(row.branch, row.position) for row in self.places.rows_below(place, loser)}
        if stored <= lanes[loser].reached:
            return
        until_s = asyncio.get_running_loop().time() + _REPLAY_S
        while not tasks[loser].done() and not stored <= lanes[loser].reached:
            if asyncio.get_running_loop().time() >= until_s:
                break
            await asyncio.sleep(0.001)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    async def _may_begin(self, place: Place) -> None:
        """Return if branches below a place may run. Those that are stored in part run as far as they are stored, also
        when nothing new may start: they may register compensations."""
        if not self.places.is_begun_below(place):
            await self.may_go_on()

    def _row_at(self, place: Place) -> StepRow | None:
        lane = lane_here()
        if lane is not None:
            lane.note_reached(place)
        return super()._row_at(place)


def require_items(name: str, items: Sequence[Any]) -> None:
    """Raise `ValueError` if a map has too many items."""
    if len(items) > _ITEMS_MOST:
        raise ValueError(f"map {name!r} has {len(items):,} items, more than {_ITEMS_MOST:,}")


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _moves(tasks: Sequence[asyncio.Task[Any]]) -> asyncio.Event:
    """An event that is set when one of these tasks ends."""
    moved = asyncio.Event()
    for task in tasks:
        task.add_done_callback(lambda _: moved.set())
    return moved
