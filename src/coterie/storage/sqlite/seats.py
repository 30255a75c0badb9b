"""Runners and seats in the main file, and leases in their own: plain functions to be run inside a transaction.

Leases have their own file so that a renewal waits only for other renewals [C3]. Their times are those of the boot
clock, which are valid only during this boot of this machine. A lease without a runner in the main file has no effect; a
runner without a lease has expired, at counter 0.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.storage import statements
from coterie.storage.interface import ClusterSnapshot, Grant, RunnerRow, SeatRow
from coterie.storage.sqlite.store import to_fields, to_struct
from coterie.storage.unreadable_rows import checked_runner, checked_seat, readable

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    import apsw

    from coterie.storage.interface import Registration, SeatDeclaration
    from coterie.storage.sqlite.store import Scope


LEASES_SQL = dict(statements.load(f"{__package__}.sql", "leases.sql"))

_LAST_NS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Boot:
    """The cluster, the boot of the machine, and its uptime."""

    cluster: str
    id: str
    now_ns: int

    def bindings(self, **more: object) -> dict[str, object]:
        """Parameters of a statement."""
        return {"cluster": self.cluster, "boot_id": self.id, "now_boot_ns": self.now_ns, **more}

    def expires_boot_ns(self, ttl_s: float) -> int:
        """When a lease granted now expires."""
        return min(self.now_ns + round(ttl_s * 1e9), _LAST_NS)


@dataclass(frozen=True, slots=True)
class Lease:
    """A runner's lease."""

    counter: int
    expired: bool
    leaving: bool
    other_boot: bool = False
    """Whether its last renewal was during another boot of this machine: its process did not survive that."""


NONE = Lease(0, expired=True, leaving=False)
"""The lease of a runner that has none."""


def grant(leases: apsw.Connection, boot: Boot, runner: str, *, ttl_s: float) -> None:
    """Grant a runner's first lease."""
    leases.execute(LEASES_SQL["grant"], boot.bindings(id=runner, expires_boot_ns=boot.expires_boot_ns(ttl_s)))


def renew(leases: apsw.Connection, boot: Boot, runner: str, *, ttl_s: float) -> Lease | None:
    """Renew a lease; None: there is none."""
    bindings = boot.bindings(id=runner, expires_boot_ns=boot.expires_boot_ns(ttl_s))
    for counter, leaving in leases.execute(LEASES_SQL["renew"], bindings):
        return Lease(counter, expired=False, leaving=bool(leaving))
    return None


def read(leases: apsw.Connection, boot: Boot) -> dict[str, Lease]:
    """Read all leases."""
    rows = leases.execute(LEASES_SQL["all"], boot.bindings())
    return {
        runner: Lease(counter, bool(expired), bool(leaving), bool(other_boot))
        for runner, counter, expired, leaving, other_boot in rows
    }


def is_still(leases: apsw.Connection, boot: Boot, runner: str, *, counter: int, expired: bool) -> bool:
    """Whether a runner has not renewed since `counter` was read and, if `expired`, its lease has expired."""
    lease = read(leases, boot).get(runner, NONE)
    return lease.counter == counter and (lease.expired or not expired)


def leave(leases: apsw.Connection, boot: Boot, runner: str) -> bool:
    """Mark a runner as leaving. Returns False if it has no lease."""
    return bool(leases.execute(LEASES_SQL["leave"], boot.bindings(id=runner)).fetchall())


def end(leases: apsw.Connection, boot: Boot, runner: str) -> None:
    """Delete a lease."""
    leases.execute(LEASES_SQL["end"], boot.bindings(id=runner))


def sweep(leases: apsw.Connection, boot: Boot, registered: Container[str]) -> None:
    """Delete leases without a runner, which a crash between the commits to the two files leaves."""
    for runner in read(leases, boot):
        if runner not in registered:
            end(leases, boot, runner)


SQL = dict(statements.load(f"{__package__}.sql", "ownership.sql"))

_GROUPS = msgspec.json.Decoder(tuple[str, ...])
_KNOWS = msgspec.json.Decoder(dict[str, str])


def register(main: apsw.Connection, scope: Scope, me: Registration) -> None:
    """Write a runner's row. Its lease is in the other file."""
    fields = msgspec.structs.asdict(me)
    fields |= {name: msgspec.json.encode(fields[name]).decode() for name in ("groups", "knows")}
    main.execute(SQL["register"], scope.bindings(**fields))


def learn(main: apsw.Connection, scope: Scope, runner: str, knows: Mapping[str, str]) -> bool:
    """Add definitions to those a runner's program knows. Returns False if the runner does not exist."""
    added = scope.bindings(id=runner, knows=msgspec.json.encode(knows).decode())
    return bool(main.execute(SQL["learn"], added).fetchall())


def unregister(main: apsw.Connection, scope: Scope, runner: str) -> bool:
    """Delete a runner, which frees its seats. Returns False if it does not exist."""
    is_there = bool(main.execute(SQL["unregister"], scope.bindings(id=runner)).fetchall())
    if is_there:
        main.execute(SQL["date_losses"], scope.bindings())
    return is_there


