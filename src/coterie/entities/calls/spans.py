"""Spans of calls: one around the caller's wait, one around the handler. Only while `kernel.spans.on`.

caller's span ──▶ cluster.call, cluster.send, cluster.broadcast ──wire, storage──▶ entity.{type}.{rpc} ──▶ …
"""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from coterie.entities.host.work import Work, handling
from coterie.kernel import spans
from coterie.kernel.context import trace_here
from coterie.kernel.coroutines import within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from contextvars import Context

    from opentelemetry.trace import Span

    from coterie.entities.reference import Call, Stream
    from coterie.kernel.spans import Facts, Kind


async def sent(name: str, kind: Kind, facts: Facts, send: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
    """Await a send operation in its own span.

    It runs in a copy of the caller's context: the span is current for what is sent, and never for the caller.
    """
    context, opened = _opened(name, kind, facts)
    try:
        value = await within(context, send(*args))
    except BaseException as error:
        spans.finish(opened, error)
        raise
    spans.finish(opened)
    return value


async def read(stream: Stream[Any], items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """The items of a stream, in one span from the first to the last one."""
    context, opened = _opened("cluster.call", "CLIENT", facts_of(stream))
    error: BaseException | None = None
    try:
        while True:
            try:
                item = await within(context, items.__anext__())  # an awaitable that can be stepped too
            except StopAsyncIteration:
                return
            yield item
    except GeneratorExit:  # the reader stops early
        raise
    except BaseException as problem:
        error = problem
        raise
    finally:
        await items.aclose()
        spans.finish(opened, error)


async def handled(work: Work, handler: Coroutine[Any, Any, Any]) -> Any:
    """Await a handler in its span, in the call's own context."""
    resident = work.resident
    claim = resident.shard.tenure.claim
    facts: dict[str, str | int] = {
        "coterie.runner": claim.runner,
        "coterie.shard": str(resident.shard.id),
        "coterie.epoch": claim.epoch,
        "coterie.entity_type": work.entity_type,
        "coterie.entity_id": work.entity_id,
    }
    if work.is_stored:
        facts |= {"coterie.message_id": work.message_id, "coterie.attempt": work.attempt}
    kind: Kind = "CONSUMER" if work.is_stored else "SERVER"
    name = f"entity.{work.entity_type}.{work.method}"
    with spans.span(name, facts, kind=kind, trace=work.trace_id, inherits=False):
        return await handler


def trace_of(outer: Work | None) -> str | None:
    """The trace of what is sent here, as text: from the current span, from the running handler, or as set by hand."""
    if spans.on and (found := spans.here()) is not None:
        return found
    return trace_here() if outer is None else outer.trace_id


def facts_of(what: Call[Any] | Stream[Any]) -> Facts:
    """The attributes of a call's span."""
    return {
        "coterie.entity_type": what.address.type,
        "coterie.entity_id": what.address.id,
        "coterie.rpc": what.rpc.name,
    }


def _opened(name: str, kind: Kind, facts: Facts) -> tuple[Context, Span]:
    opened = spans.start(name, facts, kind=kind, trace=trace_of(handling.get()))
    context = copy_context()
    context.run(spans.make_current, opened)
    return context, opened
