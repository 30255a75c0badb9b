"""A run whose code is wrong waits for other code, and undoes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, ConfigurationError, Workflow, WorkflowInterrupted
from tests.scenario.workflows.test_changes import replaced
from tests.scenario.workflows.workflow_cluster import Diary, new_cluster, over, simulated

if TYPE_CHECKING:
    from collections.abc import Callable


def _name() -> None:
    nowhere  # type: ignore[name-defined]  # noqa: B018, F821


def _attribute() -> None:
    Diary().nothing  # type: ignore[attr-defined]  # noqa: B018


def _type() -> None:
    _name(1)  # type: ignore[call-arg]


def _import() -> None:
    import coterie.nothing  # type: ignore[import-not-found]  # noqa: F401


def _handler() -> None:
    try:
        raise ValueError("it is handled")
    except ValueError:
        _name()


def _group() -> None:
    try:
        _name()
    except NameError as error:
        raise ExceptionGroup("of tasks", [ValueError("beside it"), error]) from error


def program(cluster: Cluster, diary: Diary, wrong: Callable[[], object] | None, **options: Any) -> Any:
    """A step, and what may be wrong."""

    @cluster.workflow(**options)
    async def work(workflow: Workflow, n: int) -> str:
        diary.body()
        workflow.compensate("undo", diary.do, "undo")
        await workflow.step("a", diary.do, "a")
        if wrong is not None:
            wrong()
        return "done"

    return work


@pytest.mark.parametrize("wrong", [_name, _attribute, _type, _import, _handler, _group])
@pytest.mark.simulated(seeds=1)
async def test_wrong_code_undoes_nothing_and_other_code_goes_on_at_once(wrong: Callable[[], object]) -> None:
    cluster, new, diary = new_cluster(), new_cluster(), Diary()
    work, _ = program(cluster, diary, wrong), program(new, diary, None)
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.advance(200)
        assert len(diary.bodies) == 5, "after 10, 20, 40, 80 s"
        (info,) = await cluster.workflows.list(name="work")
        assert (info.status, info.error) == ("suspended", None)
        assert info.stuck is not None
        assert "Error" in info.stuck or "group" in info.stuck.lower()
        await replaced(sim, new)
        assert await run.result(timeout="5s") == "done"
        assert (diary.ran, len(diary.bodies)) == (["a"], 6)
        (info,) = await cluster.workflows.list(name="work")
        assert info.stuck is None


@pytest.mark.simulated(seeds=1)
async def test_resume_tries_it_at_once_and_interrupt_undoes_what_it_has_done() -> None:
    cluster, diary = new_cluster(), Diary()
    work = program(cluster, diary, _name)
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.advance(5)
        await run.resume()
        await sim.advance(1)
        assert len(diary.bodies) == 2
        await run.interrupt()
        with pytest.raises(WorkflowInterrupted):
            await run.result(timeout="30s")
        assert diary.ran == ["a", "undo"]


@pytest.mark.parametrize("how", ["stuck_on nothing", "in a step", "another error"])
@pytest.mark.simulated(seeds=1)
async def test_other_errors_are_failures(how: str) -> None:
    cluster, diary = new_cluster(), Diary()
    options: dict[str, Any] = {"stuck_on": ()} if how == "stuck_on nothing" else {}

    @cluster.workflow(**options)
    async def work(workflow: Workflow, n: int) -> None:
        workflow.compensate("undo", diary.do, "undo")
        if how == "in a step":
            await workflow.step("wrong", _name)
        if how == "another error":
            raise ValueError("no error of code")
        _name()

    async with simulated(cluster, runners=1):
        run = await cluster.start_workflow(work, 1, id="1")
        await over(run)
        assert (await run.status(), diary.ran) == ("failed", ["undo"])


@pytest.mark.simulated(seeds=1)
async def test_errors_of_your_own_can_be_among_those_that_suspend_a_run() -> None:
    cluster, diary = new_cluster(), Diary()

    def closed() -> None:
        raise ConnectionError("the service is gone")

    work = program(cluster, diary, closed, stuck_on=[ConnectionError])
    async with simulated(cluster, runners=1) as sim:
        run = await cluster.start_workflow(work, 1, id="1")
        await sim.advance(5)
        assert (await run.status(), diary.ran) == ("suspended", ["a"])


@pytest.mark.parametrize("wrong", ["NameError", [1], BaseException, [NameError("it")]])
def test_what_is_no_class_of_errors_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="stuck_on"):
        program(new_cluster(), Diary(), None, stuck_on=wrong)
