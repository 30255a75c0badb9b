"""Calls of a type that fail in a row: counted since the last success, at no cost for what succeeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coterie.entities.host.defects import Defects, DefectStreak
from coterie.entities.rpc import RpcMetrics


@pytest.fixture
def counted() -> RpcMetrics:
    """Of a type of its own: meters live as long as the process."""
    return RpcMetrics("Fragile", "touch", persisted=True)


def defects_of(counted: RpcMetrics) -> Defects:
    entity_type: Any = SimpleNamespace(rpcs={"touch": SimpleNamespace(counted=counted)})
    return Defects(entity_type)


def test_failures_are_counted_from_the_first_to_the_last_with_its_error(counted: RpcMetrics) -> None:
    defects = defects_of(counted)
    assert defects.streak(now_s=5.0) is None
    defects.record(ValueError("secret"), now_s=10.0)
    defects.record(KeyError("secret"), now_s=12.0)
    assert defects.streak(now_s=15.0) == DefectStreak(2, "KeyError", for_s=5.0, ago_s=3.0, is_first=True)


@pytest.mark.parametrize("success", ["ok", "declared", "done", "done_declared"])
def test_a_success_ends_it_and_is_remembered(counted: RpcMetrics, success: str) -> None:
    defects = defects_of(counted)
    defects.record(ValueError(), now_s=10.0)
    getattr(counted, success).value += 1
    assert defects.streak(now_s=11.0) is None
    defects.record(ValueError(), now_s=20.0)
    assert defects.streak(now_s=21.0) == DefectStreak(1, "ValueError", for_s=1.0, ago_s=1.0, is_first=False)


def test_a_success_between_two_failures_is_seen_although_nobody_has_looked(counted: RpcMetrics) -> None:
    defects = defects_of(counted)
    defects.record(ValueError(), now_s=10.0)
    counted.ok.value += 1
    defects.record(ValueError(), now_s=20.0)
    streak = defects.streak(now_s=20.0)
    assert streak is not None
    assert streak.calls == 1


def test_successes_of_an_earlier_runner_of_this_process_are_not_its_own(counted: RpcMetrics) -> None:
    counted.ok.value += 1
    defects = defects_of(counted)
    defects.record(ValueError(), now_s=10.0)
    streak = defects.streak(now_s=10.0)
    assert streak is not None
    assert streak.is_first
