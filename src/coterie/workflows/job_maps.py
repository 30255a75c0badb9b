"""Maps whose items are jobs of a task (W13): they run anywhere, and the run that waits for them may be suspended.

    sent      under keys of (unit, life, place, number), so that each is stored once
    waiting   a step that is not done, below the place of the map, in the branch after the last item: their ids
    woken     the poll of the seat finds that all of them are over, or that one has failed: that is durable with the end
              of a job, so nothing has to be told, and the end of a job locks no row of the run
    stored    what each job gave, as the step of its item; then the waiting is done, and the map goes on as others do

The limits and the retries of the jobs are those of the task. If one has failed, the others are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.durable import failure
from coterie.durable.branches import BranchedWork, MapItems, require_items
from coterie.durable.position import Place, named
from coterie.durable.steps import digest, encoded
from coterie.durable.waits import Wait, require_open_lane
from coterie.errors import CoterieError, MessageExpired
from coterie.tasks.sender import result_of
from coterie.work.while_held import while_held

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping, Sequence

    from coterie.storage.contracts.jobs import JobRow
    from coterie.storage.contracts.units import StepRow
    from coterie.tasks.definition import TaskType
    from coterie.tasks.sender import JobSender

log = logging.getLogger("coterie.workflows")

_AT_ONCE = 500
"""How many jobs are read by one statement, and stored as steps at a time."""
_CANCELS = 20
"""How many jobs are cancelled at a time."""
_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Between looks at the jobs, while the run is in memory."""
_IDS = msgspec.msgpack.Decoder(dict[int, str])


