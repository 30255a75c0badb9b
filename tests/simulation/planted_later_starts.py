"""Planted bugs of runs that begin later, found by the workload of later starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie.storage.sqlite import unit_writes
from tests.simulation.workloads import later_starts as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


def _swapped(name: str, old: str, new: str) -> AbstractContextManager[Any]:
    assert old in unit_writes.SQL[name], f"{old!r} is no longer in {name}: bring the plant up to date"
    return patch.dict(unit_writes.SQL, {name: unit_writes.SQL[name].replace(old, new)})


def _not_put_off() -> AbstractContextManager[Any]:
    return _swapped("push_start", "wake_at_ns = min(:at_ns, ifnull(latest_at_ns, :at_ns))", "wake_at_ns = wake_at_ns")


def _next_life_at_once() -> AbstractContextManager[Any]:
    return _swapped("begin_kept", "wake_at_ns = next_at_ns", "wake_at_ns = :now_ns")


def _kept_by_the_first() -> AbstractContextManager[Any]:
    return _swapped("keep_start", "next_payload = :payload", "next_payload = ifnull(next_payload, :payload)")


PLANTED: tuple[Planted, ...] = (
    ("a start that replaces the payload and leaves the time", _not_put_off, workload.main, ("W14",)),
    ("a next life that begins with the end of the last one", _next_life_at_once, workload.main, ("W14",)),
    ("a next life that keeps its first payload", _kept_by_the_first, workload.main, ("W14",)),
)
SAMPLE = {"a start that replaces the payload and leaves the time"}
