"""Counts what is stored under each key, and encrypts with the current key what is under others.

A row is read, decrypted, encrypted and replaced if nobody has written it meanwhile: no lock is held in between, no
writer waits, and it may be stopped and begun again at any row. What was locked, or changed, is done in another round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from coterie.errors import UnreadablePayload
from coterie.storage.contracts.payloads import TABLES, PayloadChange
from coterie.storage.encryption import places
from coterie.storage.encryption.cipher import head_of, key_of, text_head_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from coterie.storage.contracts.payloads import PayloadRow, PayloadStore, PayloadTable
    from coterie.storage.encryption.cipher import Keyring, Place

    PlacesOf = Callable[[Mapping[str, Any], str], tuple[Place, ...]]

PAGE = 100
"""Rows of one page: some may be as large as `frame_limit`."""
_WHOLE = 2**31 - 1
_HEAD = 100
"""Characters that tell the key's id."""
_NO_HEAD, _NO_TEXT_HEAD = b"\xc1none", "\x01none"
"""No value begins so, encrypted or not."""


class _Call(msgspec.Struct, frozen=True):
    """A message, as far as its arguments are bound to it."""

    id: str
    entity_type: str
    entity_id: str
    method: str


def _of_messages(row: Mapping[str, Any], column: str) -> tuple[Place, ...]:
    if column == "payload":
        return (places.arguments(_Call(*(row[name] for name in _Call.__struct_fields__))),)
    kinds = {"reply": places.reply, "digest": places.digest_of_call, "errors": places.error_of_call}
    return (kinds[column](row["id"]),)


class _JobCall(msgspec.Struct, frozen=True):
    """A job, as far as its arguments are bound to it."""

    id: str
    task: str


def _of_jobs(row: Mapping[str, Any], column: str) -> tuple[Place, ...]:
    if column == "payload":
        return (places.arguments_of_job(_JobCall(row["id"], row["task"])),)
    return (places.job(row["id"], column),)


def _of_history(row: Mapping[str, Any], column: str) -> tuple[Place, ...]:
    return (places.reason(row["key"]) if column == "reason" else places.state(row["key"], row["version"]),)


def _of_ticks(row: Mapping[str, Any], column: str) -> tuple[Place, ...]:
    return (places.note_of_tick(row["name"]) if column == "note" else places.error_of_cron(row["name"]),)


def _of_steps(row: Mapping[str, Any], column: str) -> tuple[Place, ...]:
    own = places.step(row["unit"], row["branch"], row["position"], column)
    is_message = row["kind"] == "receive" and column == "value"
    return (places.run_message(row["unit"], row["name"]), own) if is_message else (own,)


def _of_deferreds(row: Mapping[str, Any], column: str) -> tuple[Place, ...]:
    own = places.deferred(row["unit"], row["name"], row["life"], column)
    return (own, places.outcome(row["unit"], row["name"])) if column == "value" else (own,)


PLACES: dict[str, PlacesOf] = {
    "messages": _of_messages,
    "jobs": _of_jobs,
    "job_progress": lambda row, _: (places.note_of_job(row["job"]),),
    "kv": lambda row, _: (places.entry(row["key"], row["stamp"]),),
    "states": lambda row, _: (places.state(row["key"], row["version"]),),
    "state_history": _of_history,
    "executions": lambda row, column: (places.execution(row["seat"], column),),
    "crons": lambda row, _: (places.error_of_cron(row["name"]),),
    "ticks": _of_ticks,
    "units": lambda row, column: (places.unit(row["unit"], column.removeprefix("next_")),),
    "steps": _of_steps,
    "deferreds": _of_deferreds,
    "run_messages": lambda row, column: (places.run_message(row["unit"], row["name"], column),),
    "published": lambda row, _: (places.published(row["unit"], row["name"]),),
    "schedules": lambda row, _: (places.scheduled(row["key"], row["life"]),),
    "activity": lambda row, _: (places.result_of_act(row["act"], row["what"]),),
}
"""For each table: what a value of a column is bound to; one of them, if there are several."""


class KeyUse(msgspec.Struct, frozen=True):
    """How many rows of a table have values that are encrypted with a key."""

    table: str
    key: str
    """The id; empty: values that are not encrypted, among them texts that coterie writes itself."""
    rows: int


async def key_uses(payloads: PayloadStore) -> list[KeyUse]:
    """Count the rows under each key. Reads all of them."""
    counts: Counter[tuple[str, str]] = Counter()
    for table in TABLES:
        async for row in _rows(payloads, table, head=_NO_HEAD, text_head=_NO_TEXT_HEAD, cut=_HEAD):
            found = {
                key for name, value in zip(table.values, row.values, strict=True) for key in _keys(table, name, value)
            }
            counts.update((table.name, key) for key in found)
    return [KeyUse(table, key, rows) for (table, key), rows in sorted(counts.items())]


