"""Messages to runs of workflows and what these publish, in a SQLite file: plain functions, and the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.kernel.clock import to_datetime
from coterie.storage import statements
from coterie.storage.contracts.run_messages import PUBLISHED_MOST, PublishedRow, RunMessageSent, WaitingMessages
from coterie.storage.contracts.units import StepResult, StepWrite
from coterie.storage.sqlite import unit_writes, units
from coterie.storage.sqlite.store import SqliteStore, ago_ns, bindings, encoded, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

    from coterie.storage.contracts.run_messages import Publish, RaceEnd, Receive, RunMessage
    from coterie.storage.sqlite.store import Scope

SQL = statements.load(f"{__package__}.sql", "run_messages.sql")


def send(connection: apsw.Connection, scope: Scope, message: RunMessage) -> RunMessageSent:
    """Store a message for a run that has not ended, and make the run running."""
    run = units.get(connection, scope, message.unit)
    wake = None if run is None or run.ended_at is not None else run.seat
    names = bindings(scope, unit=message.unit, name=message.name, id=message.id)
    there: list[Any] = connection.execute(SQL["there"], names).fetchall()
    if there:
        return RunMessageSent("there", there[0][0], wake)
    if run is not None and run.ended_at is not None:
        return RunMessageSent("over", status=run.status)
    connection.execute(SQL["send"], {**names, "early": run is None, "digest": message.digest, "value": message.value})
    connection.execute(unit_writes.SQL["wake"], bindings(scope, units=encoded([message.unit])))
    return RunMessageSent("sent", wake=wake)


def receive(connection: apsw.Connection, scope: Scope, write: Receive) -> StepResult:
    """Take the oldest message of a name into a step; or store its time-out; or that it waits."""
    step = StepWrite(
        write.claim,
        write.unit,
        write.branch,
        write.position,
        "receive",
        write.name,
        done=False,
        due_s=write.due_s,
        runner=write.runner,
        life=write.life,
    )
    (result,) = unit_writes.step(connection, scope, [step])
    if result.row is None or result.row.done or result.row.kind != "receive" or result.row.name != write.name:
        return result
    names = bindings(scope, unit=write.unit, name=write.name)
    first: list[Any] = connection.execute(SQL["first"], names).fetchall()
    ends: dict[str, Any]
    if first:
        ((message, value),) = first
        run = units.get(connection, scope, write.unit)
        assert run is not None, "it goes on"
        place = {"life": run.life, "branch": write.branch, "position": write.position}
        connection.execute(SQL["receive"], {**names, **place, "id": message})
        ends = {"value": value}
    elif result.row.due_at is not None and result.row.due_at <= result.now and result.told == "there":
        ends = {"error": write.late}
    else:
        return result
    end = StepWrite(
        write.claim,
        write.unit,
        write.branch,
        write.position,
        "receive",
        write.name,
        runner=write.runner,
        life=write.life,
        **ends,
    )
    return unit_writes.step(connection, scope, [end])[0]


def publish(connection: apsw.Connection, scope: Scope, write: Publish) -> StepResult:
    """Store a value and its step, unless the step is stored."""
    step = StepWrite(
        write.claim,
        write.unit,
        write.branch,
        write.position,
        "publish",
        write.name,
        runner=write.runner,
        life=write.life,
    )
    (result,) = unit_writes.step(connection, scope, [step])
    if result.told == "written":
        names = bindings(scope, unit=write.unit, name=write.name)
        connection.execute(SQL["publish"], {**names, "value": write.value})
        connection.execute(SQL["trim"], {**names, "kept": PUBLISHED_MOST})
    return result


def give_back(connection: apsw.Connection, scope: Scope, write: RaceEnd) -> StepResult:
    """Store a step, and let the messages of others wait again, unless the step is stored."""
    step = StepWrite(
        write.claim,
        write.unit,
        write.branch,
        write.position,
        "first",
        write.name,
        value=write.value,
        runner=write.runner,
        life=write.life,
    )
    (result,) = unit_writes.step(connection, scope, [step])
    if result.told == "written":
        for branch, position in write.received:
            names = bindings(scope, unit=write.unit, branch=branch, position=position)
            connection.execute(SQL["give_back"], names)
    return result


def published(
    connection: apsw.Connection, scope: Scope, unit: str, name: str, *, after: int | None, most: int
) -> Sequence[PublishedRow]:
    """The next values after a number, in order; None: the last one alone."""
    names = bindings(scope, unit=unit, name=name, after=after, most=most)
    rows: list[Any] = connection.execute(SQL["last" if after is None else "after"], names).fetchall()
    return [PublishedRow(seq, value, to_datetime(at_ns)) for seq, value, at_ns in rows]


def published_names(
    connection: apsw.Connection, scope: Scope, unit: str, *, most: int
) -> Sequence[tuple[str, PublishedRow]]:
    """The names under which a run has published, each with its last value, by name."""
    rows: list[Any] = connection.execute(SQL["names"], bindings(scope, unit=unit, most=most)).fetchall()
    return [(name, PublishedRow(seq, value, to_datetime(at_ns))) for name, seq, value, at_ns in rows]


def waiting(connection: apsw.Connection, scope: Scope, unit: str, *, most: int) -> Sequence[WaitingMessages]:
    """What was sent to a run and waits, by name."""
    rows: list[Any] = connection.execute(SQL["waiting"], bindings(scope, unit=unit, most=most)).fetchall()
    return [WaitingMessages(name, count, to_datetime(at_ns)) for name, count, at_ns in rows]


def purge(connection: apsw.Connection, scope: Scope, *, older_s: float, most: int) -> int:
    """Delete some messages that are old: received ones, and those to runs that never began."""
    names = bindings(scope, before_ns=ago_ns(scope, older_s), most=most)
    connection.execute(SQL["purge_received"], names)
    received = connection.changes()
    connection.execute(SQL["purge_early"], names)
    return max(received, connection.changes())


class SqliteRunMessages(SqliteStore):
    """See `storage.contracts.run_messages.RunMessageStore`."""

    send = writes(send, "send a message to a run")
    receive = writes(receive, "receive a message")
    publish = writes(publish, "publish a value")
    give_back = writes(give_back, "give back messages")
    published = reads(published, "read what {unit!r} published")
    published_names = reads(published_names, "read the names under which {unit!r} published")
    waiting = reads(waiting, "read the messages that wait for {unit!r}")
    purge = writes(purge, "purge messages to runs")
