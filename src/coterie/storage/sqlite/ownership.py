"""Who holds what, and writes in the name of a seat: a plain function each, to be run inside a transaction.

The fence is a look at the seat inside the same `BEGIN IMMEDIATE` as the write: writers take turns, so nothing can
change between the two. A lease stands in a file of its own; eviction holds that file's write lock while it
deletes the runner in the main file, so no renewal comes in between [C3, C4]. A lease without a runner means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from coterie.storage import statements

if TYPE_CHECKING:
    from collections.abc import Iterable

    import apsw

SQL = dict(statements.load(f"{__package__}.sql", "ownership.sql"))

Written = Literal["written", "fenced", "conflict"]


@dataclass(frozen=True, slots=True)
class Runner:
    """A runner as it registers: written once, never changed."""

    id: str
    name: str
    address: str = ""
    host_id: str = ""
    groups: str = "default"
    weight: float = 1.0
    version: str = ""
    knows: str = "{}"


@dataclass(frozen=True, slots=True)
class Boot:
    """The time of leases: nanoseconds since a boot of the machine, and which boot it was."""

    id: str
    now_ns: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Somebody's lease as an observer sees it."""

    counter: int
    expired: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """A runner's claim to a seat: what every fenced write must prove."""

    cluster: str
    runner: str
    seat: str
    epoch: int


def register(main: apsw.Connection, cluster: str, runner: Runner, *, now_ns: int) -> None:
    """Write the runner's row. Its lease follows in the other file."""
    fields = {name: getattr(runner, name) for name in runner.__slots__}
    main.execute(SQL["register"], {**fields, "cluster": cluster, "now_ns": now_ns})


def grant_lease(leases: apsw.Connection, cluster: str, id: str, *, boot: Boot, ttl_ns: int) -> None:
    """The first lease of a runner."""
    leases.execute(SQL["grant_lease"], _lease(cluster, id, boot, ttl_ns))


def renew(leases: apsw.Connection, cluster: str, id: str, *, boot: Boot, ttl_ns: int) -> int | None:
    """Prolong a lease; its new counter. None: there is none, the runner was evicted."""
    for (counter,) in leases.execute(SQL["renew_lease"], _lease(cluster, id, boot, ttl_ns)):
        return int(counter)
    return None


def observe(leases: apsw.Connection, cluster: str, *, boot: Boot) -> dict[str, Lease]:
    """Everybody's lease."""
    bindings = {"cluster": cluster, "boot_id": boot.id, "now_boot_ns": boot.now_ns}
    rows = leases.execute(SQL["leases"], bindings)
    return {str(runner): Lease(int(counter), bool(gone)) for runner, counter, gone in rows}


def is_registered(main: apsw.Connection, cluster: str, id: str) -> bool:
    """Whether the runner's row is there."""
    return bool(main.execute(SQL["runner"], {"cluster": cluster, "id": id}).get)


def evict(
    leases: apsw.Connection,
    main: apsw.Connection,
    cluster: str,
    victim: str,
    *,
    counter: int,
    expired: bool,
    boot: Boot,
) -> bool:
    """Delete a runner that has not renewed since it was seen; False: spared.

    `leases` is inside its write transaction, `main` is not: the runner's delete commits first, so that a crash
    in between leaves a lease without a runner, never a runner without a lease that can be judged.
    """
    bindings = {"cluster": cluster, "id": victim, "counter": counter, "expired": expired}
    still = leases.execute(SQL["still_lease"], {**bindings, "boot_id": boot.id, "now_boot_ns": boot.now_ns}).get
    if not still:
        return False
    unregister(main, cluster, victim)
    leases.execute(SQL["end_lease"], {"cluster": cluster, "id": victim})
    return True


def unregister(main: apsw.Connection, cluster: str, id: str) -> None:
    """Delete the runner; its seats are free."""
    main.execute(SQL["unregister"], {"cluster": cluster, "id": id})


def declare(main: apsw.Connection, cluster: str, names: Iterable[str], *, group: str, now_ns: int) -> None:
    """Make seats known; those that exist stay as they are."""
    for name in sorted(names):
        bindings = {"cluster": cluster, "name": name, "group": group, "fingerprint": "", "now_ns": now_ns}
        main.execute(SQL["declare"], bindings)


def acquire(main: apsw.Connection, cluster: str, id: str, names: Iterable[str]) -> dict[str, int]:
    """Take the free ones of these seats; their new epochs. Nothing for an evicted runner."""
    granted: dict[str, int] = {}
    for name in sorted(names):
        for (epoch,) in main.execute(SQL["acquire"], {"cluster": cluster, "id": id, "name": name}):
            granted[name] = epoch
    return granted


def release(main: apsw.Connection, claim: Claim) -> bool:
    """Give a seat back; False: it was not held any more."""
    bindings = {"cluster": claim.cluster, "id": claim.runner, "name": claim.seat, "epoch": claim.epoch}
    return bool(main.execute(SQL["release"], bindings).fetchall())


def holdings(main: apsw.Connection, cluster: str, id: str) -> dict[str, int]:
    """The seats of a runner and their epochs."""
    rows = main.execute(SQL["holdings"], {"cluster": cluster, "id": id})
    return {str(name): int(epoch) for name, epoch in rows}


def save_state(main: apsw.Connection, claim: Claim, *, key: str, value: bytes, version: int) -> Written:
    """Write the state that follows `version` (0: the first), under the fence."""
    if not _held(main, claim):
        return "fenced"
    bindings = {"cluster": claim.cluster, "seat": claim.seat, "epoch": claim.epoch, "key": key, "value": value}
    if version == 0:
        main.execute(SQL["insert_state"], bindings)
    else:
        main.execute(SQL["update_state"], {**bindings, "version": version})
    return "written" if main.changes() == 1 else "conflict"


def claim_state(main: apsw.Connection, claim: Claim, *, key: str) -> tuple[bytes | None, int] | None:
    """The state for a new holder and its version, (None, 0) if there is none yet; None: the seat is not held."""
    if not _held(main, claim):
        return None
    bindings = {"cluster": claim.cluster, "seat": claim.seat, "epoch": claim.epoch, "key": key}
    for value, version in main.execute(SQL["claim_state"], bindings):
        return value, version
    return None, 0


def seats_without_runner(main: apsw.Connection, cluster: str) -> list[tuple[str, str]]:
    """Seats held by nobody that exists. There must be none [C4]."""
    rows = main.execute(SQL["seats_without_runner"], {"cluster": cluster})
    return [(str(name), str(holder)) for name, holder in rows]


def _held(main: apsw.Connection, claim: Claim) -> bool:
    bindings = {"cluster": claim.cluster, "seat": claim.seat, "id": claim.runner, "epoch": claim.epoch}
    return bool(main.execute(SQL["held"], bindings).get)


def _lease(cluster: str, id: str, boot: Boot, ttl_ns: int) -> dict[str, object]:
    return {"cluster": cluster, "id": id, "boot_id": boot.id, "expires_boot_ns": boot.now_ns + ttl_ns}
