"""One trace across real processes: caller, wire, storage, handler, and a workflow that changes its runner (H5)."""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from coterie.kernel import spans as kernel_spans
from coterie.testing import processes
from tests.cluster.seat_cluster import NO_HTTP, STEADY
from tests.cluster.trace_program import Account, checkout, facts_of, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie import Cluster

PROGRAM = Path(__file__).with_name("trace_program.py")
ROOT = Path(__file__).parents[2]


class Exported:
    """What all processes have exported, this one too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._here = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._here))
        self.tracer = provider.get_tracer("coterie")

    def spans(self, trace: str) -> list[dict[str, Any]]:
        """Those of a trace, with the process that each comes from."""
        found = [{**facts_of(each), "from": "client"} for each in self._here.get_finished_spans()]
        for path in self._folder.glob("*.jsonl"):
            lines = path.read_text().rpartition("\n")[0].splitlines()  # the last one may not be written yet
            found += [{**json.loads(line), "from": path.stem} for line in lines]
        return [each for each in found if each["trace"] == trace]

    async def until(self, trace: str, *names: str) -> dict[str, list[dict[str, Any]]]:
        """The spans of a trace by name, once there are all of these."""
        async with asyncio.timeout(120):
            while True:
                spans = self.spans(trace)
                told = [each["name"] for each in spans]
                if all(told.count(name) >= names.count(name) for name in names):
                    return {name: [each for each in spans if each["name"] == name] for name in told}
                await asyncio.sleep(0.02)


@pytest.fixture
def exported(tmp_path: Path) -> Iterator[Exported]:
    exported = Exported(tmp_path)
    kernel_spans.install(exported.tracer)
    yield exported
    kernel_spans.install(None)


async def spread(client: Cluster) -> tuple[str, str]:
    """Two entities that live in different processes, once each holds its share: then nothing moves any more."""
    async with asyncio.timeout(120):
        while True:
            held = Counter(each.holder for each in (await client._acting().storage.view()).seats)
            if sorted(held.values()) == [3, 3]:
                break
            await asyncio.sleep(0.05)
    homes = {await client.ref(Account, f"a{number}").where(): f"a{number}" for number in range(20)}
    one, other = homes.values()
    return one, other


async def test_h5_one_trace_across_processes_and_through_storage(tmp_path: Path, exported: Exported) -> None:
    """From the client to a runner, on to another one by a stored message; and a workflow goes on elsewhere in it."""
    url = f"sqlite:///{tmp_path}/traces.db"
    env = {"TRACED_FOLDER": str(tmp_path), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT}/src", **NO_HTTP, **STEADY}
    client = program(url)
    async with processes(PROGRAM, runners=2, url=url, env=env) as crew, client.connect():
        one, other = await spread(client)
        with exported.tracer.start_as_current_span("mine") as mine:
            trace = f"{mine.get_span_context().trace_id:032x}"
            assert await client.ref(Account, one).forward(other) == trace
            await client.send(client.ref(Account, one).charge(), delay="50ms")
            run = await client.start_workflow(checkout, "7", id="order-7")
        spans = await exported.until(
            trace, "mine", "entity.Account.charge", "entity.Account.charge", "step.pack", "workflow.checkout"
        )
        ids = {each["id"]: each for named in spans.values() for each in named}

        (forward,), (called, asked) = spans["entity.Account.forward"], spans["cluster.call"]
        called, asked = (called, asked) if called["from"] == "client" else (asked, called)
        assert (forward["parent"], asked["parent"]) == (called["id"], forward["id"])
        assert called["parent"] == spans["mine"][0]["id"]
        charges = {ids[each["parent"]]["name"]: each for each in spans["entity.Account.charge"]}
        assert charges.keys() == {"cluster.call", "cluster.send"}  # by another runner, by the client
        assert charges["cluster.call"]["parent"] == asked["id"]
        assert charges["cluster.call"]["from"] != asked["from"] == forward["from"] != "client"
        assert charges["cluster.call"]["facts"]["coterie.runner"] != forward["facts"]["coterie.runner"]

        (first,), (started,) = spans["workflow.checkout"], spans["cluster.start_workflow"]
        assert (first["parent"], first["facts"]["coterie.outcome"]) == (started["id"], "suspended")
        (holder,) = (each for each in crew.runners if each.name == first["from"])
        await holder.stop()
        here, unit = client._acting(), "workflow:checkout/order-7"
        row = await here.storage.units.get(unit)
        assert row is not None
        await client.resolve(here.tokens.make(unit, "approval", life=row.life), "bob")
        shipped_by = await run.result(timeout="2m")
        spans = await exported.until(trace, "step.ship", "workflow.checkout", "workflow.checkout")
    (second,) = (each for each in spans["workflow.checkout"] if each["id"] != first["id"])
    (pack,), (ship,) = spans["step.pack"], spans["step.ship"]
    assert (second["parent"], second["facts"]["coterie.outcome"]) == (started["id"], "done")
    assert second["from"] != first["from"]
    assert (pack["parent"], ship["parent"]) == (first["id"], second["id"])
    assert ship["facts"]["coterie.runner"] == shipped_by
