"""Dashboard, alert rules and documentation speak of metrics that exist, by labels that they have (H4)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # only here

from coterie.kernel import metrics
from tests.unit.observe.metrics_page import PAGE, parts, table

DEPLOY = Path(__file__).parents[3] / "deploy"
METERS = {meter.name: meter for meter in metrics.ALL}
FROM_PROMETHEUS = {"instance", "job"}
"""Labels that a scrape adds."""

NAME = re.compile(r"\b((?:coterie|singleton)_[a-z0-9_]+)(?:\{([^}]*)\})?")
LABEL = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"')
GROUPING = re.compile(r"\bby\s*\(([^)]*)\)")
SHOWN = re.compile(r"\$labels\.([a-z_]+)|\{\{\s*([a-z_]+)\s*\}\}")
WORDS = {
    ("coterie_health", "status"): {"healthy", "degraded", "unhealthy"},
    ("coterie_shards", "state"): {"owned", "orphaned"},
    ("coterie_thread_bodies", "state"): {"busy", "waiting", "stubborn"},
    ("coterie_calls_total", "outcome"): {"ok", "declared", "failed"},
    ("coterie_messages_total", "outcome"): {"ok", "declared", "retried", "dead"},
    ("coterie_cron_ticks_total", "outcome"): {"ran", "failed", "skipped"},
    ("coterie_calls_refused_total", "reason"): {"not_mine"},
}
"""Of labels by which something is picked: the values that the code has."""


def declared(name: str) -> tuple[str, set[str]]:
    """The metric that a series belongs to, and the labels that it has."""
    if name in METERS and METERS[name].kind != "histogram":
        return name, set(METERS[name].labels)
    base, _, part = name.rpartition("_")
    assert base in METERS, f"{name} is no metric of ours"
    assert METERS[base].kind == "histogram", f"{name}: {base} is no histogram"
    assert part in ("bucket", "sum", "count"), name
    return base, {*METERS[base].labels, *(["le"] if part == "bucket" else [])}


def require_real(expression: str, shown: str = "") -> set[str]:
    """Check an expression, and what is shown of its result; the metrics that it uses."""
    used, known = set(), set(FROM_PROMETHEUS)
    for name, selector in NAME.findall(expression):
        meter, labels = declared(name)
        used.add(meter)
        known |= labels
        for label in LABEL.findall(selector):
            assert label in labels | FROM_PROMETHEUS, f"{name} has no label {label}: {expression}"
        for label, value in re.findall(r'([a-z_]+)!?="([^"$]*)"', selector):
            assert value in WORDS[meter, label], f"{label} of {name} is never {value}"
    assert used, f"no metric in {expression}"
    groups = GROUPING.findall(expression)
    for label in (each.strip() for group in groups for each in group.split(",")):
        assert label in known, f"{label} in {expression}"
    left = {each.strip() for group in groups for each in group.split(",")} if groups else known
    for label in (one or other for one, other in SHOWN.findall(shown)):
        assert label in left, f"{label} is shown, and not left by {expression}"
    return used


def rules() -> list[Any]:
    content = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def targets() -> list[tuple[str, str]]:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    return [(each["expr"], each["legendFormat"]) for panel in panels for each in panel.get("targets", ())]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_rule_speaks_of_what_exists(rule: Any) -> None:
    require_real(rule["expr"], " ".join(rule["annotations"].values()))
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}


def test_alert_rules_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_the_dashboard_speaks_of_what_exists_and_shows_all_of_it() -> None:
    used = set()
    for expression, legend in targets():
        used |= require_real(expression, legend)
    assert not METERS.keys() - used


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rate(coterie_callz_total[5m])", "no metric"),
        ("coterie_calls_total_bucket", "no histogram"),
        ("coterie_call_duration_seconds", "no metric"),
        ('coterie_calls_total{method="x"}', "no label method"),
        ('coterie_calls_total{outcome="fine"}', "never fine"),
        ("sum by (entity) (coterie_calls_total)", "entity in"),
        ("sum(up)", "no metric"),
    ],
)
def test_what_does_not_exist_would_be_found(expression: str, problem: str) -> None:
    with pytest.raises(AssertionError, match=problem):
        require_real(expression)


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in panels):
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_the_page_has_the_table_of_all_metrics() -> None:
    _, found, _ = parts(PAGE.read_text())
    assert found == table(), "docs/metrics.md is out of date: python -m tests.unit.observe.metrics_page"
