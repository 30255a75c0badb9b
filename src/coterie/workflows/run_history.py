"""The history of a run as a file: its payload and its steps, for replays of changed code (`coterie.testing.replay`).

Values are JSON as people read it where that gives the same bytes again, else the stored bytes in base64.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import datetime  # noqa: TC003 a field
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.kernel import spans
from coterie.storage.contracts.units import StepKind, StepRow, UnitStatus
from coterie.workflows.recovery import as_stored

if TYPE_CHECKING:
    from coterie.storage.contracts.units import StepRecord, UnitRow
    from coterie.storage.interface import Storage

FORMAT = 1
_EXACT = "msgpack"
"""The one key of a map that holds stored bytes."""


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step in the history of a run."""

    branch: str = ""
    position: int
    kind: StepKind
    name: str
    done: bool = True
    digest: str = ""
    """Of its arguments, in hexadecimal digits."""
    value: Any = msgspec.UNSET
    error: Any = msgspec.UNSET
    due_at: datetime | None = None
    """When a sleep ends, or a wait times out."""

    def row(self) -> StepRow:
        """The step as it is stored."""
        return StepRow(
            branch=self.branch,
            position=self.position,
            kind=self.kind,
            name=self.name,
            digest=bytes.fromhex(self.digest),
            done=self.done,
            value=_bytes(self.value),
            error=_bytes(self.error),
            due_at=self.due_at,
        )


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The history of one life of a run."""

    format: int = FORMAT
    workflow: str
    id: str
    status: UnitStatus
    version: str
    """The version of the code that began it."""
    payload: Any
    error: Any = msgspec.UNSET
    """The error that it failed with."""
    steps: tuple[HistoryStep, ...]

    @property
    def payload_bytes(self) -> bytes:
        """The payload as it is stored."""
        return _bytes(self.payload) or b""

    @property
    def error_bytes(self) -> bytes | None:
        """The error as it is stored."""
        return _bytes(self.error)


def read_history(data: bytes | str) -> RunHistory:
    """Read what `coterie workflows export` has written.

    Raises:
        ValueError: It is something else, or of a newer version.
    """
    try:
        found = msgspec.json.decode(data, type=RunHistory)
    except msgspec.MsgspecError as error:
        raise ValueError(f"this is no history of a run, as coterie workflows export writes it: {error}") from error
    if found.format > FORMAT:
        raise ValueError(f"this history has format {found.format}, and this version of coterie reads up to {FORMAT}")
    return found


async def export(storage: Storage, unit: str) -> tuple[UnitRow, RunHistory] | None:
    """The history of a run, and its row; None: there is none.

    Raises:
        UnreadablePayload: It is encrypted with a key that this process does not have.
    """
    while True:
        row = await storage.units.get(unit)
        if row is None:
            return None
        stored = {(each.branch, each.position): each for each in await storage.units.steps(unit)}
        records = await storage.units.records(unit)
        again = await storage.units.get(unit)
        if again is not None and (again.life, again.status, again.retries) == (row.life, row.status, row.retries):
            steps = [as_stored(each, stored.get((each.branch, each.position)), unit) for each in records]
            return row, _history(row, steps)


def _history(row: UnitRow, steps: list[StepRecord]) -> RunHistory:
    return RunHistory(
        workflow=row.name,
        id=row.id,
        status=row.status,
        version=row.version,
        payload=_shown(spans.unstamped(row.payload)[0]),
        error=_shown(row.error),
        steps=tuple(
            HistoryStep(
                branch=each.branch,
                position=each.position,
                kind=each.kind,
                name=each.name,
                done=each.done,
                digest=each.digest.hex(),
                value=_shown(each.value) if each.done else msgspec.UNSET,
                error=_shown(each.error),
                due_at=each.due_at,
            )
            for each in steps
        ),
    )


def _shown(data: bytes | None) -> Any:
    """Stored bytes as JSON that gives the same bytes again."""
    if data is None:
        return msgspec.UNSET
    try:
        value = msgspec.msgpack.decode(data)
        again = msgspec.json.decode(msgspec.json.encode(value))
        is_same = msgspec.msgpack.encode(again) == data
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError):
        is_same, value = False, None
    if is_same and not (isinstance(value, dict) and list(value) == [_EXACT]):
        return value
    return {_EXACT: b64encode(data).decode()}


def _bytes(shown: Any) -> bytes | None:
    """The stored bytes of what `_shown` gives."""
    if shown is msgspec.UNSET:
        return None
    if isinstance(shown, dict) and list(shown) == [_EXACT]:
        return b64decode(shown[_EXACT])
    return msgspec.msgpack.encode(shown)
