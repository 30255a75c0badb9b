"""One end of the calls that `bench.telemetry` measures: `python -m bench.telemetry_peer runner|client VARIANT URL`.

A process of its own for each end and each variant, since what is counted is counted in place: for the variant `absent`
all of coterie is compiled without the statements that count, or look whether there are spans, so that the product needs
no switch. The variant `tracing` sets a TracerProvider of OpenTelemetry's SDK.

It says `ready`. A client then measures for each line (callers and seconds) and prints calls per second, and calls.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from typing import TYPE_CHECKING, Any

from bench.measure import rate
from bench.peers import run

if TYPE_CHECKING:
    from types import CodeType

ENTITIES = 1_000
SHARDS = 60
BODY = b"b" * 100


class Uncounted(ast.NodeTransformer):
    """Takes out what counts: `….value += …`, `….see(…)`, what `see` comes to, and the times that are kept for it."""

    def __init__(self) -> None:
        self.taken_out = 0

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        return self._without(node, any(_is_attribute(target, each) for each in ("value", "counts", "total")))

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        return self._without(node, any(_is_attribute(each, "began_ns") or _is_took(each) for each in node.targets))

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        return self._without(node, isinstance(node.value, ast.Call) and _is_attribute(node.value.func, "see"))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`tracing.on`: what is never so is left out by the compiler."""
        if not (node.attr == "on" and isinstance(node.value, ast.Name) and node.value.id == "tracing"):
            return node
        return ast.copy_location(ast.Constant(False), node)

    def _without(self, node: ast.stmt, counts: bool) -> ast.stmt:
        self.taken_out += counts
        return ast.copy_location(ast.Pass(), node) if counts else node


class Uncounting(SourceFileLoader):
    """Compiles a module without what counts; never from the cache of compiled modules."""

    taken_out = 0

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        uncounted = Uncounted()
        tree = uncounted.visit(ast.parse(self.get_data(path), path))
        Uncounting.taken_out += uncounted.taken_out
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code


class Finder(MetaPathFinder):
    """Finds the modules of coterie."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not fullname.startswith("coterie."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = Uncounting(spec.loader.name, spec.loader.path)
        return spec


def _is_took(node: ast.expr) -> bool:
    return isinstance(node, ast.Tuple) and any(isinstance(each, ast.Name) and each.id == "took" for each in node.elts)


def _is_attribute(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name


def _program(url: str) -> Any:
    """The cluster, and calls from it spread over the entities. Imported here: after the variant was chosen."""
    from coterie import Cluster, Entity, rpc

    class Echo(Entity):
        """The trivial handler."""

        @rpc
        async def echo(self, data: bytes) -> bytes:
            return data

    cluster = Cluster(url, shards=SHARDS)
    cluster.entity(Echo)
    refs = itertools.cycle([cluster.ref(Echo, f"echo-{number}") for number in range(ENTITIES)])
    return cluster, lambda: next(refs).echo(BODY)


async def _serve(url: str) -> None:
    cluster, _ = _program(url)
    async with cluster:
        await cluster.ready(timeout="30s")
        await _said("ready")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _call(url: str) -> None:
    cluster, work = _program(url)
    calls = 0

    async def counted() -> None:
        nonlocal calls
        calls += 1
        await work()

    async with cluster.connect():
        await _said("ready")
        while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            callers, seconds = line.split()
            calls = 0
            per_s = await rate(counted, callers=int(callers), seconds=float(seconds))
            await _said(f"{per_s} {calls}")


async def _said(what: object) -> None:
    print(what, flush=True)


def _trace() -> None:
    """Have all calls traced, as a program does: in batches, to an exporter that takes no time."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class Nowhere(SpanExporter):
        """Takes them."""

        def export(self, spans: Any) -> SpanExportResult:
            del spans
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    trace.set_tracer_provider(provider)


def main() -> None:
    """Be one end."""
    end, variant, url = sys.argv[1:]
    if variant == "absent":
        sys.meta_path.insert(0, Finder())
    elif variant == "tracing":
        _trace()
    run(_serve(url) if end == "runner" else _call(url))
    assert (Uncounting.taken_out > 20) == (variant == "absent"), f"{Uncounting.taken_out} statements were taken out"


if __name__ == "__main__":
    main()
