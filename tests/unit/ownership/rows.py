"""Runners, seats and views as the database would show them, made in one line each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AT = datetime(2025, 1, 1, tzinfo=UTC)


def runner(
    id: str,
    *,
    weight: float = 1.0,
    groups: tuple[str, ...] = ("default",),
    knows: Mapping[str, str] | None = None,
    leaving: bool = False,
) -> RunnerRow:
    return RunnerRow(
        id=id,
        name=id,
        address="127.0.0.1:1",
        host_id="here",
        groups=groups,
        weight=weight,
        knows=dict(knows or {}),
        started_at=AT,
        leaving=leaving,
    )


def seat(
    name: str,
    holder: str | None = None,
    *,
    group: str = "default",
    fingerprint: str = "",
    epoch: int = 1,
    clean: bool = True,
) -> SeatRow:
    return SeatRow(name, group, holder, epoch, fingerprint, AT, clean)


def shards(count: int, *, group: str = "default") -> list[SeatRow]:
    return [seat(f"shard:{group}:{number}", group=group) for number in range(count)]


def held(seats: Iterable[SeatRow], holders: Mapping[str, str]) -> list[SeatRow]:
    """The same seats with these holders; free where there is none."""
    return [msgspec.structs.replace(each, holder=holders.get(each.name)) for each in seats]


def view(runners: Iterable[RunnerRow], seats: Iterable[SeatRow]) -> ClusterSnapshot:
    return ClusterSnapshot(tuple(runners), tuple(seats), "stamp")
