"""Entities and a workflow in a process that writes its spans, one a line, to `TRACED_FOLDER/<runner>.jsonl`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from coterie import Cluster, Entity, Workflow, current, rpc

if TYPE_CHECKING:
    from collections.abc import Sequence


class JsonLines(SpanExporter):
    """Writes each span as it ends."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            self._file.write(json.dumps(facts_of(span)) + "\n")
        self._file.flush()
        return SpanExportResult.SUCCESS


def facts_of(span: ReadableSpan) -> dict[str, object]:
    """What a test wants to know."""
    context = span.get_span_context()
    assert context is not None, "it was started"
    return {
        "name": span.name,
        "trace": f"{context.trace_id:032x}",
        "id": f"{context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "facts": dict(span.attributes or {}),
    }


class Account(Entity):
    @rpc
    async def where(self) -> str | None:
        return current().runner_id

    @rpc
    async def forward(self, to: str) -> str | None:
        return await self.cluster.ref(Account, to).charge()

    @rpc(persisted=True)
    async def charge(self) -> str | None:
        return current().trace_id


async def pack() -> str | None:
    """A step."""
    return current().runner_id


async def checkout(workflow: Workflow, order: str) -> str | None:
    """It waits for somebody, and goes on wherever it is by then."""
    await workflow.step("pack", pack)
    await workflow.deferred("approval", str).wait()
    return await workflow.step("ship", pack)


def program(url: str | None = None) -> Cluster:
    """The cluster, with its definitions."""
    cluster = Cluster(url, shards=6)
    cluster.entity(Account)
    cluster.workflow(checkout)
    return cluster


def main() -> None:
    folder, name = Path(os.environ["TRACED_FOLDER"]), os.environ["COTERIE_RUNNER_NAME"]
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(JsonLines((folder / f"{name}.jsonl").open("a"))))
    trace.set_tracer_provider(provider)
    program().run()


if __name__ == "__main__":
    main()