class JobMaps(BranchedWork):
    """The work of one run, with maps whose items are jobs.

    Args:
        sender: Stores and cancels the jobs.
    """

    def __init__(self, *args: Any, sender: JobSender, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sender = sender
        self._jobs: dict[Place, dict[int, str]] = {}
        """The jobs that are waited for, by number, of each map."""

    @property
    def waits_for_jobs(self) -> bool:
        """Whether it waits for jobs."""
        return bool(self._jobs)

    def map_jobs(self, task: TaskType, items: Sequence[Any], *, name: str | None) -> Coroutine[Any, Any, list[Any]]:
        """Run a job for each item, and return their results in order."""
        called = name or task.name
        require_items(called, items)
        place = self.places.next_place("map", named(called, "a map"), digest((len(items),), {}))
        return self._map(MapItems(place, task.fn, items, None, None), partial(self._run_jobs, task))

    def cancel_jobs(self) -> None:
        """The run is over: cancel the jobs that it still waits for."""
        for jobs in self._jobs.values():
            self._spawn(self._cancel(list(jobs.values())), f"cancel jobs of {self.unit}")
        self._jobs.clear()

    async def _run_jobs(self, task: TaskType, items: MapItems, results: list[Any], /) -> tuple[int, Exception] | None:
        retries = (await self.opened()).row.retries
        place = Place(self.places.below(items.place, len(results)), retries, "map", task.name)
        row, pause_s = self._row_at(place), 0.0
        if row is None:
            await self.may_go_on()
            with self.at_work():
                row = await self._sent(task, items, place)
            pause_s = _PAUSE_S
        jobs = _IDS.decode(row.value or b"\x80")
        failed = await self._known(items, jobs, results)
        self._jobs[place] = jobs
        try:
            while jobs and failed is None:
                hints = self._hints.came
                if pause_s:
                    await self._wait_for_jobs(pause_s, hints)
                with self.at_work():
                    failed = await self._collect(task, items, jobs, results)
                pause_s = min(max(pause_s * 2, _PAUSE_S), _PAUSE_MOST_S)
        except asyncio.CancelledError:
            if not self.closed:  # the run goes on without it
                self._spawn(self._abandon(place, row, self._jobs.pop(place)), f"abandon jobs of {place.name}")
            raise
        del self._jobs[place]
        if not row.done:
            with self.at_work():
                await self._store(place, value=row.value)
        if jobs:
            self._spawn(self._cancel(list(jobs.values())), f"cancel jobs of {place.name}")
        return failed

    async def _sent(self, task: TaskType, items: MapItems, place: Place) -> StepRow:
        """Store the jobs of the items that are not done, then that they are waited for."""
        numbers = [number for number in range(len(items.items)) if not self._is_done(items, number)]
        key = f"map:{self.unit}:{self.life}:{place.branch}:{place.position}"
        new = [(task, task.arguments.encode((items.items[number],), {}), f"{key}:{number}") for number in numbers]
        store = partial(self._sender.store_keyed, new)
        ids = await while_held(self.require_may_write, store, what=self._what(place), log=log)
        return await self._store(place, done=False, value=msgspec.msgpack.encode(dict(zip(numbers, ids, strict=True))))

    async def _known(self, items: MapItems, jobs: dict[int, str], results: list[Any]) -> tuple[int, Exception] | None:
        """Take what is stored of the items; what is left in `jobs` is waited for. Returns the first failure."""
        failed: tuple[int, Exception] | None = None
        for number in range(len(results)):
            if self._is_done(items, number):
                jobs.pop(number, None)
                try:
                    results[number] = await self._item(items, number)
                except Exception as error:  # noqa: BLE001 the map raises it
                    failed = failed or (number, error)
                self._require_not_halted()
        return failed

    async def _wait_for_jobs(self, pause_s: float, hints: int) -> None:
        require_open_lane()
        wait = Wait(None, None)
        self.waits[wait] = None
        self._notify_if_quiet()
        self._count_in()
        try:
            if self._hints.came == hints:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._hints.wait()
            self.require_held()
        finally:
            del self.waits[wait]
            self._count_out()
            self._notify_if_quiet()

    async def _collect(
        self, task: TaskType, items: MapItems, jobs: dict[int, str], results: list[Any]
    ) -> tuple[int, Exception] | None:
        """Store what the jobs gave that are over, and take it from `jobs`. Returns the first failure."""
        failures: list[tuple[int, Exception]] = []
        for numbers in _groups(jobs):
            look = partial(self._services.storage.jobs.look, [jobs[number] for number in numbers])
            rows = await while_held(self.require_may_write, look, what=self.unit, log=log)
            found = {row.id: row for row in rows}
            over = {number: found.get(jobs[number]) for number in numbers}
            over = {number: row for number, row in over.items() if row is None or row.ended_at is not None}
            settling = [self._settled(task, items, number, over[number], jobs[number]) for number in over]
            await asyncio.gather(*settling)
            taken = {number: jobs.pop(number) for number in over}
            failures += [each for each in [await self._known_failure(items, results, taken)] if each is not None]
        return min(failures, key=lambda each: each[0], default=None)

    async def _known_failure(
        self, items: MapItems, results: list[Any], numbers: Iterable[int]
    ) -> tuple[int, Exception] | None:
        failed: tuple[int, Exception] | None = None
        for number in numbers:
            try:
                results[number] = await self._item(items, number)
            except Exception as error:  # noqa: BLE001 the map raises it
                failed = failed or (number, error)
            self._require_not_halted()
        return failed

    async def _settled(self, task: TaskType, items: MapItems, number: int, row: JobRow | None, id: str) -> None:
        """Store what a job gave as the step of its item."""
        place = items.step(self.places.below(items.place, number), number).place
        value = error = None
        try:
            if row is None:
                raise MessageExpired(message_id=id)
            value, _ = encoded(task.fn, result_of(row, task), what=self._what(place))
        except Exception as raised:  # noqa: BLE001 it is stored, and the map raises it
            error = failure.pack(raised)
        began_at, attempts = (None, None) if row is None else (row.claimed_at, row.failures + 1)
        await self._store(place, value=value, error=error, began_at=began_at, attempts=attempts)

    def _require_not_halted(self) -> None:
        if self.halted is not None and not isinstance(self.halted, asyncio.CancelledError):
            raise self.halted

    async def _abandon(self, place: Place, row: StepRow, jobs: Mapping[int, str]) -> None:
        """Cancel the jobs of a map that the run has given up, and wait for them no longer."""
        await self._cancel(list(jobs.values()))
        if not row.done:
            await self._store(place, value=row.value)

    async def _cancel(self, ids: Sequence[str]) -> None:
        left = iter(ids)

        async def work() -> None:
            for job in left:
                try:
                    await self._sender.cancel(job)
                except CoterieError as error:
                    log.info("job %s of %s could not be cancelled, and runs: %s", job, self.unit, error)

        await asyncio.gather(*(work() for _ in range(min(_CANCELS, len(ids)))))


def _groups(jobs: Mapping[int, str]) -> list[list[int]]:
    numbers = list(jobs)
    return [numbers[begin : begin + _AT_ONCE] for begin in range(0, len(numbers), _AT_ONCE)]
