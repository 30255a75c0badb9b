"""`cluster.tasks`, `cluster.entities`, `cluster.groups`: pause what a task, an entity type or a group begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from coterie.entities.persisted.pauses import HELD_WITHIN_S
from coterie.kernel.text import require_text
from coterie.tasks.frames import QueueChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from coterie.client import Client
    from coterie.storage.contracts.pauses import PauseKind


class Pauses:
    """The API of `cluster.tasks`, `cluster.entities` and `cluster.groups`.

    Example:
        ```python
        await cluster.tasks.pause("send_email")  # its jobs, in whichever queue
        await cluster.entities.pause("Account")  # its persisted messages
        await cluster.groups.pause("batch")  # those of all tasks, queues and entity types of the group
        await cluster.tasks.resume("send_email")
        ```

    Promise:
        Once `pause` has returned, nothing of it is begun: no job is claimed, no persisted message is handed to its
        entity. What runs goes on to its end; what is sent is stored, and waits. Pauses survive restarts and new
        versions of the program; what is resumed goes on within about a second.

    Not promised:
        Calls that are not persisted are answered as ever, and so run workflows, crons and singletons. A name that
        nobody defines (yet) may be paused.

    Args:
        kind: What is paused.
        acting: Returns the runner or client to act through.
        writing: Likewise, for a write; called with its name.
    """

    def __init__(self, kind: PauseKind, acting: Callable[[], Client], writing: Callable[[str], Client]) -> None:
        self._kind = kind
        self._acting = acting
        self._writing = writing

    async def paused(self) -> Mapping[str, datetime]:
        """What is paused, by name, with the time since when."""
        found = await self._acting().storage.pauses.list()
        return {each.name: each.paused_at for each in found if each.kind == self._kind}

    async def pause(self, name: str) -> bool:
        """Begin nothing of it until `resume`. For entity types and groups this takes two seconds.

        Returns:
            False if it was paused already.

        Raises:
            InvalidArgument: This cannot be a name.
        """
        changed = await self._change(name, paused=True)
        if self._kind != "task":  # what runners know of pauses of messages is good for as long
            await asyncio.sleep(HELD_WITHIN_S)
        return changed

    async def resume(self, name: str) -> bool:
        """Let it begin again what waits.

        Returns:
            False if it was not paused.

        Raises:
            InvalidArgument: This cannot be a name.
        """
        return await self._change(name, paused=False)

    async def _change(self, name: str, *, paused: bool) -> bool:
        require_text(name, what=f"the name of what is {'paused' if paused else 'resumed'}")
        here = self._writing(f"cluster.{_ATTRIBUTES[self._kind]}.{'pause' if paused else 'resume'}")
        store = here.storage.pauses
        changed = await (store.pause if paused else store.resume)(self._kind, name)
        if self._kind != "entity":
            for row in await here.storage.jobs.queues():
                here.jobs.tell(row.seat, QueueChanged(row.seat))
        return changed


_ATTRIBUTES: Mapping[PauseKind, str] = {"entity": "entities", "group": "groups", "task": "tasks"}
