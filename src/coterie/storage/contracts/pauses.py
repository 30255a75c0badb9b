"""The storage contract of pauses: tasks, entity types and groups of which nothing is begun until they are resumed.

A pause of a task or group changes the stamp of every queue once the pause is stored. A claim of jobs proves the stamp
of its queue, and whoever claims reads that stamp together with the pauses: so no claim that does not know of the pause
commits after `pause` has returned. A queue that is stored meanwhile is read after that, and the pause with it.

Messages are begun from the memory of whoever holds their shard, without a statement: see
`entities/persisted/pauses.py`.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

PauseKind = Literal["entity", "group", "task"]


class Pause(msgspec.Struct, frozen=True, gc=False):
    """Something that is paused."""

    kind: PauseKind
    name: str
    paused_at: datetime


class PauseStore(Protocol):
    """What is paused in one cluster, besides queues, crons and schedules."""

    async def list(self) -> Sequence[Pause]:
        """Return all pauses, in order of kind and name."""
        ...

    async def pause(self, kind: PauseKind, name: str) -> bool:
        """Store a pause. Once it has returned no job of a paused task or group is claimed.

        Returns:
            False if it was stored before. Jobs are held up by then as well, also if that call has failed half-way.
        """
        ...

    async def resume(self, kind: PauseKind, name: str) -> bool:
        """Remove a pause. Returns False if there was none."""
        ...
