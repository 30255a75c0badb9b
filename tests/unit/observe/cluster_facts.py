"""Facts about clusters that are well, or not in one respect: what the judge's tests begin with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from coterie.cron.api import CronInfo
from coterie.kernel.ids import Seat
from coterie.observe.facts import ClusterFacts, LocalFacts, Overdue, QueueFacts
from coterie.singletons.api import SingletonInfo
from coterie.storage.contracts.jobs import QueueLimits
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow

NOW = datetime(2026, 3, 27, 20, 48, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    """So long ago."""
    return NOW - timedelta(seconds=seconds)


def local(name: str = "web-1", **more: Any) -> LocalFacts:
    """A runner that is well."""
    given: dict[str, Any] = {
        "runner": f"id-{name}",
        "name": name,
        "up_s": 3600.0,
        "is_ready": True,
        "storage_s": 0.002,
        "clock_offset_s": 0.01,
        "lease_left_s": 4.0,
        "loop_lag_s": 0.001,
        "entities": {"Account": 2},
    }
    return LocalFacts(**given | more)


def row(name: str = "web-1", **more: Any) -> RunnerRow:
    """A runner, as it is registered."""
    given: dict[str, Any] = {"address": "127.0.0.1:1", "host_id": "", "groups": ("default",), "started_at": ago(3600)}
    return RunnerRow(id=f"id-{name}", name=name, **given | more)


def seat(name: str, holder: str | None = "web-1", *, group: str = "default", epoch: int = 17) -> SeatRow:
    """A seat, by its whole name, and the name of who holds it."""
    held = None if holder is None else f"id-{holder}"
    return SeatRow(name, group, held, epoch, "", ago(9999), clean=True)


def shards(*numbers: int, holder: str | None = "web-1", group: str = "default") -> list[SeatRow]:
    """Shards of a group."""
    return [seat(f"shard:{group}:{number}", holder, group=group) for number in numbers]


def singleton(name: str = "importer", **more: Any) -> SingletonInfo:
    """A singleton that is well, led by web-1."""
    given: dict[str, Any] = {
        "group": "default",
        "leader": "web-1",
        "epoch": 17,
        "since_at": ago(900),
        "last_run_at": ago(900),
        "run_count": 1,
        "last_error": None,
        "last_error_at": None,
        "last_heartbeat_at": ago(3),
        "alive_at": ago(3),
        "note": "",
        "done": None,
        "total": None,
        "expected_interval": timedelta(seconds=30),
        "problem": "",
    }
    return SingletonInfo(name=name, **given | more)


def cron(name: str = "nightly", **more: Any) -> CronInfo:
    """A cron that is well, held by web-1."""
    given: dict[str, Any] = {
        "schedule": "0 3 * * *",
        "timezone": "UTC",
        "explained": "",
        "group": "default",
        "runner": "web-1",
        "epoch": 4,
        "next_at": NOW + timedelta(hours=6),
        "paused_at": None,
        "last_run_at": ago(7200),
        "run_count": 9,
        "last_error": None,
        "last_error_at": None,
        "failures": 0,
        "running": 0,
        "last_heartbeat_at": None,
        "latest": None,
        "problem": "",
    }
    return CronInfo(name=name, **given | more)


def overdue(late_s: float, *, shard: int = 1) -> Overdue:
    """A message that waits."""
    return Overdue(id=f"id-{shard}", what="Account/alice.charge", seat=f"shard:default:{shard}", late_s=late_s)


def queue(name: str = "emails", **more: Any) -> QueueFacts:
    """A queue that is well, with the limit of 20 jobs at once."""
    given: dict[str, Any] = {"group": "default", "seats": (f"queue:{name}",), "limits": QueueLimits(concurrency=20)}
    return QueueFacts(name=name, **given | more)


def cluster(
    *runners: LocalFacts | None, rows: list[RunnerRow] | None = None, seats: list[SeatRow] | None = None, **more: Any
) -> ClusterFacts:
    """A cluster: one healthy runner that holds four shards, if nothing else is said.

    Singletons and crons that are given get their seats, held by who leads them.
    """
    told = runners or (local(),)
    rows = [row(each.name) for each in told if each is not None] if rows is None else rows
    held = [
        *(seat(Seat.singleton(each.name), each.leader, group=each.group) for each in more.get("singletons", ())),
        *(seat(Seat.cron(each.name), each.runner, group=each.group) for each in more.get("crons", ())),
    ]
    seats = shards(1, 2, 3, 4) if seats is None else seats
    facts = dict(zip((each.id for each in rows), told, strict=False))
    return ClusterFacts(now=NOW, view=ClusterSnapshot(tuple(rows), (*seats, *held), ""), runners=facts, **more)