@dataclass
class RotationProgress:
    """What a rotation has done so far."""

    table: str = ""
    seen: int = 0
    changed: int = 0
    left: int = 0
    """Rows of the present round that others had locked or written: the next round does them."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Rows that cannot be decrypted, by the id of their key; empty: they are not encrypted, and that is not read."""
    problem: str = ""
    """Of the last one of these."""


class Rotation:
    """Encrypts with the current key what is stored under others.

    Args:
        payloads: What is stored.
        keyring: All keys that values may be encrypted with; without a current one, it decrypts all of them.
    """

    def __init__(self, payloads: PayloadStore, keyring: Keyring) -> None:
        self._payloads = payloads
        self._keyring = keyring
        self.progress = RotationProgress()

    async def run(self) -> AsyncIterator[RotationProgress]:
        """Run one round over all rows, in steps: after each the progress is given."""
        progress, current = self.progress, self._keyring.current
        progress.left = 0
        progress.unreadable.clear()
        head, text_head = (_NO_HEAD, _NO_TEXT_HEAD) if current is None else (head_of(current), text_head_of(current))
        for table in TABLES:
            progress.table = table.name
            after: tuple[Any, ...] | None = None
            while rows := await self._payloads.page(
                table, after=after, most=PAGE, head=head, text_head=text_head, cut=_WHOLE
            ):
                after = rows[-1].key
                changes = [change for row in rows if (change := self._change(table, row)) is not None]
                changed = await self._payloads.rewrite(table, changes) if changes else 0
                progress.seen += len(rows)
                progress.changed += changed
                progress.left += len(changes) - changed
                yield progress

    async def forget_unused_keys(self) -> list[str]:
        """Forget the keys that nothing is encrypted with any more, so that processes start without them."""
        used = {use.key for use in await key_uses(self._payloads)} | {self._keyring.current}
        unused = sorted(set(await self._payloads.keys()) - used)
        for key_id in unused:
            await self._payloads.remove_key(key_id)
        return unused

    def _change(self, table: PayloadTable, row: PayloadRow) -> PayloadChange | None:
        if all(value is None for value in row.values):
            return None
        named = dict(zip((*table.key, *table.bound), (*row.key, *row.bound), strict=True))
        try:
            values = tuple(
                None if value is None else self._anew(table, name, value, PLACES[table.name](named, name))
                for name, value in zip(table.values, row.values, strict=True)
            )
        except UnreadablePayload as error:
            self.progress.unreadable[error.key] += 1
            self.progress.problem = error.message
            return None
        was = tuple(None if new == old else old for old, new in zip(row.values, values, strict=True))
        if all(value is None for value in was):
            return None
        return PayloadChange(
            row.key, was, tuple(None if old is None else new for old, new in zip(was, values, strict=True))
        )

    def _anew(self, table: PayloadTable, name: str, value: Any, bound: tuple[Place, ...]) -> Any:
        if name in table.binary:
            return self._bytes_anew(value, bound)
        if name in table.texts:
            return self._text_anew(value, bound[0])
        found = [self._element_anew(each, bound[0]) for each in msgspec.json.decode(value)]
        return value if found == msgspec.json.decode(value) else msgspec.json.encode(found).decode()

    def _bytes_anew(self, value: bytes, bound: tuple[Place, ...]) -> bytes:
        if key_of(value) == (self._keyring.current or ""):
            return value
        for place in bound[:-1]:
            try:
                return self._keyring.seal(self._keyring.open(value, place), place)
            except UnreadablePayload:
                pass
        return self._keyring.seal(self._keyring.open(value, bound[-1]), bound[-1])

    def _text_anew(self, value: str, place: Place) -> str:
        if key_of(value) == (self._keyring.current or ""):
            return value
        return self._keyring.seal_text(self._keyring.open_text(value, place), place)

    def _element_anew(self, element: Any, place: Place) -> Any:
        """Errors of ticks are texts, those of messages and jobs are objects with one."""
        if isinstance(element, dict):
            return element | {"error": self._text_anew(element["error"], place)}
        return self._text_anew(element, place)


async def _rows(
    payloads: PayloadStore, table: PayloadTable, *, head: bytes, text_head: str, cut: int
) -> AsyncIterator[PayloadRow]:
    after: tuple[Any, ...] | None = None
    while rows := await payloads.page(table, after=after, most=PAGE, head=head, text_head=text_head, cut=cut):
        for row in rows:
            yield row
        after = rows[-1].key


def _keys(table: PayloadTable, name: str, value: Any) -> set[str]:
    """The keys of one value, or of the texts in a list."""
    if value is None:
        return set()
    if name not in table.lists:
        return {key_of(value)}
    return {key_of(each["error"] if isinstance(each, dict) else each) for each in msgspec.json.decode(value)}
