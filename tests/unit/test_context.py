"""The cluster context: found without being passed, inherited inwards, never leaking out [K4]."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from datetime import UTC, datetime

import pytest

from coterie.errors import ClusterContextRequired
from coterie.kernel.context import ClusterContext, ContextFields, current, within_cluster
from coterie.kernel.ids import ShardId


def test_outside_of_cluster_work_the_error_says_how_to_get_a_context_k4() -> None:
    with pytest.raises(ClusterContextRequired, match="there is no cluster context here: call it from a handler"):
        current()


def test_the_context_is_found_without_being_passed_k4() -> None:
    with within_cluster(runner_id="r1", shard=ShardId("default", 42), is_leader=True, epoch=7) as opened:
        assert current() is opened
        assert (opened.runner_id, str(opened.shard), opened.is_leader, opened.epoch) == (
            "r1",
            "default:42",
            True,
            7,
        )
    with pytest.raises(ClusterContextRequired):
        current()


def test_what_is_not_given_is_inherited_and_comes_back_after_the_block() -> None:
    with within_cluster(runner_id="r1", epoch=7, attempt=2):
        with within_cluster(epoch=8, attempt=None):
            assert current() == ClusterContext(runner_id="r1", epoch=8)
        assert current() == ClusterContext(runner_id="r1", epoch=7, attempt=2)


def test_an_error_in_the_block_closes_it() -> None:
    with pytest.raises(ZeroDivisionError), within_cluster(epoch=1):
        raise ZeroDivisionError
    with pytest.raises(ClusterContextRequired):
        current()


def test_arguments_and_context_have_the_same_fields_and_types() -> None:
    arguments = {name: hint.__forward_arg__ for name, hint in ContextFields.__annotations__.items()}
    assert arguments == {field.name: field.type for field in dataclasses.fields(ClusterContext) if field.init}
    assert not ContextFields.__required_keys__


def test_the_context_has_all_that_is_promised_and_all_of_it_is_optional() -> None:
    promised = "runner_id shard entity_type entity_id is_leader epoch message_id key attempt deadline trace_id"
    assert set(promised.split()) <= {field.name for field in dataclasses.fields(ClusterContext)}
    assert not any(dataclasses.asdict(ClusterContext()).values())


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="entity"), within_cluster(entity="alice"):  # type: ignore[call-arg]  # the point
        pass


def test_a_deadline_without_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"), within_cluster(deadline=datetime(2026, 1, 1)):  # noqa: DTZ001
        pass
    with within_cluster(deadline=datetime(2026, 1, 1, tzinfo=UTC)):
        pass


async def test_a_task_begun_in_the_block_sees_it_and_one_begun_before_does_not() -> None:
    opened, closed = asyncio.Event(), asyncio.Event()

    async def outsider() -> None:
        await opened.wait()
        with pytest.raises(ClusterContextRequired):
            current()

    async def insider() -> int | None:
        await closed.wait()
        return current().epoch

    before = asyncio.create_task(outsider())
    await asyncio.sleep(0)
    with within_cluster(epoch=5):
        inside = asyncio.create_task(insider())
        opened.set()
        await before
    closed.set()
    assert await inside == 5
    with pytest.raises(ClusterContextRequired):
        current()


async def test_concurrent_tasks_do_not_see_each_others_context() -> None:
    async def work(number: int) -> list[int | None]:
        with within_cluster(epoch=number):
            seen = []
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(current().epoch)
            return seen

    for number, seen in enumerate(await asyncio.gather(*(work(number) for number in range(20)))):
        assert seen == [number] * 5


def test_a_thread_sees_no_context_but_may_open_its_own() -> None:
    seen: list[object] = []

    def body() -> None:
        try:
            current()
        except ClusterContextRequired as error:
            seen.append(error.code)
        with within_cluster(runner_id="thread"):
            seen.append(current().runner_id)

    with within_cluster(runner_id="main"):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join(120)
        assert current().runner_id == "main"
    assert seen == ["cluster_context_required", "thread"]
