"""Publishes coterie's metrics to Prometheus, read on each scrape.

`cluster.run()` serves them by itself. A program with a `/metrics` of its own has them beside its own metrics with
`REGISTRY.register(Meters())`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from coterie.kernel import metrics

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.metrics_core import Metric

    from coterie.kernel.metrics import Meter

__all__ = ["Meters", "text"]


def text(accept: str = "") -> tuple[bytes, str]:
    """The body of a scrape response and its content type: OpenMetrics, if the scraper accepts it.

    Args:
        accept: The request's header of that name.
    """
    encode, content_type = choose_encoder(accept)
    return encode(_registry), content_type


class Meters(Collector):
    """Reads the meters whenever a registry collects. Meters without values are left out.

    Args:
        read: The meters to read.
    """

    def __init__(self, read: Sequence[Meter] = metrics.ALL) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """One metric family for each meter."""
        for meter in self._read:
            family = _family(meter)
            if family.samples:
                yield family

    def describe(self) -> Iterable[Metric]:
        """The names of the meters, so that a registry refuses a second metric with one of them."""
        return [_family(meter) for meter in self._read]


def _family(meter: Meter) -> Metric:
    if meter.kind == "histogram":
        histogram = HistogramMetricFamily(meter.name, meter.help, labels=meter.labels)
        for values, spread in list(meter.spreads.items()):  # a copy: they may grow on another thread
            histogram.add_metric(values, spread.cumulative(), spread.total)
        return histogram
    family = (CounterMetricFamily if meter.kind == "counter" else GaugeMetricFamily)(
        meter.name, meter.help, labels=meter.labels
    )
    for values, series in list(meter.series.items()):
        family.add_metric(values, series.value)
    return family


_registry = CollectorRegistry(auto_describe=False)
_registry.register(Meters())
