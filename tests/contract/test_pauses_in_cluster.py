"""`cluster.tasks`, `cluster.entities`, `cluster.groups` with runners: nothing paused is begun, what runs ends (T9)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster, Entity, InvalidArgument, rpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Program:
    """A runner, with what it has begun."""

    def __init__(self, url: str, name: str, *, go: asyncio.Event) -> None:
        cluster = self.cluster = Cluster(url, runner_name=name, shards=4, call_timeout="60s")
        self.begun: list[str] = []
        begun = self.begun

        @cluster.entity
        class Desk(Entity[None]):
            @rpc(persisted=True)
            async def sign(self, number: int) -> int:
                begun.append(f"{self.id} {number}")
                if number == 0:
                    await go.wait()
                return number

            @rpc
            async def ask(self) -> str:
                return "here"

        @cluster.entity
        class Other(Entity[None]):
            @rpc(persisted=True)
            async def sign(self) -> str:
                return "signed"

        self.desk, self.other = Desk, Other
        queue = cluster.queue("post", concurrency=5)

        @cluster.task(queue=queue)
        async def mail(number: int) -> int:
            begun.append(f"mail {number}")
            if number == 0:
                await go.wait()
            return number

        @cluster.task(queue=queue)
        async def note(number: int) -> int:
            return number

        @cluster.task
        async def free(number: int) -> int:
            begun.append(f"free {number}")
            return number

        self.mail, self.note, self.free = mail, note, free


class Programs:
    """Two of them on one database."""

    def __init__(self, one: Program, two: Program, go: asyncio.Event) -> None:
        self.one, self.two, self.go = one, two, go

    @property
    def begun(self) -> list[str]:
        return [*self.one.begun, *self.two.begun]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
async def programs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Programs]:
    is_file = request.param == "file"
    url = f"sqlite:///{tmp_path}/pauses.db" if is_file else request.getfixturevalue("migrated_url")
    go = asyncio.Event()
    async with AsyncExitStack() as stack:
        made = [Program(url, name, go=go) for name in ("one", "two")]
        for each in made:
            await stack.enter_async_context(each.cluster)
        for each in made:
            await each.cluster.ready(timeout="2m")
        yield Programs(made[0], made[1], go)
        go.set()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.01)


async def test_no_job_of_a_paused_task_begins_and_those_behind_it_do(programs: Programs) -> None:
    one, two = programs.one, programs.two
    running = await one.cluster.send(one.mail.job(0))
    await until(lambda: programs.begun)
    assert await one.cluster.tasks.pause("mail") is True
    assert await two.cluster.tasks.pause("mail") is False
    assert list(await two.cluster.tasks.paused()) == ["mail"]
    waiting = [await one.cluster.send(one.mail.job(number), priority=50) for number in (1, 2, 3)]
    programs.go.set()
    assert await two.cluster.result(running) == 0, "what runs goes on to its end"
    assert await one.cluster.result(await one.cluster.send(one.note.job(7))) == 7, "they stand before no others"
    assert programs.begun == ["mail 0"]
    assert (await one.cluster.queues.get("post")).parked + (await one.cluster.queues.get("post")).ready == 3
    assert (await one.cluster.health()).status == "healthy"
    assert await two.cluster.tasks.resume("mail") is True
    assert [await one.cluster.result(each) for each in waiting] == [1, 2, 3]
    assert await two.cluster.tasks.resume("mail") is False


async def test_no_message_of_a_paused_entity_type_begins(programs: Programs) -> None:
    one, two = programs.one, programs.two
    refs = [one.cluster.ref(one.desk, f"d{number}") for number in range(8)]
    running = [await one.cluster.send(ref.sign(0)) for ref in refs]
    behind = [await one.cluster.send(ref.sign(1)) for ref in refs]
    soon = await one.cluster.send(refs[0].sign(2), delay="2s")
    await until(lambda: len(programs.begun) == len(refs))
    assert await two.cluster.entities.pause("Desk") is True
    begun = programs.begun
    late = [await two.cluster.send(two.cluster.ref(two.desk, f"e{number}").sign(3)) for number in range(8)]
    programs.go.set()
    assert [await two.cluster.result(each) for each in running] == [0] * len(refs)
    assert await one.cluster.ref(one.other, "x").sign() == "signed", "others are not affected"
    assert await refs[0].ask() == "here", "nor are calls that are not persisted"
    await asyncio.sleep(2.5)
    assert programs.begun == begun
    assert (await one.cluster.health()).status == "healthy"
    assert await one.cluster.entities.resume("Desk") is True
    assert [await one.cluster.result(each) for each in behind] == [1] * len(refs)
    assert await one.cluster.result(soon) == 2
    assert [await one.cluster.result(each) for each in late] == [3] * len(late)
    for ref in refs[1:]:
        assert [each for each in programs.begun if each.startswith(f"{ref.id} ")] == [f"{ref.id} 0", f"{ref.id} 1"]


async def test_nothing_of_a_paused_group_begins(programs: Programs) -> None:
    one, two = programs.one, programs.two
    await one.cluster.groups.pause("default")
    jobs = [await one.cluster.send(task.job(1)) for task in (one.mail, one.note, one.free)]
    message = await two.cluster.send(two.cluster.ref(two.desk, "d").sign(1))
    await asyncio.sleep(2.5)
    assert programs.begun == []
    assert list(await two.cluster.groups.paused()) == ["default"]
    await two.cluster.groups.resume("default")
    assert [await one.cluster.result(each) for each in jobs] == [1, 1, 1]
    assert await one.cluster.result(message) == 1


async def test_a_name_that_cannot_be_stored_is_refused(programs: Programs) -> None:
    with pytest.raises(InvalidArgument, match="the name of what is paused"):
        await programs.one.cluster.tasks.pause("a\0b")
