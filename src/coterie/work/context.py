"""How work on a seat presents itself: its cluster context, and its spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel import spans
from coterie.kernel.context import ClusterContext

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from coterie.ownership.seats import Tenure


def context_of(tenure: Tenure, name: str, *, attempt: int | None = None, trace_id: str | None = None) -> ClusterContext:
    """The context of a singleton's, cron's or workflow's body."""
    return ClusterContext(
        runner_id=tenure.claim.runner,
        runner_address=tenure.address,
        name=name,
        is_leader=True,
        epoch=tenure.epoch,
        seat=tenure.seat,
        attempt=attempt,
        trace_id=trace_id,
    )


def facts_of(tenure: Tenure) -> dict[str, str | int]:
    """The attributes of a span that say where the work runs."""
    return spans.seated(runner=tenure.claim.runner, seat=tenure.seat, epoch=tenure.epoch)


def in_span(
    work: Coroutine[Any, Any, Any], name: str, tenure: Tenure, *, trace: Any = None, **facts: str | int
) -> Coroutine[Any, Any, Any]:
    """Work in a span, if tracing is on. The names of further facts get the prefix `coterie.`."""
    if not spans.on:
        return work
    more = {f"coterie.{key}": value for key, value in facts.items()}
    return spans.spanned(work, name, facts_of(tenure) | more, trace=trace)
