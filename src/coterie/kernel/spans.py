"""Tracing: spans through OpenTelemetry, for programs that use it; for all others a flag that is off (H5).

    from coterie.kernel import spans

    if spans.on:
        with spans.span("step.charge", {"coterie.unit": unit}):
            …

`on` is False unless the program has set a TracerProvider before its runner or client starts: then nothing is imported,
and a place where there could be a span costs the reading of one global.

A trace is passed on as text: a W3C `traceparent`, `00-<trace id>-<span id>-<flags>`. Processes that do not trace pass
it on unchanged; where none does, the text is the bare id, that of the first message. Whether a trace is sampled is in
its flags, and decided by the program's own sampler.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from coterie.kernel.context import enter, work_here
from coterie.kernel.ids import Seat
from coterie.kernel.text import said

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from types import TracebackType
    from typing import Self

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    Kind = Literal["INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"]
    Facts = Mapping[str, str | int]

log = logging.getLogger("coterie")

on = False

_tracer: Tracer | None = None
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_MARK: Final = b"\xc1T"  # no msgpack value begins so
_TEXT_BYTES: Final = 55


def look() -> None:
    """Turn tracing on, if the program has set a provider. Called whenever a runner or a client starts."""
    if on or "opentelemetry.trace" not in sys.modules:
        return
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        install(provider.get_tracer("coterie"))


def install(tracer: Tracer | None) -> None:
    """Turn tracing on with a tracer, or off with None."""
    global _tracer, on
    _tracer = tracer
    on = tracer is not None


# Spans


class span:  # noqa: N801 used as a statement: `with spans.span(…):`
    """A span around a block, current in it. Only where `on`.

    Args:
        name: The name of the span.
        facts: Its attributes: names and numbers, never payloads.
        kind: OpenTelemetry's kind of span.
        trace: The trace that it belongs to, as text.
        inherits: Whether the span that is current here takes precedence over `trace`.
    """

    __slots__ = ("_before", "_span")

    def __init__(
        self, name: str, facts: Facts, *, kind: Kind = "INTERNAL", trace: str | None = None, inherits: bool = True
    ) -> None:
        self._span = start(name, facts, kind=kind, trace=trace, inherits=inherits)
        self._before: Context | None = None

    def __enter__(self) -> Self:
        self._before = make_current(self._span)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if kind is not GeneratorExit:  # otherwise the context is unrelated: the coroutine is being discarded
            from opentelemetry.context import attach

            assert self._before is not None, "it was entered"
            attach(self._before)
        finish(self._span, error)


def start(name: str, facts: Facts, *, kind: Kind = "INTERNAL", trace: str | None = None, inherits: bool = True) -> Span:
    """A span that is not current yet, and must be finished; arguments as for `span`.

    Samplers and processors are the program's: their errors cost a span, and never a call.
    """
    from opentelemetry.trace import INVALID_SPAN, SpanKind, get_current_span

    is_child = inherits and get_current_span().get_span_context().is_valid
    context = None if is_child else _coming_from(trace)
    if not is_child and not context and trace is not None:
        facts = {**facts, "coterie.trace_id": trace}  # not a span's id: set by hand, or a first message's
    try:
        assert _tracer is not None, "it is on"
        return _tracer.start_span(name, context, SpanKind[kind], facts)
    except Exception:  # see above
        log.exception("a span could not be started")
        return INVALID_SPAN


def make_current(opened: Span) -> Context:
    """Make a span current from here on, in this context. Returns: the previous context."""
    from opentelemetry.context import attach, get_current
    from opentelemetry.trace import set_span_in_context

    before = get_current()
    attach(set_span_in_context(opened, before))
    return before


def finish(opened: Span, error: BaseException | None = None) -> None:
    """End a span. A cancellation is not recorded as an error: it was decided elsewhere."""
    try:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            opened.add_event("cancelled")
        elif error is not None:
            _fail(opened, error)
        opened.end()
    except Exception:  # as in `start`
        log.exception("a span could not be ended")


async def spanned(work: Awaitable[Any], name: str, facts: Facts, *, trace: str | None = None) -> Any:
    """Await work that was not called directly, in a span; `current().trace_id` is that span's there."""
    with span(name, facts, trace=trace, inherits=False):
        outer = work_here()
        if outer is not None:
            enter(replace(outer, trace_id=id_of(here())))
        try:
            return await work
        finally:
            if outer is not None:
                enter(outer)


def note(fact: str, value: str) -> None:
    """Set an attribute that is known only at the end, on the current span."""
    from opentelemetry.trace import get_current_span

    get_current_span().set_attribute(fact, value)


def failed(error: BaseException) -> None:
    """Record an error on the current span, though it is not raised."""
    from opentelemetry.trace import get_current_span

    _fail(get_current_span(), error)


def clear() -> None:
    """Make no span current from here on, in this context: what runs here is unrelated to its creator."""
    from opentelemetry.context import Context, attach

    attach(Context())


def seated(*, runner: str, seat: str, epoch: int) -> dict[str, str | int]:
    """The attributes of work under a seat."""
    kind, name = Seat.split(seat)
    return {
        "coterie.runner": runner,
        "coterie.shard" if kind == "shard" else "coterie.seat": name,
        "coterie.epoch": epoch,
    }


# Traces as text


def here() -> str | None:
    """The current span, as text; None if there is none. Only where `on`."""
    from opentelemetry.trace import get_current_span

    found = get_current_span().get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"


def id_of(trace: str | None) -> str | None:
    """The id of a trace, 32 digits; text that is no `traceparent` is an id itself."""
    if trace is None or len(trace) != _TEXT_BYTES or (found := _TRACEPARENT.fullmatch(trace)) is None:
        return trace
    return found[1]


def stamped(payload: bytes, trace: str | None) -> bytes:
    """A payload combined with its trace, for storage without a column for traces."""
    return _MARK + trace.encode() + payload if trace is not None and _TRACEPARENT.fullmatch(trace) else payload


def unstamped(stored: bytes) -> tuple[bytes, str | None]:
    """The payload, and the trace; None if there is none."""
    if not stored.startswith(_MARK):
        return stored, None
    end = len(_MARK) + _TEXT_BYTES
    return stored[end:], stored[len(_MARK) : end].decode("ascii", "replace")


def _coming_from(trace: str | None) -> Context:
    """A context in which the remote span of `trace` is current; an empty one if the text names no span."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    found = None if trace is None else _TRACEPARENT.fullmatch(trace)
    if found is None:
        return Context()
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _fail(opened: Span, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    if opened.is_recording():
        opened.record_exception(error)
        opened.set_status(Status(StatusCode.ERROR, said(error)))
