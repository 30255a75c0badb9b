"""Entity state and execution records in a SQLite file: plain functions to be run inside a transaction, and the stores.

The fence reads the seat inside the same `BEGIN IMMEDIATE` as the write: the write lock is held, so nothing can change
between the two [C1].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec

from coterie.storage import statements
from coterie.storage.contracts.executions import ExecutionRecord
from coterie.storage.interface import ASIDE_MOST, StateLoaded, StateRow
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.store import SqliteStore, reads, to_struct, writes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import apsw

    from coterie.storage.contracts.executions import Stamp, Stamped
    from coterie.storage.contracts.messages import StateChange
    from coterie.storage.interface import Claim, StateSave, Written
    from coterie.storage.sqlite.store import Scope


SQL = dict(statements.load(f"{__package__}.sql", "states.sql"))

_HELD = msgspec.json.Decoder(dict[str, tuple[str, int]])


def held(connection: apsw.Connection, cluster: str, claim: Claim) -> bool:
    """Whether the seat is held at this epoch."""
    return bool(connection.execute(SQL["held"], _bindings(cluster, claim)).get)


def verify(connection: apsw.Connection, scope: Scope, claim: Claim) -> bool:
    """Whether the seat is currently held at this epoch."""
    return held(connection, scope.cluster, claim)


def all_held(connection: apsw.Connection, cluster: str, claims: Collection[Claim]) -> set[Claim]:
    """The claims that are held: under the write lock one read is enough for the whole transaction."""
    names = {"cluster": cluster, "seats": msgspec.json.encode([claim.seat for claim in claims]).decode()}
    found = _HELD.decode(connection.execute(SQL["all_held"], names).get)
    return {claim for claim in claims if found.get(claim.seat) == (claim.runner, claim.epoch)}


def proven(connection: apsw.Connection, scope: Scope, claim: Claim, *, about: str) -> bool:
    """Whether the seat is held at this epoch; if not, the refusal is recorded."""
    if held(connection, scope.cluster, claim):
        return True
    note_refusal(connection, scope, claim, about=about)
    return False


def note_refusal(connection: apsw.Connection, scope: Scope, claim: Claim, *, about: str) -> None:
    """Write an audit row about a refusal by the fence (setting `audit`)."""
    if scope.audit:
        seats.note(connection, scope, "refused", claim.runner, {claim.seat: claim.epoch}, about=about)


def save(connection: apsw.Connection, scope: Scope, write: StateSave) -> Written:
    """Write the state that follows a version (0: the first)."""
    if not proven(connection, scope, write.claim, about=write.key):
        return "fenced"
    return "written" if change(connection, scope.cluster, write.claim, write) else "conflict"


def change(connection: apsw.Connection, cluster: str, claim: Claim, state: StateSave | StateChange) -> bool:
    """Write the state that follows a version, or delete it. Returns False if the version differs. Not fenced."""
    if state.value is None and not state.version:
        return fits(connection, cluster, claim, state)
    name = "delete" if state.value is None else "update" if state.version else "insert"
    connection.execute(SQL[name], row(cluster, claim, state))
    return connection.changes() == 1


def row(cluster: str, claim: Claim, state: StateSave | StateChange) -> dict[str, Any]:
    """The parameters of a change of state."""
    return _bindings(cluster, claim) | {"key": state.key, "value": state.value, "version": state.version}


def fits(connection: apsw.Connection, cluster: str, claim: Claim, state: StateSave | StateChange) -> bool:
    """Whether a state would follow the stored version."""
    for version, epoch in connection.execute(SQL["version"], {"cluster": cluster, "key": state.key}):
        return bool(version == state.version and epoch <= claim.epoch)
    return state.version == 0


def is_there(connection: apsw.Connection, cluster: str, claim: Claim, state: StateChange) -> bool:
    """Whether an earlier try of the same change, whose outcome was unknown, has happened [0.6]."""
    for version, epoch, value in connection.execute(SQL["current"], {"cluster": cluster, "key": state.key}):
        return bool(version == state.version + 1 and epoch == claim.epoch and value == state.value)
    return state.value is None


def differs(connection: apsw.Connection, cluster: str, state: StateChange) -> bool:
    """Whether another change was made in place of this one."""
    current = connection.execute(SQL["current"], {"cluster": cluster, "key": state.key}).fetchall()
    return any(version == state.version + 1 and value != state.value for version, _, value in current)


def load(connection: apsw.Connection, scope: Scope, claim: Claim, key: str) -> StateLoaded | None:
    """Load the state for a new holder and mark the row with its epoch; None: the seat is not held."""
    if not held(connection, scope.cluster, claim):
        return None
    names = _bindings(scope.cluster, claim) | {"key": key, "now_ns": scope.now_ns}
    for value, version, expired in connection.execute(SQL["claim"], names):
        return StateLoaded(value, version, bool(expired))
    return StateLoaded(None, 0)


def _bindings(cluster: str, claim: Claim) -> dict[str, Any]:
    return {"cluster": cluster, "runner": claim.runner, "seat": claim.seat, "epoch": claim.epoch}


_SQL = dict(statements.load(f"{__package__}.sql", "leading.sql"))


def save_leader_state(connection: apsw.Connection, scope: Scope, write: StateSave) -> Written:
    """Write the state that follows a version, and its entry in the history."""
    told = save(connection, scope, write)
    if told == "written" and (write.keep or write.ttl_s is not None):
        names = scope.bindings(key=write.key, runner=write.claim.runner, expires_at_ns=scope.expires_at_ns(write.ttl_s))
        connection.execute(_SQL["date"], names)
        if write.keep:
            connection.execute(_SQL["keep"], scope.bindings(key=write.key, most=write.keep))
    return told


def set_aside(connection: apsw.Connection, scope: Scope, claim: Claim, key: str, reason: str) -> bool:
    """Keep a copy of a state before it is overwritten. Returns False if the seat is not held."""
    if not held(connection, scope.cluster, claim):
        return False
    connection.execute(_SQL["set_aside"], scope.bindings(key=key, most=ASIDE_MOST, reason=reason))
    return True


def peek(connection: apsw.Connection, scope: Scope, key: str) -> StateRow | None:
    """Read a state, unless it has expired."""
    for row in connection.execute(_SQL["peek"], scope.bindings(key=key)):
        return to_struct(StateRow, row)
    return None


def history(connection: apsw.Connection, scope: Scope, key: str) -> list[StateRow]:
    """The last states of a key and those set aside, the newest first."""
    return [to_struct(StateRow, row) for row in connection.execute(_SQL["history"], scope.bindings(key=key))]


def purge(connection: apsw.Connection, scope: Scope, *, most: int) -> int:
    """Delete some expired states with their histories. Returns the number of states deleted."""
    keys = [key for (key,) in connection.execute(_SQL["expired"], scope.bindings(most=most)).fetchall()]
    for key in keys:
        connection.execute(_SQL["remove"], scope.bindings(key=key))
        connection.execute(_SQL["forget"], scope.bindings(key=key))
    return len(keys)


def begin(
    connection: apsw.Connection, scope: Scope, claim: Claim, *, leader: str, expected_s: float | None
) -> ExecutionRecord | None:
    """Record a new holder. Returns the row, or None if the seat is not held."""
    if not held(connection, scope.cluster, claim):
        return None
    names = scope.bindings(seat=claim.seat, epoch=claim.epoch, leader=leader, expected_s=expected_s)
    (row,) = connection.execute(_SQL["begin"], names).fetchall()
    return _execution(scope, row)


def stamp(connection: apsw.Connection, scope: Scope, write: Stamp) -> Stamped:
    """Store a leader's report about its work."""
    if not proven(connection, scope, write.claim, about=write.claim.seat):
        return "fenced"
    names = scope.bindings(seat=write.claim.seat, epoch=write.claim.epoch, **msgspec.structs.asdict(write))
    names["ran_at_ns"] = _ago_ns(scope, write.ran_s)
    names["progress_at_ns"] = _ago_ns(scope, write.progress_s)
    names["error_at_ns"] = _ago_ns(scope, write.error_s)
    connection.execute(_SQL["stamp"], names)
    return "written"


