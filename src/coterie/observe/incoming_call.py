"""A call from SQL, or the start of a workflow, that no runner has taken in yet, as the views show it [O2]."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from coterie.entities.persisted.api import Messages
from coterie.errors import MessageExpired
from coterie.kernel.text import require_text

if TYPE_CHECKING:
    from coterie.client import Client
    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.incoming_calls import IncomingKind


class IncomingCall(msgspec.Struct, frozen=True, kw_only=True):
    """A row that waits. It becomes a message of the same id."""

    id: str
    kind: IncomingKind
    type: str
    """The type of the entity, or the name of the workflow."""
    entity: str
    """The id of the entity, or of the run."""
    method: str
    """Empty for the start of a workflow."""
    key: str | None
    sent_at: datetime

    @property
    def what(self) -> str:
        """`Account/alice.deposit`, `workflow order/o-1`."""
        address = f"{self.type}/{self.entity}"
        return f"workflow {address}" if self.kind == "workflow" else f"{address}.{self.method}"

    @property
    def awaited(self) -> str:
        """What the program of some runner must have: `entity Account`, `workflow order`."""
        return f"workflow {self.type}" if self.kind == "workflow" else f"entity {self.type}"


async def find_message(here: Client, id: str) -> MessageInfo | IncomingCall:
    """The message of an id, or what SQL has sent with it. One with the key of another message leads to that one.

    Raises:
        MessageExpired: There is neither.
    """
    messages = Messages(lambda: here.storage.messages)
    try:
        return await messages.show(id)
    except MessageExpired:
        found = await here.storage.incoming.find(require_text(str(id), what="message id"))
        if found is None:
            return await messages.show(id)  # it may have been taken in meanwhile
        if found.same_as is not None:
            return await messages.show(found.same_as)
        return IncomingCall(
            id=id,
            kind=found.kind,
            type=found.type,
            entity=found.entity,
            method=found.method,
            key=found.key,
            sent_at=datetime.fromtimestamp(found.sent_s, UTC),
        )
