"""Sending to a run of a workflow, and reading what it publishes, from any process (W6, W7)."""

from __future__ import annotations

import asyncio
import logging
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from coterie.durable.position import named
from coterie.entities.persisted.outcome import require_small
from coterie.errors import KeyConflict, PersistenceError, WorkflowEnded, WorkflowNotFound
from coterie.kernel.serialization.codec import PLAIN, codec_for
from coterie.kernel.text import require_text
from coterie.storage.contracts.run_messages import RunMessage
from coterie.workflows.definition import unit_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from coterie.client import Client

log = logging.getLogger("coterie.workflows")

_PAGE = 100
_POLLS_S = (0.02, 0.5)
"""Polling interval of who follows: from, to."""
_KEY_MOST = 200


async def send(here: Client, workflow: str, id: str, name: str, value: Any, *, key: str | None) -> None:
    """Store a message for a run, and wake the runner that runs it. Arguments and errors as of `WorkflowHandle.send`."""
    unit = unit_of(workflow, id)
    what = f"message {name!r} to {unit}"
    data = PLAIN.checked(value, what=what)
    require_small(data, what=what, most_bytes=here.settings.frame_limit)
    message = RunMessage(
        unit=unit,
        name=named(name, "a message"),
        id=here.calling.chance.token(16).hex() if key is None else f"key:{_checked_key(key)}",
        value=data,
        digest=b"" if key is None else blake2b(PLAIN.canonical(value, what=what), digest_size=16).digest(),
    )
    told = await here.storage.run_messages.send(message)
    if told.told == "over":
        status = told.status or "done"
        raise WorkflowEnded(workflow=workflow, id=id, status=status, refused="receives no messages any more")
    if told.told == "there" and told.digest != message.digest:
        raise KeyConflict(target=what, key=key or "", message_id=message.id)
    if told.wake is not None:
        await here.wake(told.wake, about=unit, fresh=True)


def _checked_key(key: Any) -> str:
    text = require_text(key, what="key of a message")
    if not 0 < len(text) <= _KEY_MOST:
        raise ValueError(f"key of a message has {len(text)} characters, expected 1 to {_KEY_MOST}")
    return text


async def last(here: Client, workflow: str, id: str, name: str, type: Any) -> Any:
    """The last value that a run published under a name, or None."""
    unit = unit_of(workflow, id)
    rows = await here.storage.run_messages.published(unit, named(name, "a published value"), after=None, most=1)
    if rows:
        return codec_for(type).decode(rows[0].value, what=f"value {name!r} published by {unit}")
    if await here.storage.units.get(unit) is None:
        raise WorkflowNotFound(workflow=workflow, id=id)
    return None


async def follow(
    acting: Callable[[], Client], workflow: str, id: str, name: str, type: Any, *, after: int
) -> AsyncIterator[Any]:
    """The values that a run publishes under a name, until it has ended."""
    unit, codec = unit_of(workflow, id), codec_for(type)
    pause_s, longest_s = _POLLS_S
    while True:
        try:
            run = await acting().storage.units.get(unit)
            rows = await acting().storage.run_messages.published(unit, name, after=after, most=_PAGE)
        except PersistenceError as error:  # the run continues, and so does who follows it
            log.info("what %s published could not be read, and is read again soon: %s", unit, error)
            await asyncio.sleep(longest_s)
            continue
        for row in rows:
            after = row.seq
            yield codec.decode(row.value, what=f"value {name!r} published by {unit}")
        if rows:
            pause_s = _POLLS_S[0]
            continue
        if run is None:
            raise WorkflowNotFound(workflow=workflow, id=id)
        if run.ended_at is not None:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, longest_s)