def listed(connection: apsw.Connection, scope: Scope, prefix: str) -> list[ExecutionRecord]:
    """The records of all seats whose names begin with `prefix`."""
    return [_execution(scope, row) for row in connection.execute(_SQL["list"], scope.bindings(prefix=prefix))]


def _ago_ns(scope: Scope, age_s: float | None) -> int | None:
    return None if age_s is None else scope.now_ns - int(age_s * 1e9)


def _execution(scope: Scope, row: Sequence[Any]) -> ExecutionRecord:
    return to_struct(ExecutionRecord, (*row, scope.now_ns))


class SqliteStates(SqliteStore):
    """State written under the fence. See `storage.interface.StateStore`."""

    async def save(self, write: StateSave) -> Written:
        """Durable when it returns "written"."""
        return cast("Written", await self._write(write))

    load = writes(load, "load {key!r}")
    verify = reads(verify, "look at {claim.seat!r}")
    set_aside = writes(set_aside, "set {key!r} aside")
    peek = reads(peek, "look at {key!r}")
    history = reads(history, "read the history of {key!r}")
    purge = writes(purge, "purge expired states")


class SqliteExecutions(SqliteStore):
    """One row per seat. See `storage.contracts.executions.Executions`."""

    async def stamp(self, write: Stamp) -> Stamped:
        """Durable when it returns "written"."""
        return cast("Stamped", await self._write(write))

    begin = writes(begin, "begin to lead {claim.seat!r}")
    list = reads(listed, "list what leaders say")
