"""Metrics: what is declared, how it is counted, and what a scrape gives (H4, RELIABILITY 3.3 #8)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from coterie.kernel import metrics
from coterie.kernel.metrics import Meter, Spread
from coterie.observe.gauges import sample
from coterie.observe.health import judge
from coterie.prometheus import Meters, text
from tests.unit.observe.cluster_facts import cluster, local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
OURS = {meter.name for meter in metrics.ALL}


def scraped(*read: Meter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """What a scrape gives, read as Prometheus does: by name and labels."""
    registry = CollectorRegistry()
    registry.register(Meters(read) if read else Meters())
    families = parse(generate_latest(registry).decode())
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


def value(name: str, **labels: str) -> float | None:
    """One figure of a scrape of everything; None: it is not published."""
    return scraped().get((name, frozenset(labels.items())))


@pytest.fixture
def gauges() -> Iterator[None]:
    """Gauges are set as the test says, and are not left behind."""
    yield
    for meter in metrics.ALL:
        if meter.kind == "gauge" and meter is not metrics.CONNECTIONS:
            meter.forget()


# Declarations


def test_h4_the_four_metrics_of_singletons_and_crons_have_the_names_that_were_promised() -> None:
    promised = {
        "singleton_duration_seconds": "histogram",
        "singleton_executions_total": "counter",
        "singleton_last_execution": "gauge",
        "singleton_state_errors_total": "counter",
    }
    found = {meter.name: meter for meter in metrics.ALL if not meter.name.startswith("coterie_")}
    assert {name: meter.kind for name, meter in found.items()} == promised
    assert {meter.labels for meter in found.values()} == {("singleton", "type")}


def test_h4_the_gauges_that_were_promised_are_there() -> None:
    gauges = {meter.name: meter.labels for meter in metrics.ALL if meter.kind == "gauge"}
    assert gauges["coterie_entities"] == ("type",)
    assert gauges["coterie_shards"] == ("state",)
    assert {"coterie_singletons", "coterie_runners", "coterie_runners_healthy"} <= gauges.keys()


@pytest.mark.parametrize("meter", metrics.ALL, ids=lambda meter: meter.name)
def test_a_declaration_keeps_to_the_customs(meter: Meter) -> None:
    """Names, units and labels as Prometheus wants them; no label is an id (RELIABILITY 3.3 #8)."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", meter.name)
    assert (meter.kind == "counter") == meter.name.endswith("_total")
    assert len(meter.help) > 10
    assert not meter.help.endswith(".")
    assert len(set(meter.labels)) == len(meter.labels)
    assert not {"id", "entity", "key", "runner", "message", "le", "quantile"} & set(meter.labels)
    assert list(meter.bounds) == sorted(set(meter.bounds))
    if meter.kind == "histogram" and meter is not metrics.GROUP_SIZE:
        assert meter.name.endswith("_seconds")


def test_no_name_is_declared_twice() -> None:
    assert len(OURS) == len(metrics.ALL)


# Counting


def test_a_value_on_a_bound_counts_as_within_it_and_buckets_are_cumulative() -> None:
    spread = Spread((0.1, 1.0, 10.0))
    for seen in (0.05, 0.1, 0.100001, 1.0, 99.0):
        spread.see(seen)
    assert spread.counts == [2, 2, 0, 1]
    assert spread.cumulative() == [("0.1", 2), ("1.0", 4), ("10.0", 4), ("+Inf", 5)]
    assert spread.total == pytest.approx(100.250001)


def test_what_was_seen_under_all_labels_is_added_up() -> None:
    meter = Meter("x_seconds", "histogram", "x", ("type",), bounds=(1.0, 2.0))
    assert meter.together() == [0, 0, 0]
    meter.spread("A").see(0.5)
    meter.spread("B").see(0.6)
    meter.spread("B").see(3)
    assert meter.together() == [2, 0, 1]


def test_x2_series_are_bounded_and_what_is_beyond_shares_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """RELIABILITY 3.3 #8: whatever names come, memory and scrapes stay small; nothing that was counted is lost."""
    monkeypatch.setattr(metrics, "SERIES_MOST", 10)
    counter, histogram = Meter("x_total", "counter", "x", ("a", "b")), Meter("y_seconds", "histogram", "y", ("a",))
    for number in range(1000):
        counter.of(str(number), "b").value += 1
        histogram.spread(str(number)).see(1)
    assert len(counter.series) == len(histogram.spreads) == 11
    assert counter.of("…", "…").value == 990
    assert sum(series.value for series in counter.series.values()) == 1000
    assert sum(sum(spread.counts) for spread in histogram.spreads.values()) == 1000
    assert counter.of("3", "b").value == 1, "those that were there go on"


def test_labels_that_were_not_declared_are_refused() -> None:
    with pytest.raises(AssertionError, match="has the labels"):
        metrics.CALLS.of("Account")
    with pytest.raises(AssertionError, match="has a spread"):
        metrics.CALL_DURATION.of("Account", "charge")
    with pytest.raises(AssertionError, match="stays so"):
        metrics.CALLS.forget()


# Scraping


def test_h4_a_scrape_is_read_by_prometheus_own_parser() -> None:
    """Every family has its type and its help; histograms are cumulative, and their last bucket is their count."""
    metrics.CALLS.of("Scraped", "rpc", "ok").value += 3
    metrics.CALL_DURATION.spread("Scraped", "rpc").see(0.003)
    body, content_type = text()
    assert content_type.startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in parse(body.decode())}
    for family in families.values():
        assert family.documentation, family.name
    assert families["coterie_calls"].type == "counter"
    assert families["coterie_call_duration_seconds"].type == "histogram"
    assert value("coterie_calls_total", type="Scraped", rpc="rpc", outcome="ok") == 3
    for family in families.values():
        if family.type == "histogram":
            _require_cumulative(family)


