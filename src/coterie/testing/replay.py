"""Replays the history of a run with the program's code, without a cluster: whether runs like that one could continue.

The function is called as a runner calls it. Steps return what the history has; the first ones that it does not have are
not run. Time is virtual, so that the function has reached whatever it can reach.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

from coterie.durable import failure
from coterie.durable.position import Place, Places
from coterie.errors import MalformedMessage, RemoteError, ReplayDiverged, StepDiverged
from coterie.kernel.clock import Dial
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.service import Tasks
from coterie.ownership.seats import Tenure
from coterie.settings import Settings
from coterie.storage.interface import Claim
from coterie.testing.run import SeedRun
from coterie.workflows.api import handle_of
from coterie.workflows.definition import define, unit_of
from coterie.workflows.job_maps import JobMaps
from coterie.workflows.run_history import read_history
from coterie.workflows.workflow import Again, Compensation, Workflow

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.cluster import Cluster
    from coterie.durable.branches import MapItems, RunItems
    from coterie.ownership.seats import Trust
    from coterie.storage.contracts.units import DeferredRow, StepKind, StepRow, UnitSnapshot
    from coterie.tasks.definition import TaskType
    from coterie.tasks.sender import JobSender
    from coterie.work.services import Services
    from coterie.workflows.api import WorkflowHandle
    from coterie.workflows.definition import WorkflowType
    from coterie.workflows.run_history import RunHistory

_REACHED_S = 3_600.0
"""Virtual time in which a function reaches what it can reach."""
_END = "the end"
_TOKEN = "token-in-a-replay:"  # noqa: S105 it resolves nothing


def replay(workflow: Callable[..., Any], history: Path | str | bytes, *, cluster: Cluster | None = None) -> None:
    """Replay the history of a run with a workflow's code: return if runs like that one could continue with it.

    Nothing is run but the code between steps: no step, and nothing of what the history does not have.

    Args:
        workflow: The function.
        history: What `coterie workflows export` has written: a path, or the JSON itself.
        cluster: The cluster that defines it: needed if its children have other names than their functions.

    Raises:
        ReplayDiverged: The code takes another path than the history; it says where, and which step came for which.
        ValueError: The history is none, or of another workflow.

    Example:
        ```python
        def test_runs_of_last_month_continue() -> None:
            for file in Path("tests/histories").glob("checkout-*.json"):
                replay(checkout, file)
        ```
    """
    found = read_history(history.read_bytes() if isinstance(history, Path) else history)
    kind = define(workflow, {}) if cluster is None else cluster._program.workflows.of(workflow)
    if cluster is not None and kind.name != found.workflow:
        raise ValueError(f"this is the history of a run of {found.workflow}, and the workflow is {kind.name}")
    SeedRun(0)(lambda: _replayed(kind, found, cluster))


async def _replayed(kind: WorkflowType, history: RunHistory, cluster: Cluster | None) -> None:
    await _Replay(kind, history, cluster).run()


class _Replay:
    """One replay."""

    def __init__(self, kind: WorkflowType, history: RunHistory, cluster: Cluster | None) -> None:
        self._kind = kind
        self._history = history
        self._cluster = cluster
        self._rows = [each.row() for each in history.steps]
        self._unit = unit_of(history.workflow, history.id)
        self._work = ReplayedWork(self._unit, self._rows)
        self._undo: list[Compensation] = []
        self._ending: list[Again] = []

    async def run(self) -> None:
        """Run the function as far as it comes, and compare that with the history."""
        body = asyncio.create_task(self._body())

        def cancel() -> None:
            body.cancel()

        self._work.on_halt = cancel
        await asyncio.wait([body], timeout=_REACHED_S)
        try:
            if isinstance(self._work.halted, StepDiverged):
                raise self._work.halted
            if body.done():
                self._compare_end(body)
            else:
                self._compare_frontier()
            self._require_reached(is_done=body.done())
            self._require_undone()
        finally:
            body.cancel()
            await self._work.end_branches()

    async def _body(self) -> Any:
        try:
            payload = self._kind.payload.decode(self._history.payload_bytes, what=f"payload of {self._unit}")
        except MalformedMessage as error:
            found = f"{self._kind.name}, whose payload is another one now ({error.problem})"
            raise ReplayDiverged(
                unit=self._unit, found=found, stored=self._history.workflow, place="the beginning"
            ) from error
        self._work.places.begin()
        workflow = Workflow(
            self._history.id,
            cluster=self._cluster or cast("Cluster", _NoCluster()),
            work=self._work,
            start_child=_no_child,
            name_of=self._name_of,
            undo=self._undo,
            ending=self._ending,
        )
        return await self._kind.body(workflow, payload)

    def _name_of(self, workflow: Any) -> str:
        if self._cluster is not None:
            return self._cluster._program.workflows.of(workflow).name
        return str(getattr(workflow, "__name__", workflow))

    def _compare_end(self, body: asyncio.Task[Any]) -> None:
        """The function has ended: it may, unless the run has ended otherwise."""
        status = self._history.status
        error = RuntimeError("it was cancelled, by itself") if body.cancelled() else body.exception()
        if error is not None:
            if status == "failed" and self._is_known(error):
                return
            error.add_note(f"{self._unit} has not failed so in its history: it is {status}")
            raise error
        value = body.result()
        if isinstance(value, Again):
            self._kind.payload.checked(value.payload, what=f"payload of {self._unit}")
            if status == "done":
                raise self._diverged("another life", stored=_END, place=None)
            return
        if status == "failed":
            raise self._diverged(_END, stored="a failure", place=None)
        self._kind.result.checked(value, what=f"result of {self._unit}")

    def _is_known(self, error: BaseException) -> bool:
        """Whether the run has failed with an error of this class."""
        stored = self._history.error_bytes
        if stored is None:
            return False
        name = error.type_name if isinstance(error, RemoteError) else failure.name_of(failure.pack(error))
        return name == failure.name_of(stored)

    def _compare_frontier(self) -> None:
        """The function goes on, or waits: the run must not have ended."""
        beyond = self._work.beyond
        if self._history.status in ("done", "failed"):
            new = beyond[0] if beyond else None
            raise self._diverged(_words(new) if new is not None else "a wait", stored=_END, place=new)
        if not beyond and not self._work.waiting:
            raise RuntimeError(
                f"{self._unit} waits for something that is no step, sleep, message or child: a workflow must wait "
                f"for those alone, outside of its steps"
            )

    def _require_reached(self, *, is_done: bool) -> None:
        """Require that the function has come to what is stored, except where this depends on what runs first: branches
        of a run that was ended early, and items of a map that goes on."""
        beyond, is_cut = self._work.beyond, self._history.status in ("failed", "interrupted")
        maps = tuple(f"{each.branch}@{each.position}." for each in beyond if each.kind == "map")
        for row in sorted(self._rows, key=lambda row: (row.branch, row.position)):
            if row.kind == "compensation" or (row.branch and is_cut) or row.branch.startswith(maps):
                continue
            if (row.branch, row.position) not in self._work.reached:
                place = Place(row.branch, row.position, row.kind, row.name)
                found = _END if is_done or not beyond else _words(beyond[0])
                raise self._diverged(found, stored=_words(place), place=place)

    def _require_undone(self) -> None:
        """Require that the compensations that have run are those of the code."""
        for each in self._undo:
            self._work.places.row_at(each.place)
        known = {(each.place.branch, each.place.position) for each in self._undo}
        for row in self._rows:
            if row.kind == "compensation" and (row.branch, row.position) not in known:
                place = Place(row.branch, row.position, row.kind, row.name)
                raise self._diverged("no compensation", stored=_words(place), place=place)

    def _diverged(self, found: str, *, stored: str, place: Place | None) -> ReplayDiverged:
        where = _END if place is None else _where(place)
        return ReplayDiverged(unit=self._unit, found=found, stored=stored, place=where)


class ReplayedWork(JobMaps):
    """The steps of a run as its history has them. What is not in it is not begun."""

    def __init__(self, unit: str, rows: list[StepRow]) -> None:
        super().__init__(unit, _services(), _tenure(unit), open=_no_snapshot, sender=cast("JobSender", _Unused()))
        self.reached: set[tuple[str, int]] = set()
        """The places that the function has come to."""
        self.beyond: list[Place] = []
        """Places that it has come to, of which nothing is stored."""
        self.waiting = False
        """Whether it has come to a wait that is not over."""
        self.places = ReplayedPlaces(unit, self.reached)
        self.places.add(rows)
        self._is_loaded = self.stop_at_frontier = True

    async def opened(self) -> UnitSnapshot:
        """There is nothing to load."""
        return cast("UnitSnapshot", None)

    def require_held(self) -> None:
        """There is no seat to lose."""

    def token(self, name: str, type: Any) -> str:  # noqa: ARG002
        """A token that resolves nothing."""
        return f"{_TOKEN}{name}"

    def step(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any
    ) -> Coroutine[Any, Any, Any]:
        """What is stored of a step. Arguments with a token are not compared: it was another token."""
        if _has_token([*args, kwargs]):
            args, kwargs = (), {}
        return super().step(name, fn, args, kwargs, **options)

    async def _map(self, items: MapItems, run: RunItems) -> list[Any]:
        waits = self.places.rows_below(items.place, len(items.items))  # for jobs, if the items are jobs
        self.reached.update((each.branch, each.position) for each in waits)
        return await super()._map(items, run)

    async def _run_jobs(self, _: TaskType, items: MapItems, results: list[Any], /) -> tuple[int, Exception] | None:
        failed = await self._known(items, {}, results)
        if failed is None and not all(self._is_done(items, number) for number in range(len(results))):
            await self._never()
        return failed

    def _row_at(self, place: Place) -> StepRow | None:
        row = super()._row_at(place)
        if row is None and place.kind != "compensation":
            self.beyond.append(place)
        return row

    async def _written(self, *_: Any, **__: Any) -> StepRow:
        return await self._never()

    async def _wait(self, *_: Any) -> DeferredRow | None:
        return await self._never()

    async def may_go_on(self) -> None:
        """Nothing new begins."""
        self.waiting = True
        await super().may_go_on()

    async def _never(self) -> NoReturn:
        self.waiting = True
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nothing comes here in a replay")


class ReplayedPlaces(Places):
    """Places that note which of them the function has come to, and say where it diverges."""

    def __init__(self, unit: str, reached: set[tuple[str, int]]) -> None:
        super().__init__(unit)
        self._reached = reached

    def next_place(self, kind: StepKind, name: str, digest: bytes = b"") -> Place:
        """The next place of the current branch."""
        place = super().next_place(kind, name, digest)
        self._reached.add((place.branch, place.position))
        return place

    def row_at(self, place: Place) -> StepRow | None:
        """The row stored at a place."""
        self._reached.add((place.branch, place.position))
        try:
            return super().row_at(place)
        except StepDiverged as error:
            raise ReplayDiverged(unit=error.unit, found=error.found, stored=error.stored, place=_where(place)) from None


class _NoCluster:
    """Stands for the cluster, which code between steps must not use: that code runs again in each replay."""

    def workflow_handle(self, workflow: Any, id: str) -> WorkflowHandle[Any]:
        """The handle of a child, to pass on."""

        def refuse(*_: Any) -> NoReturn:
            raise RuntimeError("there is no cluster in a replay: use handles inside of steps")

        return handle_of(define(workflow, {}), id, refuse, refuse)

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(f"there is no cluster in a replay: use cluster.{name} inside of steps")


async def _no_child(*_: Any) -> NoReturn:
    raise AssertionError("nothing new begins in a replay")


async def _no_snapshot() -> None:
    return None


class _ReplayServices:
    """What durable work uses of the services of a runner."""

    def __init__(self) -> None:
        self.dial = Dial(asyncio.get_running_loop().time, datetime.now(UTC).timestamp())
        self.settings = Settings.load({}, {})
        self.tasks = Tasks("replay")
        self.runner = "replay"
        self.units = _Unused()
        self.storage = SimpleNamespace(run_messages=self.units)
        self.middleware = ()


class _Unused:
    """Stands for stores, of which no method is called."""

    def __getattr__(self, name: str) -> Any:
        return _never_called


def _never_called(*_: Any) -> NoReturn:
    raise AssertionError("nothing is stored in a replay")


def _services() -> Services:
    return cast("Services", _ReplayServices())


def _tenure(unit: str) -> Tenure:
    return Tenure(Claim("replay", unit, 0), clean=True, trust=cast("Trust", None))


def _has_token(given: Any) -> bool:
    try:
        return _TOKEN.encode() in PLAIN.encode(given)
    except (MalformedMessage, TypeError, ValueError):
        return False


def _words(place: Place) -> str:
    return f"{place.kind} {place.name}"


def _where(place: Place) -> str:
    """`place 2 of branch 0.1`, counted from 0, as steps are listed."""
    return f"place {place.position}" + (f" of branch {place.branch}" if place.branch else "")
