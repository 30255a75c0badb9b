"""OpenTelemetry: the meters as observable instruments, read when the program's own exporter collects.

Nothing is imported and nothing costs time unless the program itself uses OpenTelemetry's metrics: to publish them, it
sets a MeterProvider before the cluster starts. Since there is no observable histogram, each is published as it is in
Prometheus: `…_bucket` with `le`, `…_sum` and `…_count`, three counters.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet

from coterie.errors import CoterieError
from coterie.kernel import metrics
from coterie.observe.gauges import sample

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import MeterProvider, Observation

    from coterie.kernel.metrics import Meter
    from coterie.kernel.service import Tasks
    from coterie.observe.collect import Collector
    from coterie.observe.facts import LocalFacts
    from coterie.observe.health import Health

    Points = Iterator[tuple[float, dict[str, str]]]

_providers: WeakSet[Any] = WeakSet()
_refreshed: WeakSet[Refreshed] = WeakSet()  # weak: runners in a simulation end without withdrawing


class Refreshed(Protocol):
    """Gauges that are set when they are about to be read."""

    def refresh(self) -> None: ...


class Gauges:
    """Sets the gauges of one runner when an exporter collects.

    Args:
        facts: Returns what the runner knows of itself.
        collector: Determines the health of the cluster.
        loop: The runner's event loop.
        tasks: Runs the health check.
    """

    def __init__(
        self, facts: Callable[[], LocalFacts], collector: Collector, *, loop: AbstractEventLoop, tasks: Tasks
    ) -> None:
        self._facts = facts
        self._collector = collector
        self._loop = loop
        self._tasks = tasks
        self._health: Health | None = None

    def refresh(self) -> None:
        """Set them. The exporter's thread does not wait: the cluster's values are those of the previous collection."""
        sample(self._facts(), self._health)
        self._loop.call_soon_threadsafe(self._refresh_health)

    def _refresh_health(self) -> None:
        self._tasks.spawn(self._read_health(), name="health for an exporter", report=False)

    async def _read_health(self) -> None:
        try:
            self._health = await self._collector.health()
        except CoterieError:
            self._health = None


def publish(gauges: Refreshed, *, provider: MeterProvider | None = None) -> None:
    """Publish all meters, if the program uses OpenTelemetry.

    Args:
        gauges: Refreshed on the exporter's thread before they are read, until they are withdrawn or deleted.
        provider: The provider to use; None: the one that the program has set, or sets later.
    """
    if provider is None and "opentelemetry.metrics" not in sys.modules:
        return
    known: object = provider or _Global  # one key, though the global provider object changes when it is set
    if known not in _providers:
        from opentelemetry.metrics import get_meter_provider

        _providers.add(known)
        _instrument(provider or get_meter_provider())
    _refreshed.add(gauges)


def withdraw(gauges: Refreshed) -> None:
    """Stop refreshing them."""
    _refreshed.discard(gauges)


def _instrument(provider: MeterProvider) -> None:
    meter = provider.get_meter("coterie")
    refresh = _refresh  # in the first instrument only: they are read one after another, in this order
    for each in metrics.ALL:
        make = meter.create_observable_gauge if each.kind == "gauge" else meter.create_observable_counter
        for name, read in _parts(each):
            make(name, [partial(_observed, read, each, refresh)], description=each.help)
            refresh = _nothing


def _parts(meter: Meter) -> list[tuple[str, Callable[[Meter], Points]]]:
    if meter.kind != "histogram":
        return [(meter.name, _values)]
    return [(f"{meter.name}_bucket", _buckets), (f"{meter.name}_sum", _sums), (f"{meter.name}_count", _counts)]


def _observed(
    read: Callable[[Meter], Points], meter: Meter, refresh: Callable[[], None], _options: object
) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    refresh()
    for value, attributes in read(meter):
        yield Observation(value, attributes)


def _values(meter: Meter) -> Points:
    for values, series in list(meter.series.items()):  # a copy: the meters change on another thread
        yield series.value, dict(zip(meter.labels, values, strict=True))


def _buckets(meter: Meter) -> Points:
    for values, spread in list(meter.spreads.items()):
        for bound, count in spread.cumulative():
            yield count, {**dict(zip(meter.labels, values, strict=True)), "le": bound}


def _sums(meter: Meter) -> Points:
    for values, spread in list(meter.spreads.items()):
        yield spread.total, dict(zip(meter.labels, values, strict=True))


def _counts(meter: Meter) -> Points:
    for values, spread in list(meter.spreads.items()):
        yield sum(spread.counts), dict(zip(meter.labels, values, strict=True))


def _refresh() -> None:
    for gauges in list(_refreshed):
        with contextlib.suppress(RuntimeError):  # a meter grew during the iteration: the last figures stay
            gauges.refresh()


class _Global:
    """The provider that the program has set, or sets later."""


def _nothing() -> None:
    """Do nothing."""
