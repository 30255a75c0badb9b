"""What no database can keep is refused where it is given, with one error, on each engine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Entity, InvalidArgument, rpc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from coterie import Leader, Tick, Workflow

HALF = "a\ud800b"
"""Half a surrogate pair: a str of Python, and no text."""
FAR = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=timezone(timedelta(hours=1))),
    datetime(2200, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone(-timedelta(hours=12))),
]


class Thing(Entity):
    @rpc(persisted=True)
    async def keep(self) -> str:
        return self.id

    @rpc
    async def name(self) -> str:
        return self.id


async def flow(workflow: Workflow, text: str) -> str:
    return text


def sent_at(at: datetime, cluster: Cluster) -> Any:
    return cluster.send(cluster.ref(Thing, "t").keep(), at=at)


def triggered_at(at: datetime, cluster: Cluster) -> Any:
    return cluster.crons.trigger("yearly", at=at)


GIVEN: dict[str, Callable[[Cluster], Any]] = {
    "ref": lambda c: c.ref(Thing, HALF).name(),
    "shard_of": lambda c: c.shard_of(Thing, HALF),
    "reset": lambda c: c.reset(Thing, HALF),
    "kv.get": lambda c: c.kv.get(HALF),
    "kv.set": lambda c: c.kv.set(HALF, 1),
    "kv.remove": lambda c: c.kv.remove(HALF),
    "kv.modify": lambda c: c.kv.modify(HALF, lambda _: 1),
    "kv.prefix": lambda c: c.kv.prefix(HALF).size(),
    "start_workflow": lambda c: c.start_workflow(flow, "x", id=HALF),
    "workflow_handle": lambda c: c.workflow_handle(flow, HALF).status(),
    "workflows.list": lambda c: c.workflows.list(name=HALF),
    "result": lambda c: c.result(HALF),  # type: ignore[arg-type]
    "cancel": lambda c: c.cancel(HALF),  # type: ignore[arg-type]
    "messages.show": lambda c: c.messages.show(HALF),
    "messages.retry": lambda c: c.messages.retry(HALF),
    "messages.list of": lambda c: c.messages.list(entity=HALF),
    "messages.list after": lambda c: c.messages.list(after=HALF),
    "messages.purge": lambda c: c.messages.purge(status="done", entity=f"Thing/{HALF}"),
    "crons.trigger": lambda c: c.crons.trigger(HALF),
    "crons.pause": lambda c: c.crons.pause(HALF),
    "crons.resume": lambda c: c.crons.resume(HALF),
    "crons.history": lambda c: c.crons.history(HALF),
    "singletons.state": lambda c: c.singletons.state(HALF, int),
    "singletons.history": lambda c: c.singletons.history(HALF),
    **{f"send at {at}": partial(sent_at, at) for at in FAR},
    **{f"trigger at {at}": partial(triggered_at, at) for at in FAR},
}


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/given.db"


async def test_half_a_surrogate_pair_and_an_instant_out_of_range_are_refused_at_the_call(place: str) -> None:
    cluster = Cluster(place, shards=2)
    cluster.entity(Thing)
    cluster.workflow(flow)

    @cluster.cron("yearly", "@yearly")
    async def yearly(tick: Tick) -> None: ...

    @cluster.singleton("single")
    async def single(leader: Leader[None]) -> None: ...

    told: dict[str, str] = {}
    refusals: list[Exception] = []
    async with cluster:
        await cluster.ready(timeout="2m")
        for name, give in GIVEN.items():
            try:
                told[name] = f"returned {await give(cluster)!r}"
            except InvalidArgument as error:
                refusals.append(error)
            except Exception as error:
                told[name] = repr(error)
        assert told == {}
        assert all(isinstance(error, ValueError) and str(error).encode() for error in refusals)
        sent = await cluster.send(cluster.ref(Thing, "t").keep(), at=datetime(1970, 1, 1, tzinfo=UTC))
        assert await cluster.result(sent, timeout="2m") == "t", "what is long past is due"
