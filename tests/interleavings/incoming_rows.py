"""Incoming rows of SQL, and what moves, cancels and purges them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage.contracts.incoming_calls import MovedCall, MovedStart
from coterie.storage.contracts.units import UnitStart
from coterie.storage.postgres.batch.sends import message_columns
from tests.interleavings.database import CLUSTER
from tests.interleavings.stored_messages import message
from tests.support.interleaving import atomic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Step

MINE = ("a", "s1", 1)


def rows(*ids: str, kind: str = "call", same_as: str = "") -> str:
    """Rows that were written a day ago."""
    return "".join(
        ";insert into coterie.incoming (cluster, id, kind, type, entity, method, args, sent_at, same_as)"
        f" values ('{CLUSTER}', '{each}', '{kind}', 'E', 'e', 'm', '{{}}', now() - interval '1 day',"
        f" nullif('{same_as}', ''))"
        for each in ids
    )


def moving(s: Steps, *calls: MovedCall) -> tuple[Step, ...]:
    """Move rows on s1, in the name of a."""
    columns = message_columns([each.message for each in calls])
    more = [each.error for each in calls], [each.known for each in calls]
    return atomic(s.step("move_incoming", *MINE, *columns, *more, step="move"))


def starting(s: Steps, *starts: MovedStart) -> tuple[Step, ...]:
    """Make runs of rows."""
    names = ("unit", "name", "id", "seat", "payload", "digest", "version", "life")
    columns: Sequence[object] = [[getattr(each.start, name) for each in starts] for name in names]
    ids, known = [each.id for each in starts], [each.known for each in starts]
    return atomic(s.step("start_incoming", *MINE, ids, *columns, known, step="begin"))


def call(id: str = "w1", *, key: str | None = "x", error: str | None = None) -> MovedCall:
    """What a row becomes."""
    return MovedCall(message(id, key=key), error)


def start(id: str = "w1", *, payload: bytes = b"p") -> MovedStart:
    """The same of a run."""
    unit = UnitStart(unit="u", name="n", id="i", seat="s1", payload=payload, digest=payload)
    return MovedStart(id, unit)
