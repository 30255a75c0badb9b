"""Joining a cluster: agree on what all must share, see that everybody can reach everybody, appear in the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.kernel.addresses import Seat, ShardId
from coterie.kernel.durations import format_duration
from coterie.storage.interface import Declaration
from coterie.transport.identity import Member, require_reachable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.ownership.keeping import Keeping
    from coterie.settings import Settings
    from coterie.storage.interface import Registration


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A seat other than a shard that this program knows: a singleton, a cron.

    Args:
        fingerprint: Of everything about it that two versions of a program must not mix [M8].
        takeover_delay_s: How long to wait after its holder was lost without a farewell.
    """

    seat: str
    group: str
    fingerprint: str = ""
    takeover_delay_s: float = 0.0

    @property
    def declaration(self) -> Declaration:
        """As it is stored."""
        return Declaration(self.seat, self.group, self.fingerprint)


async def agree(settings: Settings, keeping: Keeping) -> None:
    """Refuse to join a cluster whose shared settings are others [INV-F6]. The first one decides."""
    mine = {"lease_ttl": format_duration(settings.lease_ttl), "shards": str(settings.shards)}
    stored = await keeping.ask(lambda session: session.agree(mine))
    for name, value in mine.items():
        if stored[name] != value:
            raise ConfigurationError(
                problem=f"{name} is {value} here, and {stored[name]} in cluster {settings.name!r}",
                hint=f"set {name} to {stored[name]}, or use another cluster name",
            )


async def register(me: Registration, settings: Settings, keeping: Keeping, definitions: Iterable[Definition]) -> None:
    """Appear in the cluster, unless others could not reach us or we not them; the lease begins."""
    view = await keeping.ask(lambda session: session.view())
    others = [Member(other.name, other.address, other.host_id) for other in view.runners]
    require_reachable(Member(me.name, me.address, me.host_id), others)
    await keeping.register(me, [*_shards(settings), *(each.declaration for each in definitions)])


def _shards(settings: Settings) -> list[Declaration]:
    return [
        Declaration(Seat.shard(ShardId(group, number)), group)
        for group in settings.groups
        for number in range(settings.shards)
    ]
