"""Checks what SQL has sent, as a call by name is checked, and makes the message or the run of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.durable.unit import new_life
from coterie.entities.calls.by_name_client import Invoke
from coterie.entities.idempotency_key import shown_key
from coterie.entities.persisted.outcome import require_small
from coterie.errors import CoterieError, KeyConflict, MalformedMessage
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.kernel.serialization.codec import PLAIN
from coterie.storage.contracts.incoming_calls import START, MovedCall, MovedStart
from coterie.storage.contracts.messages import Message
from coterie.storage.contracts.units import UnitStart
from coterie.workflows.definition import require_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.runner import Runner
    from coterie.storage.contracts.incoming_calls import IncomingRow
    from coterie.workflows.definition import WorkflowType


_ERROR_MOST = 4_000


class IncomingCheck:
    """Checks rows with the types of one program.

    Args:
        runner: The runner whose program it is.
        group: The group of what is sent to.
        workflows: Returns the workflows of the program, by name.
    """

    def __init__(self, runner: Runner, group: str, workflows: Callable[[], Mapping[str, WorkflowType]]) -> None:
        assert runner.calling.by_name is not None, "its entities are served since it was made"
        self._by_name = runner.calling.by_name
        self._runner = runner
        self._group = group
        self._workflows = workflows

    def moved(self, row: IncomingRow) -> MovedCall | MovedStart:
        """What a row becomes; a dead message if it does not fit."""
        try:
            return self._start(row) if row.kind == "workflow" else MovedCall(self._message(row))
        except Exception as error:  # noqa: BLE001 the program's own types may raise anything
            return self.dead(row, _worded(error))

    def conflict(self, row: IncomingRow, moved: MovedCall | MovedStart, other: str) -> MovedCall:
        """The dead message of a row whose key, or id of a run, belongs to something else."""
        if isinstance(moved, MovedStart):
            target, key = f"workflow {row.type!r}", row.entity
        else:
            target, key = f"{row.type}/{row.entity}.{row.method}", shown_key(moved.message.key or "")
        return self.dead(row, str(KeyConflict(target=target, key=key, message_id=other)))

    def dead(self, row: IncomingRow, error: str) -> MovedCall:
        """The dead message of a row, without a key; retried, its arguments are checked once more."""
        number = shard_number(row.type, row.entity, self._runner.settings.shards)
        message = Message(
            id=row.id,
            seat=Seat.shard(ShardId(self._group, number)),
            entity_type=row.type,
            entity_id=row.entity,
            method=START if row.kind == "workflow" else row.method,
            payload=_plain(row.args),
        )
        return MovedCall(message, error[:_ERROR_MOST])

    def _message(self, row: IncomingRow) -> Message:
        asked = Invoke(
            entity_type=row.type,
            entity_id=row.entity,
            method=row.method,
            arguments=row.args.encode(),
            key=row.key,
            waits=False,
        )
        call, sender = self._by_name.call_of(asked)
        if not call.rpc.persisted:
            hint = "write persisted=True in its @rpc(…): what SQL sends is stored"
            raise MalformedMessage(what=call.rpc.what, problem="it is not persisted", hint=hint)
        at = None if row.due_s is None else datetime.fromtimestamp(row.due_s, UTC)
        return self._runner.calling.persisted.message_of(call, sender.entity_type, id=row.id, at=at)

    def _start(self, row: IncomingRow) -> MovedStart:
        kind, settings = self._workflows()[row.type], self._runner.settings
        what = f"payload of workflow {kind.name!r}"
        payload: Any = kind.payload.from_json(row.args.encode(), what=what)
        data = kind.payload.checked(payload, what=what)
        require_small(data, what=what, most_bytes=settings.frame_limit)
        start = UnitStart(
            unit=kind.unit(require_id(row.entity)),
            name=kind.name,
            id=row.entity,
            seat=kind.seat(row.entity, settings.shards),
            payload=data,
            digest=kind.payload.canonical(payload, what=what),
            version=kind.version,
            life=new_life(self._runner.calling.chance),
        )
        return MovedStart(row.id, start)


def _worded(error: Exception) -> str:
    if isinstance(error, CoterieError):
        return str(error)
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 its text is the program's code too
        return type(error).__name__


def _plain(args: str) -> bytes:
    """The arguments as a message has them, for people and for a retry; as text if they are beyond that."""
    try:
        return PLAIN.encode(msgspec.json.decode(args))
    except (ValueError, RecursionError, CoterieError):
        return PLAIN.encode(args)
