"""What steps give and raise, as it is stored and read again: by annotation, else as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from coterie import ConfigurationError, MalformedMessage, Workflow, WorkflowFailed
from tests.scenario.workflows.workflow_cluster import Diary, holder, new_cluster, over, simulated

if TYPE_CHECKING:
    from collections.abc import Mapping  # a name that exists for type checkers only


@dataclass
class Item:
    """Something that is bought."""

    name: str
    cents: int


@dataclass
class Bill:
    """What was bought."""

    items: list[Item]


class Till:
    """Has a method that is a step."""

    async def total(self, bill: Bill) -> int:
        return sum(item.cents for item in bill.items)


async def one(name: str) -> Item:
    return Item(name, 1)


async def several(names: list[str]) -> list[Item]:
    return [Item(name, 2) for name in names]


async def strange(names: Mapping[str, int]) -> Item:
    return Item(*next(iter(names.items())))


async def untold(names: list[str]):  # type: ignore[no-untyped-def]
    return Item(names[0], 1)


@pytest.mark.simulated(seeds=1)
async def test_s11_results_are_what_their_annotations_say_also_for_the_next_runner() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def shop(workflow: Workflow, bill: Bill) -> list[Item]:
        first = await workflow.step("one", one, "a")
        more = await workflow.step("several", several, ["b", "c"])
        odd = await workflow.step("strange", strange, {"d": 4})
        total = await workflow.step("total", Till().total, bill)
        plain = await workflow.step("plain", partial(plainly, 5), text="x")
        word: Any = await workflow.step("lambda", lambda: diary.do("lambda", 7))
        await workflow.step("gate", diary.gated, "gate")
        assert isinstance(bill.items[0], Item)
        assert plain == {"n": 5, "text": "x", "list": [1, None, 2.5, True]}
        return [first, *more, odd, Item("total", total), Item("lambda", word)]

    async with simulated(cluster) as sim:
        run = await cluster.start_workflow(shop, Bill([Item("z", 9), Item("y", 10)]), id="1")
        await sim.wait_until(lambda: "gate" in diary.ran)
        holder(sim, shop).kill()
        diary.gates["gate"].set()
        assert await over(run) == [
            Item("a", 1), Item("b", 2), Item("c", 2), Item("d", 4), Item("total", 19), Item("lambda", 7),
        ]  # fmt: skip
        assert diary.ran == ["lambda", "gate", "gate"]


async def plainly(n: int, *, text: str):  # type: ignore[no-untyped-def]
    return {"n": n, "text": text, "list": [1, None, 2.5, True]}


@pytest.mark.simulated(seeds=1)
async def test_a_result_that_nobody_could_read_again_is_refused_with_what_to_write() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def shop(workflow: Workflow, how: str) -> None:
        if how == "untold":
            await workflow.step("untold", untold, ["a"])
        await workflow.step("lambda", lambda: one("a"))

    async with simulated(cluster):
        failed = await over(await cluster.start_workflow(shop, "untold", id="1"))
        assert isinstance(failed.__cause__, MalformedMessage)
        assert "untold returned Item, and has no return annotation by which to read it again" in str(failed)
        assert "annotate it: async def untold(…) -> Item" in str(failed.__cause__)
        failed = await over(await cluster.start_workflow(shop, "lambda", id="2"))
        assert "returned Item" in str(failed)


@pytest.mark.simulated(seeds=1)
async def test_a_result_that_is_not_what_the_workflow_says_fails_it() -> None:
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def shop(workflow: Workflow, _: None) -> int:
        workflow.compensate("undo", diary.do, "undo")
        return "five"  # type: ignore[return-value] # that is the point

    async with simulated(cluster):
        failed = await over(await cluster.start_workflow(shop, None, id="1"))
        assert isinstance(failed, WorkflowFailed)
        assert "result of workflow:shop/1" in str(failed)
        assert diary.ran == ["undo"]
        with pytest.raises(MalformedMessage, match="payload of workflow"):
            await cluster.start_workflow(shop, 5, id="2")  # type: ignore[arg-type] # that is the point


def test_annotations_that_exist_for_type_checkers_only_are_refused_where_they_matter() -> None:
    cluster = new_cluster()

    @cluster.workflow
    async def plain(workflow: Nowhere, n: int) -> int:  # type: ignore[name-defined] # noqa: F821 that is the point
        return n

    with pytest.raises(ConfigurationError, match="its annotations cannot be read") as caught:

        @cluster.workflow
        async def odd(workflow: Workflow, n: Mapping[str, int]) -> int:
            return len(n)

    assert "outside of `if TYPE_CHECKING`" in str(caught.value)


def test_what_is_no_workflow_is_refused_when_the_program_is_loaded() -> None:
    cluster = new_cluster()

    def plain(workflow: Workflow, n: int) -> int:
        return n

    async def few(workflow: Workflow) -> None: ...

    async def good(workflow: Workflow, n: int) -> int:
        return n

    for refused, text in ((plain, "is no async function"), (few, "does not take two arguments")):
        with pytest.raises(ConfigurationError, match=text):
            cluster.workflow(refused)  # type: ignore[arg-type] # that is the point
    with pytest.raises(ConfigurationError, match="retyr"):
        cluster.workflow(retyr=5)(good)  # type: ignore[call-overload] # that is the point
    cluster.workflow(good)
    with pytest.raises(ConfigurationError, match="two workflows of the name 'good'"):
        cluster.workflow(good)
    with pytest.raises(TypeError, match=r"few is no workflow of this cluster: write @cluster\.workflow before it"):
        cluster.workflow_handle(few, "1")  # type: ignore[arg-type] # that is the point


@pytest.mark.simulated(seeds=1)
async def test_a_step_in_a_step_is_refused() -> None:
    """In the next run the outer one would not run, and the inner one's place would be missing."""
    cluster, diary = new_cluster(), Diary()

    @cluster.workflow
    async def nests(workflow: Workflow, how: str) -> None:
        async def outer() -> None:
            if how == "step":
                await workflow.step("inner", diary.do, "inner")
            elif how == "sleep":
                await workflow.sleep("1s", name="inner")
            else:
                await workflow.deferred("inner", int).wait()

        await workflow.step("outer", outer)

    async with simulated(cluster):
        for how in ("step", "sleep", "deferred"):
            failed = await over(await cluster.start_workflow(nests, how, id=how))
            assert "was called inside of a step, and steps do not nest" in str(failed)
        assert diary.ran == []
