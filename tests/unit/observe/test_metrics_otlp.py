"""The same metrics through OpenTelemetry (H4): read when the program's own exporter collects."""

from __future__ import annotations

import gc
import subprocess
import sys
from typing import TYPE_CHECKING
from weakref import WeakSet

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, InMemoryMetricReader, Sum

from coterie import Cluster
from coterie.kernel import metrics
from coterie.observe import otlp
from coterie.observe.gauges import sample
from coterie.testing.simulation import simulate
from tests.unit.observe.cluster_facts import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Publish = Callable[[Callable[[], None]], "Told"]


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    yield (reader := InMemoryMetricReader())
    reader.shutdown()


class Told:
    """Gauges that are set by a function."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self.refresh = refresh


@pytest.fixture
def publish(reader: InMemoryMetricReader, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publish]:
    """Publishes to the reader, with what refreshes the gauges: this alone, whatever runs in this process."""
    monkeypatch.setattr(otlp, "_refreshed", WeakSet())
    provider, published = MeterProvider([reader], shutdown_on_exit=False), []

    def publish(refresh: Callable[[], None]) -> Told:
        published.append(Told(refresh))
        otlp.publish(published[-1], provider=provider)
        return published[-1]

    yield publish
    for each in published:
        otlp.withdraw(each)
    for meter in (metrics.READY, metrics.SEATS):
        meter.forget()


def collected(reader: InMemoryMetricReader) -> dict[str, dict[frozenset[tuple[str, object]], float]]:
    """What an exporter would get, by name and attributes."""
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, dict[frozenset[tuple[str, object]], float]] = {}
    for metric in (each for one in data.resource_metrics for scope in one.scope_metrics for each in scope.metrics):
        assert isinstance(metric.data, Sum | Gauge)
        points = metric.data.data_points
        found[metric.name] = {frozenset((each.attributes or {}).items()): float(each.value) for each in points}
    return found


def test_h4_otlp_gets_what_was_counted(
    reader: InMemoryMetricReader, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters as they are, histograms as Prometheus has them, gauges as they are when they are read."""
    monkeypatch.setattr(metrics.CALL_DURATION, "spreads", {})  # the SDK takes 2,000 of a name: others have counted, too
    metrics.CALLS.of("Otlp", "pay", "ok").value = 41
    spread = metrics.CALL_DURATION.spread("Otlp", "pay")
    spread.see(0.002)
    spread.see(45)
    publish(lambda: sample(local(seats=12)))
    metrics.CALLS.of("Otlp", "pay", "ok").value += 1
    found = collected(reader)
    attributes = {"type": "Otlp", "rpc": "pay"}
    assert found["coterie_calls_total"][frozenset({**attributes, "outcome": "ok"}.items())] == 42
    assert found["coterie_call_duration_seconds_count"][frozenset(attributes.items())] == 2
    assert found["coterie_call_duration_seconds_sum"][frozenset(attributes.items())] == pytest.approx(45.002)
    buckets = found["coterie_call_duration_seconds_bucket"]
    assert [buckets[frozenset({**attributes, "le": le}.items())] for le in ("0.001", "0.0025", "30.0", "+Inf")] == [
        0, 1, 1, 2,
    ]  # fmt: skip
    assert found["coterie_seats"][frozenset()] == 12


def test_gauges_are_refreshed_before_they_are_read_and_not_once_their_runner_is_gone(
    reader: InMemoryMetricReader, publish: Publish
) -> None:
    """Of two runners of one process one may leave; a refresh that fails leaves the last figures."""
    asked: list[str] = []
    first = publish(lambda: asked.append("first"))
    publish(lambda: asked.append("second"))

    def fails() -> None:
        raise RuntimeError("dictionary changed size during iteration")

    publish(fails)
    collected(reader)
    assert sorted(asked) == ["first", "second"], "once for each collection, however many instruments there are"
    otlp.withdraw(first)
    collected(reader)
    assert sorted(asked) == ["first", "second", "second"]


def test_a_provider_that_has_gone_is_not_kept(reader: InMemoryMetricReader) -> None:
    provider = MeterProvider([], shutdown_on_exit=False)
    otlp.publish(Told(lambda: None), provider=provider)
    before = len(otlp._providers)
    provider.shutdown()
    del provider
    gc.collect()
    assert len(otlp._providers) == before - 1


def test_a_program_without_opentelemetry_does_not_load_it() -> None:
    """It costs those nothing who do not use it."""
    program = (
        "import sys; from coterie.observe import otlp; otlp.publish(None); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=300).returncode == 0


@pytest.mark.simulated(seeds=1)
async def test_h4_a_runner_s_gauges_are_refreshed_and_the_cluster_s_follow(reader: InMemoryMetricReader) -> None:
    """What is known of the whole cluster was found out when the exporter collected before."""
    cluster = Cluster("sqlite://", shards=8, http_listen=None)
    async with simulate(cluster, runners=2) as sim:
        gauges = sim.runners[0].real._gauges
        await sim.wait_until(lambda: len(sim.runners[0].real.seats) == len(sim.runners[1].real.seats) == 4)
        gauges.refresh()
        assert metrics.SEATS.of().value == 4
        assert not metrics.RUNNERS.series
        await sim.advance(1)
        gauges.refresh()
        assert metrics.RUNNERS.of().value == metrics.HEALTHY_RUNNERS.of().value == 2
        assert metrics.SHARDS.of("owned").value == 8
    sample(local())
