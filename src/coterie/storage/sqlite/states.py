"""State under the fence: plain functions to be run inside a transaction.

The fence is a look at the seat inside the same `BEGIN IMMEDIATE` as the write: writers take turns, so nothing can
change between the two [C1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from coterie.storage import statements
from coterie.storage.interface import StateLoaded
from coterie.storage.sqlite import seats

if TYPE_CHECKING:
    from collections.abc import Collection

    import apsw

    from coterie.storage.interface import Claim, StateSave, Written
    from coterie.storage.messages import StateChange
    from coterie.storage.sqlite.kv import Scope

SQL = dict(statements.load(f"{__package__}.sql", "states.sql"))

_HELD = msgspec.json.Decoder(dict[str, tuple[str, int]])


def held(connection: apsw.Connection, cluster: str, claim: Claim) -> bool:
    """Whether the seat is held at this epoch."""
    return bool(connection.execute(SQL["held"], _bindings(cluster, claim)).get)


def all_held(connection: apsw.Connection, cluster: str, claims: Collection[Claim]) -> set[Claim]:
    """Those that are held: writers take turns, so one look does for the whole transaction."""
    names = {"cluster": cluster, "seats": msgspec.json.encode([claim.seat for claim in claims]).decode()}
    found = _HELD.decode(connection.execute(SQL["all_held"], names).get)
    return {claim for claim in claims if found.get(claim.seat) == (claim.runner, claim.epoch)}


def proven(connection: apsw.Connection, scope: Scope, claim: Claim, *, about: str, audit: bool) -> bool:
    """Whether the seat is held at this epoch; if not, that is noted."""
    if held(connection, scope.cluster, claim):
        return True
    note_refusal(connection, scope, claim, about=about, audit=audit)
    return False


def note_refusal(connection: apsw.Connection, scope: Scope, claim: Claim, *, about: str, audit: bool) -> None:
    """Write down what the fence refused (setting `audit`)."""
    if audit:
        seats.note(connection, scope, "refused", claim.runner, {claim.seat: claim.epoch}, about=about)


def save(connection: apsw.Connection, scope: Scope, write: StateSave, *, audit: bool = False) -> Written:
    """Write the state that follows a version (0: the first)."""
    if not proven(connection, scope, write.claim, about=write.key, audit=audit):
        return "fenced"
    return "written" if change(connection, scope.cluster, write.claim, write) else "conflict"


def change(connection: apsw.Connection, cluster: str, claim: Claim, state: StateSave | StateChange) -> bool:
    """Write the state that follows a version, or delete it; False: another version is there. Not fenced."""
    if state.value is None and not state.version:
        return fits(connection, cluster, claim, state)
    name = "delete" if state.value is None else "update" if state.version else "insert"
    connection.execute(SQL[name], row(cluster, claim, state))
    return connection.changes() == 1


def row(cluster: str, claim: Claim, state: StateSave | StateChange) -> dict[str, Any]:
    """The parameters of what changes a state."""
    return _bindings(cluster, claim) | {"key": state.key, "value": state.value, "version": state.version}


def fits(connection: apsw.Connection, cluster: str, claim: Claim, state: StateSave | StateChange) -> bool:
    """Whether a state would follow the version that is there."""
    for version, epoch in connection.execute(SQL["version"], {"cluster": cluster, "key": state.key}):
        return bool(version == state.version and epoch <= claim.epoch)
    return state.version == 0


def is_there(connection: apsw.Connection, cluster: str, claim: Claim, state: StateChange) -> bool:
    """Whether an earlier try of the same change, whose outcome was unknown, has happened [0.6]."""
    for version, epoch, value in connection.execute(SQL["current"], {"cluster": cluster, "key": state.key}):
        return bool(version == state.version + 1 and epoch == claim.epoch and value == state.value)
    return state.value is None


def differs(connection: apsw.Connection, cluster: str, state: StateChange) -> bool:
    """Whether another change was made in the place of this one."""
    current = connection.execute(SQL["current"], {"cluster": cluster, "key": state.key}).fetchall()
    return any(version == state.version + 1 and value != state.value for version, _, value in current)


def load(connection: apsw.Connection, scope: Scope, claim: Claim, key: str) -> StateLoaded | None:
    """The state for a new holder, whose epoch marks the row; None: the seat is not held."""
    if not held(connection, scope.cluster, claim):
        return None
    names = _bindings(scope.cluster, claim) | {"key": key, "now_ns": scope.now_ns}
    for value, version, expired in connection.execute(SQL["claim"], names):
        return StateLoaded(value, version, bool(expired))
    return StateLoaded(None, 0)


def _bindings(cluster: str, claim: Claim) -> dict[str, Any]:
    return {"cluster": cluster, "runner": claim.runner, "seat": claim.seat, "epoch": claim.epoch}