def registered(main: apsw.Connection, scope: Scope) -> list[str]:
    """The incarnations of all runners, in order."""
    return [runner for (runner,) in main.execute(SQL["ids"], scope.bindings())]


def runners_of(main: apsw.Connection, process: str) -> list[tuple[str, str]]:
    """The runners of a process, of all clusters in this file: cluster and incarnation of each."""
    return [(cluster, runner) for cluster, runner in main.execute(SQL["runners_of"], {"process": process})]


def agree(main: apsw.Connection, scope: Scope, values: Mapping[str, str]) -> None:
    """Store the values that are not stored yet."""
    main.executemany(SQL["agree"], [scope.bindings(name=name, value=value) for name, value in values.items()])


def agreements(main: apsw.Connection, scope: Scope) -> dict[str, str]:
    """Read the stored values."""
    return dict(main.execute(SQL["agreements"], scope.bindings()))


def undeclared(main: apsw.Connection, scope: Scope, seats: Iterable[SeatDeclaration]) -> list[SeatDeclaration]:
    """The seats that are not declared, or not with this definition."""
    known = dict(main.execute(SQL["fingerprints"], scope.bindings()))
    return [seat for seat in seats if known.get(seat.name) != seat.fingerprint]


def declare(main: apsw.Connection, scope: Scope, seats: Iterable[SeatDeclaration]) -> None:
    """Declare seats, and make their definitions current where that is due [M8]."""
    rows = [scope.bindings(name=each.name, group=each.group, fingerprint=each.fingerprint) for each in seats]
    main.executemany(SQL["declare"], rows)
    defined = [row for row in rows if row["fingerprint"]]
    if not defined:
        return
    # Read once for all of them: a lookup in SQL for each seat would cost the square of their number.
    current = dict(main.execute(SQL["fingerprints"], scope.bindings()))
    known = [_KNOWS.decode(knows) for (knows,) in main.execute(SQL["known"], scope.bindings())]
    for row in defined:
        name = str(row["name"])
        if current[name] != row["fingerprint"]:
            in_use = any(each.get(name) == current[name] for each in known)
            main.execute(SQL["redefine"], {**row, "in_use": in_use})
        main.execute(SQL["remember"], row)


def acquire(main: apsw.Connection, scope: Scope, runner: str, names: Iterable[str]) -> list[Grant]:
    """Acquire those of these seats that are free; an evicted runner gets none."""
    granted = []
    for name in sorted(set(names)):
        for epoch, clean in main.execute(SQL["acquire"], scope.bindings(id=runner, name=name)):
            granted.append(Grant(name, epoch, bool(clean)))
    return granted


def release(main: apsw.Connection, scope: Scope, runner: str, *, name: str, epoch: int) -> bool:
    """Release a seat. Returns False if it was no longer held."""
    return bool(main.execute(SQL["release"], scope.bindings(id=runner, name=name, epoch=epoch)).fetchall())


def holdings(main: apsw.Connection, scope: Scope, runner: str) -> str:
    """The `checksum` of the seats of a runner and their epochs."""
    ((lines,),) = main.execute(SQL["holdings"], scope.bindings(id=runner))
    return hashlib.sha256(lines.encode()).hexdigest()


def stamp(main: apsw.Connection, scope: Scope) -> str:
    """A text that changes whenever any seat changes."""
    ((count, epochs, held, definitions),) = main.execute(SQL["changes"], scope.bindings())
    return f"{count}.{epochs}.{held}.{hashlib.sha256(definitions.encode()).hexdigest()[:16]}"


def view(main: apsw.Connection, scope: Scope, leases: Mapping[str, Lease]) -> ClusterSnapshot:
    """Read all runners and seats."""
    leaving = {runner for runner, lease in leases.items() if lease.leaving}
    runners = readable(
        main.execute(SQL["runners"], scope.bindings()),
        lambda row: checked_runner(_runner(row, leaving=row[0] in leaving)),
        table="runners",
        key=itemgetter(0),
        is_whole=True,
    )
    ((rows,),) = main.execute(SQL["seats"], scope.bindings())
    seats = readable(
        msgspec.json.decode(rows),
        lambda row: checked_seat(to_struct(SeatRow, row)),
        table="seats",
        key=itemgetter(0),
        is_whole=True,
    )
    return ClusterSnapshot(tuple(runners), tuple(seats), stamp(main, scope))


def note(
    main: apsw.Connection,
    scope: Scope,
    kind: str,
    runner: str,
    seats: Mapping[str | None, int | None],
    *,
    about: str = "",
) -> None:
    """Write an audit row about seats, or with the seat None about the runner (setting `audit`)."""
    rows = [
        scope.bindings(kind=kind, runner=runner, seat=seat, epoch=epoch, note=about) for seat, epoch in seats.items()
    ]
    main.executemany(SQL["note"], rows)


def _runner(row: Sequence[Any], *, leaving: bool) -> RunnerRow:
    fields = to_fields(RunnerRow, (*row, leaving))
    return RunnerRow(**fields | {"groups": _GROUPS.decode(fields["groups"]), "knows": _KNOWS.decode(fields["knows"])})
