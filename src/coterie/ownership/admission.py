"""Joining a cluster: agree on shared settings, check that all runners can reach each other, register in the tables."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.kernel.durations import format_duration
from coterie.kernel.ids import Seat, ShardId
from coterie.ownership.liveness import Look, Rule
from coterie.storage.interface import SeatDeclaration
from coterie.transport.credentials import Holder, differs, require_common
from coterie.transport.identity import Member, is_apart, require_reachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from coterie.ownership.lease_thread import LeaseKeeper
    from coterie.settings import Settings
    from coterie.storage.interface import Registration, RunnerRow

_SECOND_LOOK = 1.5
"""Renewals between two looks at a runner: a live one has renewed its lease, and retaken its lock, in between."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A seat other than a shard that this program defines: a singleton, a cron.

    Args:
        fingerprint: Covers everything that two versions of a program must not mix [M8].
        takeover_delay_s: How long to wait after its holder was lost without deregistering.
    """

    seat: str
    group: str
    fingerprint: str = ""
    takeover_delay_s: float = 0.0

    @property
    def declaration(self) -> SeatDeclaration:
        """Its stored form."""
        return SeatDeclaration(self.seat, self.group, self.fingerprint)


async def agree(settings: Settings, lease_keeper: LeaseKeeper) -> None:
    """Refuse to join a cluster whose shared settings differ [INV-F6]. The first runner sets them."""
    mine = {"lease_ttl": format_duration(settings.lease_ttl), "shards": str(settings.shards)}
    stored = await lease_keeper.ask(lambda session: session.agree(mine))
    for name, value in mine.items():
        if stored[name] != value:
            raise ConfigurationError(
                problem=f"{name} is {value} here, and {stored[name]} in cluster {settings.name!r}",
                hint=f"set {name} to {stored[name]}, or use another cluster name",
            )


async def register(
    me: Registration,
    settings: Settings,
    lease_keeper: LeaseKeeper,
    definitions: Iterable[Definition],
    now_ns: Callable[[], int],
) -> None:
    """Register in the cluster, unless live runners could not reach us or we them; the lease begins."""
    view = await lease_keeper.ask(lambda session: session.view())
    mine = Member(me.name, me.address, me.host_id)
    apart = {each.id: member for each in view.runners if is_apart(mine, member := _member(each))}
    living = await _living(apart, rule(settings), lease_keeper, now_ns)
    require_reachable(mine, [apart[each] for each in living])
    strangers = {each.id: each for each in view.runners if differs(me.credentials, each.credentials)}
    living = await _living(strangers, rule(settings), lease_keeper, now_ns)
    require_common(_holder(me), [_holder(strangers[each]) for each in living])
    await lease_keeper.register(me, [*_shards(settings), *(each.declaration for each in definitions)])


def rule(settings: Settings) -> Rule:
    """The rule for when a runner is dead that was there before us."""
    pause_ns = round(_SECOND_LOOK * settings.lease_renew.total_seconds() * 1e9)
    return Rule(pause_ns=pause_ns, ttl_s=settings.lease_ttl.total_seconds())


async def _living(
    runners: Collection[str], rule: Rule, lease_keeper: LeaseKeeper, now_ns: Callable[[], int]
) -> Collection[str]:
    """One of some runners that may be alive, if any: rows that a crash has left in the tables block no one."""
    first: dict[str, Look] = {}
    while runners:
        looks = await _observe(sorted(runners), lease_keeper, at_ns=now_ns())
        first = {**looks, **first}
        lives = {each: rule.may_live(first[each], look) for each, look in looks.items()}
        if living := [each for each, answer in lives.items() if answer]:
            return living
        runners = [each for each, answer in lives.items() if answer is None]
        await asyncio.sleep(rule.pause_ns / 3e9 if runners else 0)
    return ()


async def _observe(runners: Sequence[str], lease_keeper: LeaseKeeper, *, at_ns: int) -> dict[str, Look]:
    found = await lease_keeper.ask(lambda session: session.presences(runners))
    looks = {each: Look.of(each, found, at_ns=at_ns) for each in runners}
    return {each: look for each, look in looks.items() if look is not None}


def _holder(runner: Registration) -> Holder:
    return Holder(runner.name, runner.credentials)


def _member(runner: RunnerRow) -> Member:
    return Member(runner.name, runner.address, runner.host_id)


def _shards(settings: Settings) -> list[SeatDeclaration]:
    return [
        SeatDeclaration(Seat.shard(ShardId(group, number)), group)
        for group in settings.groups
        for number in range(settings.shards)
    ]