def _require_cumulative(family: Metric) -> None:
    buckets: dict[frozenset[tuple[str, str]], list[float]] = {}
    counts = {}
    for each in family.samples:
        labels = frozenset((name, text) for name, text in each.labels.items() if name != "le")
        if each.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append(each.value)
        elif each.name.endswith("_count"):
            counts[labels] = each.value
    assert buckets.keys() == counts.keys()
    for labels, found in buckets.items():
        assert found == sorted(found)
        assert found[-1] == counts[labels]


def test_h4_whoever_accepts_openmetrics_gets_it() -> None:
    body, content_type = text(f"{OPENMETRICS},text/plain;version=0.0.4;q=0.5")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    names = {family.name for family in parse_openmetrics(body.decode())}  # type: ignore[no-untyped-call]
    assert names <= {name.removesuffix("_total") for name in OURS}
    assert "coterie_fenced_writes" in names


@pytest.mark.parametrize("name", ['quo"te', "back\\slash", "new\nline", "Zürich", "…", ""], ids=ascii)
def test_any_name_of_a_program_survives_the_way(name: str) -> None:
    meter = Meter("x_total", "counter", "x", ("type",))
    meter.of(name).value = 7
    assert scraped(meter) == {("x_total", frozenset({("type", name)})): 7}


def test_what_was_counted_nowhere_yet_is_left_out_and_what_is_known_to_come_is_there() -> None:
    """A rate cannot see the first one of a series that comes with it."""
    assert scraped(Meter("x_total", "counter", "x", ("type",))) == {}
    assert value("coterie_evictions_total", reason="lease") is not None
    assert value("coterie_storage_errors_total", operation="commit", outcome="unknown") is not None


def test_a_program_may_publish_them_beside_its_own() -> None:
    registry = CollectorRegistry()
    registry.register(Meters())
    Counter("orders_total", "Orders", registry=registry)
    assert {"orders", "coterie_fenced_writes"} <= {family.name for family in registry.collect()}
    with pytest.raises(ValueError, match="Duplicated"):
        Counter("coterie_calls_total", "Mine", registry=registry)


# Sampling


def test_gauges_are_what_the_facts_say(gauges: None) -> None:
    facts = local(seats=12, running=3, waiting=4, lease_left_s=4.5, memory_bytes=1000, cpu_s=7.5)
    sample(facts, judge(cluster(local(), dead=3, unpruned={"units": 12.5})))
    assert value("coterie_seats") == 12
    assert value("coterie_calls_running") == 3
    assert value("coterie_mailbox_waiting") == 4
    assert value("coterie_lease_left_seconds") == 4.5
    assert value("coterie_ready") == 1
    assert value("coterie_cpu_seconds_total") == 7.5
    assert value("coterie_entities", type="Account") == 2
    assert value("coterie_dead_letters") == 3
    assert value("coterie_prune_overdue_seconds", table="units") == 12.5
    assert value("coterie_prune_overdue_seconds", table="kv") == 0


def test_the_cluster_s_gauges_are_its_health_s(gauges: None) -> None:
    health = judge(cluster(local("web-1"), local("web-2")))
    sample(local(), health)
    assert value("coterie_runners") == health.runners == 2
    assert value("coterie_runners_healthy") == health.healthy_runners == 2
    owned, orphaned = value("coterie_shards", state="owned"), value("coterie_shards", state="orphaned")
    assert (owned, orphaned) == (health.owned_shards, health.shards - health.owned_shards)
    assert value("coterie_singletons") == health.singletons
    assert value("coterie_health", status=health.status) == 1
    assert sum(value("coterie_health", status=each) or 0 for each in ("healthy", "degraded", "unhealthy")) == 1


def test_what_is_not_known_any_more_is_not_published(gauges: None) -> None:
    """A gauge that stands still looks like a cluster that is well."""
    sample(local(), judge(cluster(local())))
    sample(local(storage_s=None, lease_left_s=None, clock_offset_s=None, entities={}), None)
    for name in (
        "coterie_runners", "coterie_runners_healthy", "coterie_singletons", "coterie_crons", "coterie_dead_letters",
        "coterie_oldest_message_seconds", "coterie_storage_latency_seconds", "coterie_lease_left_seconds",
        "coterie_clock_offset_seconds",
    ):  # fmt: skip
        assert value(name) is None, name
    assert value("coterie_shards", state="owned") is None
    assert value("coterie_prune_overdue_seconds", table="units") is None
    assert value("coterie_entities", type="Account") == 0, "the last one has left, which is known"
