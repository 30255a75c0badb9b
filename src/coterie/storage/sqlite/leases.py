"""Leases, in a file of their own so that renewing one waits for nothing but other renewals [C3]: a function each.

Their times are those of the boot clock, which only this boot of this machine understands. A lease without a runner in
the main file means nothing; a runner without a lease has run out, at counter 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.storage import statements

if TYPE_CHECKING:
    from collections.abc import Container

    import apsw

LEASES_SQL = dict(statements.load(f"{__package__}.sql", "leases.sql"))

_LAST_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Boot:
    """Whose leases, which boot of the machine it is, and how long it is up."""

    cluster: str
    id: str
    now_ns: int

    def bindings(self, **more: object) -> dict[str, object]:
        """Parameters of a statement."""
        return {"cluster": self.cluster, "boot_id": self.id, "now_boot_ns": self.now_ns, **more}

    def expires_boot_ns(self, ttl_s: float) -> int:
        """When a lease ends that is granted now."""
        return min(self.now_ns + round(ttl_s * 1e9), _LAST_NS)


@dataclass(frozen=True, slots=True)
class Lease:
    """Somebody's lease."""

    counter: int
    expired: bool
    leaving: bool
    other_boot: bool = False
    """Whether its last renewal was during another boot of this machine: its process did not survive that."""


NONE = Lease(0, expired=True, leaving=False)
"""What a runner without a lease has."""


def grant(leases: apsw.Connection, boot: Boot, runner: str, *, ttl_s: float) -> None:
    """The first lease of a runner."""
    leases.execute(LEASES_SQL["grant"], boot.bindings(id=runner, expires_boot_ns=boot.expires_boot_ns(ttl_s)))


def renew(leases: apsw.Connection, boot: Boot, runner: str, *, ttl_s: float) -> Lease | None:
    """Prolong a lease; None: there is none."""
    bindings = boot.bindings(id=runner, expires_boot_ns=boot.expires_boot_ns(ttl_s))
    for counter, leaving in leases.execute(LEASES_SQL["renew"], bindings):
        return Lease(counter, expired=False, leaving=bool(leaving))
    return None


def read(leases: apsw.Connection, boot: Boot) -> dict[str, Lease]:
    """Everybody's lease."""
    rows = leases.execute(LEASES_SQL["all"], boot.bindings())
    return {
        runner: Lease(counter, bool(expired), bool(leaving), bool(other_boot))
        for runner, counter, expired, leaving, other_boot in rows
    }


def is_still(leases: apsw.Connection, boot: Boot, runner: str, *, counter: int, expired: bool) -> bool:
    """Whether a runner has not renewed since `counter` was seen and, if so asked, its lease has run out."""
    lease = read(leases, boot).get(runner, NONE)
    return lease.counter == counter and (lease.expired or not expired)


def leave(leases: apsw.Connection, boot: Boot, runner: str) -> bool:
    """Mark a runner as leaving; False: it has no lease."""
    return bool(leases.execute(LEASES_SQL["leave"], boot.bindings(id=runner)).fetchall())


def end(leases: apsw.Connection, boot: Boot, runner: str) -> None:
    """Forget a lease."""
    leases.execute(LEASES_SQL["end"], boot.bindings(id=runner))


def sweep(leases: apsw.Connection, boot: Boot, registered: Container[str]) -> None:
    """Forget the leases of runners that are none: a crash between the commits to two files leaves them."""
    for runner in read(leases, boot):
        if runner not in registered:
            end(leases, boot, runner)
